"""Runs the workers of one generation after the other: starts them, hears of their ends, and sees that none is left."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from outlast.agent.driver import NodeDriver
from outlast.agent.monitoring.monitor import Monitor
from outlast.agent.monitoring.watch import Watch
from outlast.agent.output.logs import JobLogs
from outlast.agent.postmortem.investigation import Investigation
from outlast.agent.processes.guard import Guard
from outlast.agent.processes.in_place import InPlace
from outlast.agent.processes.ports import StorePorts
from outlast.agent.processes.workers import WorkerGroup
from outlast.agent.snapshots.keeper import Keeper
from outlast.agent.warm_start.warming import Spawner
from outlast.core.node.inputs import Cleared, Event, Exited, Holds
from outlast.protocol.failures import Failure
from outlast.protocol.fields import sendable
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import State
from outlast.protocol.snapshots import Keeping
from outlast.system.tasks import Tasks
from outlast.workloads.workload import Attachments

log = logging.getLogger("agent")

NOT_STARTED = 126  # the exit code a shell gives to a command that it cannot execute


class WorkerRunner:
    """The workers of one node, over its generations.

    `offer` prepares what a generation's workers find on this node; `ending` is the signal that asks them to end.
    """

    def __init__(
        self,
        driver: NodeDriver,
        spawner: Spawner,
        monitor: Monitor,
        inquest: Investigation,
        *,
        logs: JobLogs,
        ports: StorePorts,
        guard: Guard,
        keeper: Keeper,
        in_place_timeout: float,
        offer: Callable[[Assignment, Keeping], Attachments],
        ending: Callable[[], signal.Signals],
    ) -> None:
        self._driver, self._spawner, self._monitor, self._inquest = driver, spawner, monitor, inquest
        self._logs, self._ports, self._guard, self._keeper = logs, ports, guard, keeper
        self._offer, self._ending = offer, ending
        self._in_place = InPlace(in_place_timeout, stepped=monitor.stepped)
        # Where a stop fails nobody would ever hear that the workers are gone, and all would wait for this node.
        self._tasks = Tasks(driver.fail)
        self._opening: asyncio.Task[None] | None = None  # the logs of a generation whose workers start after that
        self._group: WorkerGroup | None = None
        self._finished: WorkerGroup | None = None  # all of its workers have succeeded; something of it may run on

    def start(self, assignment: Assignment, keeping: Keeping) -> None:
        """Start the workers of a generation."""
        if assignment.fresh:
            self._spawner.refresh()
        if self._finished is not None:  # others have not: what is left of that generation ends before the next one
            self._tasks.start(self._finished.stop(signal.SIGKILL, 0))
            self._finished = None
        try:
            if assignment.group_rank == 0:
                self.take_port()
            watch = self._monitor.begin(assignment)
            environments = self._spawner.environments(assignment, self._offer(assignment, keeping), watch.address)
        except (OSError, ValueError) as error:
            self._abort(assignment, error)
            return
        self._opening = self._tasks.start(self._start(assignment, watch, environments))

    async def _start(self, assignment: Assignment, watch: Watch, environments: list[dict[str, str]]) -> None:
        """The logs may be on a disk that takes its time. Whoever stops the generation meanwhile cancels this."""
        try:
            streams = await self._logs.open(assignment, environments)
            self._opening = None
            parked = self._in_place.take(fresh=assignment.fresh)
            self._group = group = self._spawner.start(environments, streams, partial(self._exited, assignment), parked)
            # A restartable function that raises is as good as an exit, though its process goes on.
            self._in_place.begin(group, failed=partial(self._exited, assignment, exit_code=1))
            self._inquest.begin(assignment, watch, streams)
            self._guard.watch(group.pids)
            self._monitor.attend(group, self)
        except (OSError, ValueError) as error:
            self._opening = None
            self._abort(assignment, error)
            return
        last = assignment.first_rank + len(environments) - 1
        shown = f"rank {last}" if len(environments) == 1 else f"ranks {assignment.first_rank} to {last}"
        stayed = f", {len(group.restartable)} in place" if group.restartable else ""
        log.info("generation %d: started %s of %d%s", assignment.generation, shown, assignment.world_size, stayed)
        asyncio.get_running_loop().call_soon(self._inquest.prepare)

    def _abort(self, assignment: Assignment, error: Exception) -> None:
        log.error("%s", error)
        started, self._group = self._group, None
        self._unwatch()
        self._tasks.start(self._not_started(assignment, str(error), started))

    async def _not_started(self, assignment: Assignment, why: str, group: WorkerGroup | None) -> None:
        if group is not None:  # they live, and cannot be watched
            await group.stop(signal.SIGKILL, 0)
        self._inquest.begin(assignment)
        failure = self._inquest.failure(local_rank=0, pid=0, exit_code=NOT_STARTED, written=False)
        self.feed(Exited(assignment.generation, self.judged(replace(failure, message=sendable(why)))))
        self.feed(Cleared(assignment.generation))

    def take_port(self) -> None:
        """Rank 0 takes the port that was promised; the next generation gets another."""
        self._ports.take()
        self._driver.node.state.store_port = self._ports.promised

    def stop(self, generation: int, grace: float, *, in_place: bool = False) -> None:
        """End the workers that live, with their children; `in_place`: those that can leave the generation stay."""
        if self._opening is not None:  # there are none yet
            self._opening.cancel()
            self._opening = None
            asyncio.get_running_loop().call_soon(self._ended, generation)
        if self._group is not None:
            self._monitor.rest()
            self._tasks.start(self._stopping(self._group, generation, grace, in_place))

    async def close(self) -> None:
        """End what is left, at once."""
        if self._opening is not None:
            self._opening.cancel()
        if (group := self._group) is not None:
            await group.stop(signal.SIGKILL, 0)
            if self._group is group:  # else a stop that was under way has kept them
                self._in_place.keep(group)
        if self._finished is not None:
            self._finished.reap()
        await self._in_place.close()
        self._unwatch()
        await self._tasks.wait()

    @property
    def in_place_address(self) -> str:
        """Where workers say that they can be restarted in place."""
        return self._in_place.address

    def reap_orphans(self) -> None:
        for group in (self._group, self._finished):
            if group is not None:
                group.reap_orphans()

    # -- for those who end ranks that hang

    @property
    def connected(self) -> bool:
        return self._driver.node.state.conversation.connected

    def feed(self, event: Event) -> None:
        self._driver.feed(event)

    def failure_of_hang(self, local_rank: int, pid: int, exit_code: int) -> Failure:
        return self._inquest.failure(local_rank, pid, exit_code, written=False)

    def judged(self, failure: Failure) -> Failure:
        self._logs.drain()
        return self._inquest.judged(failure, first=not self._driver.node.current.failed)

    # -- how they end

    def _exited(self, assignment: Assignment, local_rank: int, pid: int, exit_code: int) -> None:
        if self._group is None:
            return  # it counts as not started
        current, generation = self._driver.node.current, assignment.generation
        hung = self._monitor.exited(local_rank)
        succeeded = self._spawner.workload.succeeded(exit_code)
        failure = None
        if not succeeded and not hung and not current.told_to_stop:
            failure = self.judged(self._inquest.failure(local_rank, pid, exit_code))
        self.feed(Exited(generation, failure, finished=assignment.first_rank + local_rank if succeeded else None))
        if self._group is None or self._group.alive:
            return
        if self._group.succeeded and current.state is State.RUNNING and not current.told_to_stop:
            self._finish(self._group, generation)
        else:
            self.stop(generation, 0)  # the children that workers may have left behind

    async def _stopping(self, group: WorkerGroup, generation: int, grace: float, in_place: bool) -> None:
        await group.stop(self._ending(), grace, in_place=in_place)
        if self._group is group:
            self._in_place.keep(group)
            self._ended(generation)
            self._keeper.ended()

    def _finish(self, group: WorkerGroup, generation: int) -> None:
        """All workers have succeeded: what they left in the background, an upload say, runs on as under torchrun."""
        if background := group.background():
            pids = ", ".join(map(str, background))
            log.info("generation %d: what workers started in the background runs on: pid %s", generation, pids)
        self._finished = group
        self._ended(generation)
        level = logging.INFO if self._spawner.launch.max_nodes > 1 else logging.DEBUG  # one alone has no such news
        log.log(level, "generation %d: every worker here has finished", generation)

    def _ended(self, generation: int) -> None:
        """No worker of it is alive."""
        self._group = None
        self._unwatch()
        self._logs.finish()
        self._ports.release()
        self.feed(Holds(self._keeper.held()))
        self.feed(Cleared(generation))

    def _unwatch(self) -> None:
        self._guard.watch(())
        self._inquest.end()
        self._monitor.end()
