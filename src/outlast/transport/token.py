"""Where the job's token comes from.

A job that stays on this machine makes its own and leaves it where only the same user can read it, so that a second
agent on the machine can join. On any other address the user has to give one, or to say that there is none.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path

import msgspec

from outlast.launch import Endpoint
from outlast.protocol.fields import UNREADABLE
from outlast.system import private, proc

LAST_LOGS = "last-logs"


def make() -> str:
    """A new token.

    >>> len(make())
    32
    """
    return secrets.token_hex(16)


def required(endpoint: Endpoint) -> ValueError:
    """What to tell a user whose job needs a token and has none."""
    return ValueError(
        f"{endpoint} can be reached from other machines, so the job needs a token: set OUTLAST_TOKEN to the same "
        "secret on every node ('outlast token' prints a fresh one), or say --no-auth to let anybody join"
    )


def from_file(path: Path, *, create: bool) -> str:
    """The token in a file; without one, where `create`, the first process that comes writes it.

    Raises ValueError, with one line that says what to do.
    """
    try:
        if create and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            private.write(path, make().encode(), replace=False)
        token = private.read(path).decode().strip()
    except FileNotFoundError:
        raise ValueError(f"there is no token in {path}; correct token_file, or set OUTLAST_TOKEN") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ValueError(f"the token in {path} cannot be used ({why}): keep it in a directory of mode 0700") from error
    if len(token) < 16:
        raise ValueError(f"the token in {path} has {len(token)} characters; give it 16 or more")
    return token


class Record(msgspec.Struct, frozen=True):
    """A job whose coordinator this machine hosts. Its token is "" where the user has given one."""

    job: str
    endpoint: Endpoint
    token: str


def leave(record: Record) -> Path:
    """Put it where other processes of this user on this machine find it. Its coordinator removes the file."""
    path = _directory() / f"{_here()}-{record.endpoint.port}.job"
    private.write(path, msgspec.json.encode(record))
    return path


def remember_logs(directory: Path) -> None:
    """Note where the newest job on this machine keeps its logs, so that commands find them when it is over."""
    private.write(_directory() / LAST_LOGS, os.fsencode(directory.absolute()))


def last_logs() -> Path | None:
    """Where the newest job of this user on this machine has left its logs; None: nowhere, or they are gone."""
    try:
        path = Path(os.fsdecode(private.read(_directory() / LAST_LOGS)))
    except OSError:
        return None
    return path if path.is_dir() else None


def journal_of(port: int) -> Path:
    """Where the coordinator at this port of this machine keeps its journal, unless it is told otherwise."""
    return _directory() / f"{_here()}-{port}.journal"


def link_of(port: int) -> Path:
    """Where the page at this port of this machine leaves the link with its token."""
    return _directory() / f"{_here()}-{port}.dashboard"


def find(port: int) -> str | None:
    """The token of the job that listens on this port of this machine; None if this user has none there."""
    tokens = [record.token for record in records() if record.endpoint.port == port]
    return tokens[0] if tokens and tokens[0] else None


def records() -> list[Record]:
    """The jobs of this user whose coordinators this machine hosts (or hosted, if they were killed)."""
    found = []
    for path in sorted(_directory().glob(f"{_here()}-*.job")):
        try:
            found.append(msgspec.json.decode(private.read(path), type=Record))
        except (FileNotFoundError, *UNREADABLE):
            continue  # its job has just ended, or its disk was full
    return found


def _here() -> int:
    # Ports are numbered anew in every network namespace, the temporary directory is not.
    return proc.namespace("net")


def _directory() -> Path:
    """Where this user's processes on this machine leave files for each other."""
    plain = Path(tempfile.gettempdir()) / f"outlast-{os.getuid()}"
    try:
        private.make_directory(plain)
    except PermissionError as error:
        return _another(plain, error)
    return plain


def _another(plain: Path, reason: PermissionError) -> Path:
    """The name is taken, perhaps by another user who wants to keep this one from starting jobs: have another name.

    The one that was made first counts, so that all processes of this user find the same.
    """
    made = plain.with_name(f"{plain.name}-{time.time_ns():020d}-{secrets.token_hex(8)}")
    if not (ours := _beside(plain)):
        try:
            private.make_directory(made)
        except OSError as error:
            raise PermissionError(
                f"{plain} {reason.strerror}; and no other can be made beside it ({error.strerror}): "
                "set TMPDIR to a directory of yours"
            ) from error
        ours = _beside(plain)
    return ours[0]


def _beside(plain: Path) -> list[Path]:
    return [path for path in sorted(plain.parent.glob(f"{plain.name}-*")) if private.is_directory(path)]
