"""The verdict for people: what failed first, where, why, what was tried, and what to do. One screen, or JSON.

verdict = verdict_of(over)
print(verdict.text())
msgspec.json.encode(verdict)
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import wrap

import msgspec

from outlast.protocol.failures import Failure, Tried
from outlast.protocol.membership import Over
from outlast.tracebacks import condensed

WIDTH = 100
SHOWN_RANKS = 6  # of those that followed
SHOWN_TRIED = 6
SHOWN_TRACE = 14  # lines, and more where the user's own frames need them
SHOWN_TAIL = 8  # lines of the log
SHOWN_GPUS = 8  # lines about them


class First(msgspec.Struct, frozen=True, kw_only=True):
    """The failure that came first."""

    rank: int
    local_rank: int
    node: str
    host: str
    pid: int
    exit_code: int | None
    hung: bool = False  # and was ended for it
    at: str
    ran: float | None
    step: int | None
    exception: str
    message: str
    traceback: str
    log: str
    tail: tuple[str, ...]
    kernel: tuple[str, ...]
    gpus: tuple[str, ...] = ()


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Its cause, in the words of the catalogue."""

    name: str
    title: str
    domain: str
    outlook: str
    explain: str
    advice: str
    seen: str


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that came after it."""

    rank: int
    node: str
    later: float  # seconds
    cause: str
    title: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about a job that failed."""

    stopped: str
    first: First
    cause: Why
    followed: tuple[Followed, ...] = ()
    tried: tuple[Tried, ...] = ()

    def text(self) -> str:
        """For a terminal.

        The lines are ours alone: what a worker said cannot speak to the terminal from here.
        """
        lines = [line for part in self._parts() for line in part]
        rule = "-" * 60
        return "\n".join([rule, *(_printable(line) for line in lines), rule])

    def _parts(self) -> Iterator[list[str]]:
        first, cause = self.first, self.cause
        yield _part("failed first", [f"{_who(first)}: {_ended(first)}", _when(first)])
        retry = {"unknown": "whether a retry helps is unknown"}.get(cause.outlook, f"a retry {cause.outlook}")
        yield _part("cause", [f"{cause.title} ({cause.name}; {cause.domain}; {retry})", *_wrapped(cause.explain)])
        yield _part("seen", [*first.kernel[:2], *([cause.seen] if cause.seen not in first.kernel else [])])
        yield _part("GPUs", list(first.gpus[:SHOWN_GPUS]))
        yield _part("after it", _followed(self.followed))
        yield _part("tried", _tried(self.tried))
        yield _part("stopped", _wrapped(self.stopped))
        yield _part("what to do", _wrapped(cause.advice))
        yield _part("traceback", condensed(first.traceback, SHOWN_TRACE).rstrip().splitlines())
        yield _part("last lines", [] if first.traceback else list(first.tail[-SHOWN_TAIL:]))
        yield _part("log", [first.log] if first.log else [])


def verdict_of(over: Over) -> Verdict | None:
    """The verdict on a job that ended like this; None, where nothing failed."""
    if over.success or not over.failures:
        return None
    root, *rest = over.failures
    account = root.account
    return Verdict(
        stopped=over.reason,
        first=First(
            rank=root.rank,
            local_rank=root.local_rank,
            node=root.node,
            host=root.host,
            pid=root.pid,
            exit_code=root.exit_code,
            hung=bool(root.hung),
            at=moment(root.at),
            ran=account.ran,
            step=account.step,
            exception=account.exception,
            message=account.said,
            traceback=account.traceback or _recorded(root),
            log=account.log,
            tail=account.tail,
            kernel=account.kernel,
            gpus=account.gpus,
        ),
        cause=_why(root),
        followed=tuple(_later(each, root) for each in rest),
        tried=over.tried,
    )


def _recorded(failure: Failure) -> str:
    """The traceback in a failure's message; of a hang the stack, whose first line says what the verdict says anyway."""
    if "\n" not in failure.message:
        return ""
    return failure.message.partition("\n")[2] if failure.hung else failure.message


def _why(failure: Failure) -> Why:
    cause = failure.cause
    if cause is None:
        return Why(name="unknown", title="unknown", domain="", outlook="unknown", explain="", advice="", seen="")
    return Why(
        name=cause.name,
        title=cause.title,
        domain=cause.domain,
        outlook=cause.outlook,
        explain=cause.explain,
        advice=cause.advice,
        seen=cause.seen,
    )


def _later(failure: Failure, root: Failure) -> Followed:
    cause = failure.cause
    return Followed(
        rank=failure.rank,
        node=failure.node,
        later=failure.clock - root.clock if failure.clock and root.clock else failure.at - root.at,
        cause=cause.name if cause is not None else "unknown",
        title=cause.title if cause is not None else "unknown",
    )


def _who(first: First) -> str:
    where = f"node {first.node}" if first.node in ("", first.host) else f"node {first.node} (host {first.host})"
    return f"rank {first.rank} on {where}"


def _ended(first: First) -> str:
    code = first.exit_code
    if first.hung:
        return "hung, and was killed"
    if first.exception:
        said = " ".join(first.message.split())
        return f"{first.exception}: {said[:WIDTH]}" if said else first.exception
    if code is None:
        return "its exit code is unknown"
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code} ({next((each.name for each in signal.Signals if each == -code), 'unknown')})"


def _when(first: First) -> str:
    parts = [f"at {first.at}"]
    if first.ran is not None:
        parts.append(f"{first.ran:.1f} s after its start")
    if first.step is not None:
        parts.append(f"after step {first.step}")
    elif first.ran is not None:
        parts.append("no step known")
    return ", ".join(parts)


def _followed(followed: Sequence[Followed]) -> list[str]:
    lines = [
        f"rank {each.rank} on node {each.node}, {max(each.later, 0.0):.1f} s later: {each.title}"
        for each in followed[:SHOWN_RANKS]
    ]
    more = len(followed) - SHOWN_RANKS
    return [*lines, *([f"and {more} more"] if more > 0 else [])]


def _tried(tried: Sequence[Tried]) -> list[str]:
    def line(each: Tried) -> str:
        step = f" at step {each.step}" if each.step is not None else ""
        return f"generation {each.generation}: rank {each.rank} on node {each.node}{step}: {each.title}; {each.did}"

    if len(tried) <= SHOWN_TRIED:
        return [line(each) for each in tried]
    half = SHOWN_TRIED // 2
    left_out = f"… {len(tried) - 2 * half} more …"
    return [*map(line, tried[:half]), left_out, *map(line, tried[-half:])]


def _part(title: str, lines: Sequence[str]) -> list[str]:
    margin = " " * 14
    return [f"{title + ':':13} {line}" if index == 0 else margin + line for index, line in enumerate(lines) if line]


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH)


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else " " if char == "\t" else ascii(char)[1:-1] for char in line)


def moment(at: float) -> str:
    """A time as people have it here."""
    return datetime.fromtimestamp(at).isoformat(sep=" ", timespec="seconds")  # noqa: DTZ006  (as the summary has it)
