"""Failed workers in words: from the error files that torch's `@record` writes to torchrun's summary of them."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from outlast.protocol.failures import Failure
from outlast.protocol.fields import sendable

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "<N/A>"
ERROR_LIMIT = 64 * 1024  # characters of error text that a failure carries over the wire

_FILE_LIMIT = 16 * 1024 * 1024  # a file larger than this is no error file
_WIDEST = 60
_NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def seen_failure(*, node: str, host: str, rank: int, local_rank: int, pid: int, exit_code: int, at: float) -> Failure:
    """The failure of a worker that exited with `exit_code`, as its agent saw it. `at` is when the exit was seen."""
    name = _signal_name(exit_code)
    return Failure(
        node=node,
        host=host,
        rank=rank,
        local_rank=local_rank,
        pid=pid,
        exit_code=exit_code,
        at=at,
        message=f"Signal {-exit_code} ({name}) received by PID {pid}" if exit_code < 0 else _NO_TRACEBACK,
        error_file=NOT_AVAILABLE,
    )


def read_error_file(failure: Failure, error_file: str) -> Failure:
    """The failure with what the worker left in its error file, which knows better when the error happened.

    A missing, truncated or foreign error file takes nothing away from the rest. Blocks, while its disk does.
    """
    if not Path(error_file).is_file():
        return failure
    failure = replace(failure, error_file=sendable(error_file))
    data = _read_error(error_file)
    if data is None:
        return failure
    # Half of a surrogate pair, which Python makes of bytes that are no text, cannot go over the wire.
    message = sendable(_clip(_display(data), ERROR_LIMIT))
    at = _happened(data, error_file, failure.at)
    return replace(failure, message=message or failure.message, error=_bounded_json(data), at=at)


def root_failure(failures: Sequence[Failure]) -> Failure:
    """The failure that came first, for the others are mostly its consequences; of hangs, the one all waited for."""
    first = min(failures, key=lambda failure: failure.at)
    return next((failure for failure in failures if failure.culprit), first) if first.hung else first


def failure_summary(entrypoint: str, failures: Sequence[Failure]) -> str:
    """What torchrun prints when workers failed, to the letter: tools and people look for it."""
    root = root_failure(failures)
    title = f"{entrypoint} FAILED"
    sections = {index: _section(index, failure) for index, failure in enumerate(failures)}
    lines = [title, *"\n".join(sections.values()).split("\n")]
    width = min(max(map(len, lines)), _WIDEST)
    cause = sections.pop(next(index for index, failure in enumerate(failures) if failure is root))
    return "\n".join(
        [
            "",
            "=" * width,
            title,
            "-" * width,
            "Failures:",
            *(sections.values() or ["  <NO_OTHER_FAILURES>"]),
            "-" * width,
            "Root Cause (first observed failure):",
            cause,
            "=" * width,
        ]
    )


def forward_error_file(root: Failure, environ: Mapping[str, str]) -> None:
    """Hand the root failure on to whoever started the launcher, if they named an error file for it.

    As torch's `@record` does on torchrun's main: the root's own error file, with its exit code put in.
    """
    target = environ.get("TORCHELASTIC_ERROR_FILE")
    if not target or not root.error:
        return
    data = json.loads(root.error)
    if root.exit_code and isinstance(data.get("message"), dict):
        data["message"]["errorCode"] = root.exit_code
    try:
        Path(target).write_text(json.dumps(data))
    except OSError as problem:
        logger.warning("cannot write the launcher's error file %s: %s", target, problem.strerror)


def _section(index: int, failure: Failure) -> str:
    name = _signal_name(failure.exit_code)
    signal_part = f" ({name})" if name != NOT_AVAILABLE else ""
    # The summary shows the launcher's local time without a zone, as torchrun does.
    time = datetime.fromtimestamp(int(failure.at)).isoformat(sep="_")  # noqa: DTZ006
    return "\n".join(
        [
            f"[{index}]:",
            f"  time      : {time}",
            f"  host      : {failure.host}",
            f"  rank      : {failure.rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exit_code} (pid: {failure.pid}) {signal_part}",
            f"  error_file: {failure.error_file}",
            f"  traceback : {failure.message}",
        ]
    )


def _signal_name(exit_code: int) -> str:
    if exit_code >= 0:
        return NOT_AVAILABLE
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return NOT_AVAILABLE


def _read_error(path: str) -> dict[str, Any] | None:
    """What the worker recorded, or None if that cannot be read: it may have been killed while it wrote."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_FILE_LIMIT + 1)
        if len(raw) > _FILE_LIMIT:
            raise ValueError(f"more than {_FILE_LIMIT} bytes")
        data = json.loads(raw.decode(errors="replace"))
    except (OSError, ValueError, RecursionError) as problem:
        logger.warning("the error file %s tells nothing: %s", path, problem)
        return None
    if not isinstance(data, dict) or not isinstance(data.get("message"), (str, dict)):
        logger.warning("the error file %s tells nothing: it is not in the format of torch's @record", path)
        return None
    return data


def _display(data: dict[str, Any]) -> str:
    """The text that torchrun shows: a traceback is indented below its field, a plain message stays as it is."""
    message = data["message"]
    if isinstance(message, str):
        return message
    text = _extra(data).get("py_callstack", message.get("message", NOT_AVAILABLE))
    return str(text).replace("\n", "\n  ")


def _happened(data: dict[str, Any], path: str, seen: float) -> float:
    """When the error was recorded.

    torch writes whole seconds; the file's own time has the rest, which is what orders failures that
    follow one another within a second.
    """
    source = data if isinstance(data["message"], str) else _extra(data)
    try:
        second = int(source["timestamp"])
        datetime.fromtimestamp(second)  # noqa: DTZ006  (out of range: not a time)
        return max(float(second), min(Path(path).stat().st_mtime, second + 0.999))
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return seen


def _extra(data: dict[str, Any]) -> dict[str, Any]:
    extra = data["message"].get("extraInfo")
    return extra if isinstance(extra, dict) else {}


def _bounded_json(data: dict[str, Any]) -> str:
    """The error file's JSON, still JSON when it had to be cut to the limit."""
    text, room = json.dumps(data), ERROR_LIMIT
    while len(text) > ERROR_LIMIT:
        room //= 2  # how much escapes add to a text is only known afterwards
        text = json.dumps(_cut(data, room))
    return text


def _cut(data: dict[str, Any], room: int) -> dict[str, Any]:
    message = data["message"]
    if isinstance(message, str):
        return {"message": _clip(message, room), "timestamp": str(data.get("timestamp", 0))[:32]}
    extra = {
        "py_callstack": _clip(str(_extra(data).get("py_callstack", "")), room),
        "timestamp": str(_extra(data).get("timestamp", 0))[:32],
    }
    return {"message": {"message": _clip(str(message.get("message", "")), room), "extraInfo": extra}}


def _clip(text: str, limit: int) -> str:
    """Keep the beginning and, most of all, the end: that is where a traceback names its error."""
    if len(text) <= limit:
        return text
    head, tail = limit // 4, limit // 2
    return f"{text[:head]}\n… {len(text) - head - tail} characters omitted …\n{text[-tail:]}"
