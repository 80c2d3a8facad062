"""What is done about ranks that are late: people are told, they are looked into, and the worst are ended.

Told first, to people and to the coordinator, and only then ended: what happens to others because of that comes after.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from outlast.agent.stacks import collect
from outlast.agent.watch import Hang
from outlast.board import Reading
from outlast.diagnosis.culprit import Observation, name
from outlast.diagnosis.stack import Stack
from outlast.messages import LONGEST_REASON, Failure

log = logging.getLogger("agent")

TO_END = 1.0  # seconds that a rank which hangs has to end after its signal, before SIGKILL
TO_LOOK = 2.0  # seconds, should it not keep to its own second

STATES = {"T": "it is stopped (SIGSTOP)", "t": "a debugger holds it", "D": "it is stuck in the kernel"}


def tell(hang: Hang, *, generation: int, rank: int, pid: int) -> None:
    """One line about a rank that is late: which, since when, by which rule, and what it was at."""
    since = time.localtime(time.time() - (hang.reading.read_at - hang.late.since))
    log.log(
        logging.ERROR if hang.verdict else logging.WARNING,
        "generation %d: rank %d (pid %d) %s since %s: %s%s",
        generation,
        rank,
        pid,
        "hangs" if hang.verdict else "seems to hang",
        time.strftime("%H:%M:%S", since),
        hang,
        "" if hang.verdict else "; it is left alone",
    )


async def stacks(pids: Mapping[int, int], *, given_up: bool) -> Mapping[int, Stack]:
    """Where the workers of these pids are, by rank; nothing where nobody can tell, or not in time.

    `given_up`: they are about to be ended, and may be disturbed.
    """
    try:
        return await asyncio.wait_for(collect(pids, interrupt=given_up), TO_LOOK)
    except (OSError, asyncio.TimeoutError) as error:
        log.warning("where the ranks hang could not be seen: %s", error or "it took too long")
        return {}


def sentence(
    node: str, first: int, readings: Mapping[int, Reading], stacks: Mapping[int, Stack], late: Collection[int]
) -> str:
    """Who it is that the others wait for, as far as one node's ranks tell."""
    seen = [
        Observation.of(first + r, node, reading, stacks.get(first + r), late=r in late)
        for r, reading in readings.items()
    ]
    return name(seen).sentence


def failure_of(hang: Hang, failure: Failure, stack: Stack | None = None) -> Failure:
    """A worker's failure, as that of one that hung and is ended for it."""
    ended = f"Hung: {hang}; ended with {signal.Signals(-failure.exit_code).name}"
    return replace(failure, hung=str(hang)[:LONGEST_REASON], message="\n  ".join([ended, *_lines(stack)]))


def _lines(stack: Stack | None) -> list[str]:
    """As a traceback: the innermost last."""
    if stack is None:
        return []
    frames = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in reversed(stack.frames)]
    state = [STATES[stack.state]] if stack.state in STATES else []
    return [*state, *(["It was at (most recent call last):"] if frames else []), *frames]


def patience(ending: signal.Signals) -> float:
    """How long a worker that was sent this signal may take to end."""
    return 0.0 if ending is signal.SIGKILL else TO_END
