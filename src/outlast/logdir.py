"""A log directory read as evidence: torchrun's layout, which is ours as well.

    LOGDIR/<job>_<random>/attempt_<n>/<local rank>/{stdout.log, stderr.log, error.json}

Each node makes a directory of its own, so several of one job are its nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from outlast.agent.postmortem.evidence import named, tail
from outlast.diagnosis.cause import Diagnosis, Finding
from outlast.diagnosis.evidence import Evidence
from outlast.protocol.fields import UNREADABLE
from outlast.verdict import First, Followed, Verdict, Why, moment

VERDICT = "verdict.json"
RANDOM = len("_abcdefgh")  # which each node adds to the job's name
ERRORS = 1 << 24  # bytes: a larger file is no error file
TRACEBACK = "Traceback (most recent call last):"


class NothingFailed(Exception):
    """The logs show no failure. The message says what was looked at."""


class LogDir(msgspec.Struct, frozen=True):
    """What a log directory says."""

    attempt: str
    evidence: tuple[Evidence, ...] = ()
    files: dict[int, str] = {}  # the log of each evidence, by its place
    verdict: Verdict | None = None  # the one that Outlast left there: it has seen more than logs can tell


def read(path: Path) -> LogDir:
    """The last attempt of the newest job in there. Raises ValueError in one line, and `NothingFailed`."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a directory: give the --log-dir of the job")
    attempts = _attempts(path)
    if not attempts:
        raise ValueError(f"{path} holds no attempt_0 or the like: give the --log-dir of the job, or a directory in it")
    last = max(_number(each) for each in attempts)
    attempts = [each for each in attempts if _number(each) == last]
    told = [each.parent / VERDICT for each in attempts if (each.parent / VERDICT).is_file()]
    if told:
        return LogDir(f"attempt {last}", verdict=_left(told[0]))
    found = [pair for attempt in attempts for pair in _workers(attempt)]
    if not found:
        where = ", ".join(map(str, attempts))
        raise NothingFailed(f"nothing in the logs of {where} says that a worker failed")
    return LogDir(
        f"attempt {last}",
        tuple(evidence for evidence, _ in found),
        {index: file for index, (_, file) in enumerate(found)},
    )


def verdict_on(logs: LogDir, diagnosis: Diagnosis) -> Verdict:
    """What they say, in the form of a job's own verdict."""
    root = diagnosis.root
    seen, cause = root.evidence, root.cause
    index = next(index for index, each in enumerate(logs.evidence) if each is seen)
    return Verdict(
        stopped=f"the logs of {logs.attempt} end here",
        first=First(
            rank=seen.rank,
            local_rank=seen.rank,
            node=seen.node,
            host=seen.node,
            pid=0,
            exit_code=seen.exit_code,
            at=moment(seen.at),
            ran=None,
            step=None,
            exception=seen.exception,
            message=seen.message,
            traceback=seen.traceback,
            log=logs.files[index],
            tail=seen.log[-20:],
            kernel=(),
        ),
        cause=Why(
            name=cause.name,
            title=cause.title,
            domain=cause.domain.value,
            outlook=cause.outlook.value,
            explain=cause.explain,
            advice=cause.advice,
            seen=cause.seen,
        ),
        followed=tuple(_later(each, root) for each in diagnosis.cascade),
    )


def _later(finding: Finding, root: Finding) -> Followed:
    seen = finding.evidence
    later = seen.at - root.evidence.at
    return Followed(rank=seen.rank, node=seen.node, later=later, cause=finding.cause.name, title=finding.cause.title)


def _attempts(path: Path) -> list[Path]:
    """All attempts of one job: of the newest, where there are several."""
    if path.name.startswith("attempt_"):
        return [path]
    jobs: dict[str, list[Path]] = {}
    for attempt in (*path.glob("attempt_*"), *path.glob("*/attempt_*"), *path.glob("*/*/attempt_*")):
        if attempt.is_dir() and attempt.name.removeprefix("attempt_").isdecimal():
            jobs.setdefault(attempt.parent.name[:-RANDOM], []).append(attempt)
    return max(jobs.values(), key=lambda all_of: max(each.stat().st_mtime for each in all_of), default=[])


def _number(attempt: Path) -> int:
    return int(attempt.name.removeprefix("attempt_"))


def _left(path: Path) -> Verdict:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Verdict)
    except (OSError, *UNREADABLE) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove it to have the logs themselves read") from None


def _workers(attempt: Path) -> Iterator[tuple[Evidence, str]]:
    """Those of an attempt that say that they failed, each with the log to look into."""
    places = [each for each in attempt.iterdir() if each.name.isdecimal() and each.is_dir()]
    for place in sorted(places, key=lambda each: int(each.name)):
        logs = [place / name for name in ("stdout.log", "stderr.log") if (place / name).is_file()]
        lines = tuple(line for log in logs for line in tail(log))
        error = _error(place / "error.json")
        exception, message, trace, at, code = error or (*_printed(lines), _last_change(logs), None)
        if error is None and not exception and not _telling(lines):
            continue
        evidence = Evidence(
            rank=int(place.name),
            node=attempt.parent.name,
            at=at,
            exit_code=code,
            exception=exception,
            message=message,
            traceback=trace,
            log=lines,
        )
        yield evidence, str(logs[-1] if logs else place / "error.json")


def _error(path: Path) -> tuple[str, str, str, float, int | None] | None:
    try:
        if path.stat().st_size > ERRORS:
            return None
        content = json.loads(path.read_bytes().decode(errors="replace"))["message"]
        changed = path.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(content, dict):
        return (*named(str(content)), "", changed, None)
    extra = content.get("extraInfo")
    trace = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    code = content.get("errorCode")
    exception, message = named(str(content.get("message", "")))
    return exception, message, trace, changed, code if isinstance(code, int) else None


def _printed(lines: tuple[str, ...]) -> tuple[str, str, str]:
    """The last traceback in a log: type, message, and all of it."""
    starts = [index for index, line in enumerate(lines) if line.endswith(TRACEBACK)]
    if not starts:
        return "", "", ""
    margin = lines[starts[-1]].removesuffix(TRACEBACK)  # "[rank3]: ", as torch has it
    block = [lines[starts[-1]].removeprefix(margin)]
    for line in lines[starts[-1] + 1 :]:
        text = line.removeprefix(margin)
        block.append(text)
        if not text.startswith(" "):
            break
    exception, message = named(block[-1])
    return exception, message, "\n".join(block)


def _telling(lines: tuple[str, ...]) -> bool:
    from outlast.signatures import catalogue

    return bool(catalogue().narrowed(lines).search(lines))


def _last_change(logs: list[Path]) -> float:
    return max((log.stat().st_mtime for log in logs), default=0.0)
