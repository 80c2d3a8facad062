"""What is done about ranks that are late: people are told, the job is asked who makes it hang, and the worst are ended.

Told first, to people and to the coordinator, and only then ended: what happens to others because of that comes after.
Before anybody is ended, the coordinator compares the ranks of all nodes and names the one that the others wait for.
That takes as long as it takes to look, and never more than a second: then those who are late are ended without it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from outlast.agent.monitoring.stacks import collect
from outlast.agent.monitoring.watch import Hang, Watch
from outlast.agent.processes.workers import WorkerGroup
from outlast.core.node.inputs import Exited, Late, Observed
from outlast.diagnosis.culprit import name
from outlast.diagnosis.observation import Observation, told
from outlast.diagnosis.stack import Stack
from outlast.protocol.failures import Failure
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.generations import Assignment
from outlast.protocol.hangs import Named
from outlast.system.tasks import Tasks

log = logging.getLogger("agent")
T = TypeVar("T")

TO_END = 1.0  # seconds that a rank which hangs has to end after its signal, before SIGKILL
TO_LOOK = 0.7  # seconds, for the stacks of all ranks here
TO_NAME = 1.0  # seconds, from when a rank is found late, for the coordinator to say who it is
SPARED = 5.0  # seconds, for a rank that waits for another and can be restarted in place
FRESH = 0.5  # seconds for which what was seen is still true

STATES = {"T": "it is stopped (SIGSTOP)", "t": "a debugger holds it", "D": "it is stuck in the kernel"}


class HangOwner(Protocol):
    """Who hears of hangs, and knows what to make of a rank's end."""

    @property
    def connected(self) -> bool:
        """Whether a coordinator can be asked."""

    def feed(self, event: Late | Observed | Exited) -> None: ...

    def failure_of_hang(self, local_rank: int, pid: int, exit_code: int) -> Failure: ...

    def judged(self, failure: Failure) -> Failure:
        """With its cause, and what is to be done about it."""


class Hangs:
    """The ranks of one node that are late, in one generation. Its tasks end with `close`; the owner's group waits.

    hangs.late(found); hangs.look(number, interrupt=True); hangs.named(named); hangs.close()
    """

    def __init__(
        self,
        node: str,
        assignment: Assignment,
        group: WorkerGroup,
        watch: Watch,
        *,
        ending: signal.Signals | None,
        owner: HangOwner,
        tasks: Tasks,
    ) -> None:
        self.ended: set[int] = set()  # local ranks whose failure has been told, whatever they exit with
        self._node, self._generation, self._first = node, assignment.generation, assignment.first_rank
        self._alone = assignment.group_world_size == 1
        self._group, self._watch = group, watch
        self._ending = ending  # what a rank is ended with; None: nobody is
        self._owner, self._tasks = owner, tasks
        self._mine: list[asyncio.Task[Any]] = []
        self._looks: list[tuple[float, bool, asyncio.Task[Mapping[int, Stack]]]] = []
        self._named: asyncio.Future[Named] = asyncio.get_running_loop().create_future()
        self._late: dict[int, Hang] = {}

    def late(self, found: list[Hang]) -> None:
        """These ranks are newly late."""
        for hang in found:
            self._late[hang.local_rank] = hang
            tell(hang, generation=self._generation, rank=self._rank(hang), pid=self._group.pids[hang.local_rank])
        self._start(self._deal_with(found))

    def look(self, number: int, interrupt: bool) -> None:
        """The coordinator wants to know where the ranks are."""
        self._start(self._show(number, interrupt))

    def named(self, named: Named) -> None:
        """The coordinator says who it is. A culprit here is ended for it, also if none of its own clocks ran out."""
        if not self._named.done():
            self._named.set_result(named)
        for local_rank in sorted(self._group.alive):
            if self._first + local_rank in named.culprits:
                self._end(local_rank, named, self._stack(local_rank))

    def close(self) -> None:
        """The generation ends here: what was not said by now is not said any more."""
        for task in self._mine:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._tasks.start(work)
        self._mine = [*(each for each in self._mine if not each.done()), task]
        return task

    async def _deal_with(self, found: list[Hang]) -> None:
        """See where the ranks are, hear who it is that they wait for, and end those for which that is a verdict."""
        until = time.monotonic() + TO_NAME
        verdicts = [hang for hang in found if hang.verdict]
        if self._named.done():
            self._named = asyncio.get_running_loop().create_future()  # what was said before was about others
        look = self._begin_look(interrupt=True) if verdicts else None
        asked = self._owner.connected
        self._owner.feed(Late(self._generation, ending=bool(verdicts)))
        if asked and not verdicts:
            return  # the coordinator asks for what it needs, and says what it makes of it
        stacks = await _result(look or self._begin_look(interrupt=False), until)
        named = await self._verdict(until) if asked else None
        if named is None and self._alone and stacks:
            log.error("%s", name(self._observations(stacks)).sentence)
        spared = [hang for hang in verdicts if self._waits_and_can_leave(hang, named)]
        for hang in verdicts:
            if hang not in spared:
                self._end(hang.local_rank, named, stacks.get(self._rank(hang)))
        if spared:
            await asyncio.sleep(SPARED)  # by then this generation is over, and this task with it
        for hang in spared:
            self._end(hang.local_rank, named, stacks.get(self._rank(hang)))

    def _waits_and_can_leave(self, hang: Hang, named: Named | None) -> bool:
        """Whether it is late because of another rank, and will leave its function when that one is ended."""
        if named is None or not named.culprits or self._rank(hang) in named.culprits:
            return False
        return hang.local_rank in self._group.restartable

    async def _verdict(self, until: float) -> Named | None:
        named = self._named
        await asyncio.wait({named}, timeout=until - time.monotonic())
        return named.result() if named.done() else None

    async def _show(self, number: int, interrupt: bool) -> None:
        stacks = await _result(self._begin_look(interrupt), time.monotonic() + TO_NAME)
        self._owner.feed(Observed(self._generation, number, told(self._observations(stacks))))

    def _begin_look(self, interrupt: bool) -> asyncio.Task[Mapping[int, Stack]]:
        """Look at all ranks; or share a look that has just begun, if it is as thorough."""
        now = time.monotonic()
        self._looks = [look for look in self._looks if now - look[0] < FRESH]
        for _, interrupts, look in self._looks:
            if interrupts >= interrupt:
                return look
        pids = {self._first + r: self._group.pids[r] for r in self._group.alive}
        look = self._start(_look(pids, interrupt))
        self._looks.append((now, interrupt, look))
        return look

    def _stack(self, local_rank: int) -> Stack | None:
        """Where a rank was, by the last look that is complete."""
        done = (look.result() for _, _, look in reversed(self._looks) if look.done() and not look.cancelled())
        return next((seen[rank] for seen in done if (rank := self._first + local_rank) in seen), None)

    def _observations(self, stacks: Mapping[int, Stack]) -> list[Observation]:
        late = self._watch.late
        return [
            Observation.of(
                self._first + r, self._node, self._watch.reading(r), stacks.get(self._first + r), late=r in late
            )
            for r in sorted(self._group.alive)
        ]

    def _end(self, local_rank: int, named: Named | None, stack: Stack | None) -> None:
        if self._ending is None or local_rank in self.ended or local_rank not in self._group.alive:
            return
        self.ended.add(local_rank)
        failure = self._owner.failure_of_hang(local_rank, self._group.pids[local_rank], -self._ending)
        hang, reading = self._late.get(local_rank), self._watch.reading(local_rank)
        since = hang.late.since if hang is not None else reading.beat_at
        idle = reading.read_at - since if since is not None else 0.0
        failure = self._owner.judged(failure_of(failure, hang, named, stack, idle))
        self._owner.feed(Exited(self._generation, failure, patience(self._ending)))
        self._group.end(local_rank, self._ending)

    def _rank(self, hang: Hang) -> int:
        return self._first + hang.local_rank


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


def failure_of(
    failure: Failure, hang: Hang | None, named: Named | None, stack: Stack | None = None, idle: float = 0.0
) -> Failure:
    """A worker's failure, as that of one that hung and is ended for it.

    `hang`: which of its clocks ran out; `named`: whom the ranks wait for, which may be this one or another; `idle`:
    seconds that it has not moved.
    """
    hung = "; ".join([*([str(hang)] if hang else []), *([named.sentence] if named else [])])
    ended = f"Hung: {hung}; ended with {signal.Signals(-failure.exit_code).name}"
    return replace(
        failure,
        hung=hung[:LONGEST_REASON],
        message="\n  ".join([ended, *_lines(stack)]),
        culprit=named is not None and failure.rank in named.culprits,
        idle=max(0.0, idle),
    )


async def _look(pids: Mapping[int, int], interrupt: bool) -> Mapping[int, Stack]:
    """Where the workers of these pids are, by rank; nothing where nobody can tell.

    `interrupt`: they are about to be ended, and may be disturbed.
    """
    try:
        return await collect(pids, TO_LOOK, interrupt=interrupt)
    except OSError as error:
        log.warning("where the ranks hang could not be seen: %s", error)
        return {}


async def _result(look: asyncio.Task[Mapping[int, Stack]], until: float) -> Mapping[int, Stack]:
    """What a look has seen; nothing, if it does not come to an end in time."""
    await asyncio.wait({look}, timeout=until - time.monotonic())
    return look.result() if look.done() and not look.cancelled() else {}


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
