"""Runs the workers of one generation after the other: starts them, hears of their ends, and sees that none is left."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from outlast.agent.driver import NodeDriver
from outlast.agent.monitoring.monitor import Monitor
from outlast.agent.monitoring.watch import Watch
from outlast.agent.output.logs import JobLogs
from outlast.agent.postmortem.investigation import Investigation
from outlast.agent.processes.guard import Guard
from outlast.agent.processes.in_place import InPlace
from outlast.agent.processes.memory_limits import MemoryLimits
from outlast.agent.processes.ports import StorePorts
from outlast.agent.processes.role_tasks import RoleTasks
from outlast.agent.processes.worker import Streams
from outlast.agent.processes.workers import WorkerGroup
from outlast.agent.snapshots.keeper import Keeper
from outlast.agent.warm_start.warming import Spawner
from outlast.core.node.inputs import Cleared, Event, Exited, Holds, Kept
from outlast.core.tasks.memory import GrowingMemory
from outlast.core.tasks.tasks import TaskAction, TaskDecision
from outlast.events.phrases import amount
from outlast.protocol.failures import Failure
from outlast.protocol.fields import sendable
from outlast.protocol.generations import Assignment
from outlast.protocol.in_place import STANDBY
from outlast.protocol.membership import State
from outlast.protocol.snapshots import Keeping
from outlast.system.tasks import Tasks
from outlast.workloads.workload import Attachments

log = logging.getLogger("agent")

STOP_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for tasks that are stopped while the job goes on or is done
NOT_STARTED = 126  # the exit code a shell gives to a command that it cannot execute


NOWHERE = Streams(None, None, "")  # but to the agent's own output
# What a process has no use for before it is in a generation. Without the store's port it cannot reach an old one.
_OF_A_GENERATION = ("MASTER_PORT", "OUTLAST_ARENA", "OUTLAST_BOARD", "OUTLAST_PARTNER", "TORCHELASTIC_ERROR_FILE")


def standby_environment(last: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that sets itself up before it knows its rank, by that of the one that died."""
    return {name: value for name, value in last.items() if name not in _OF_A_GENERATION} | {STANDBY: "1"}


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
        roles: RoleTasks | None = None,
        memory: GrowingMemory | None = None,
    ) -> None:
        self._driver, self._spawner, self._monitor, self._inquest = driver, spawner, monitor, inquest
        self._logs, self._ports, self._guard, self._keeper = logs, ports, guard, keeper
        self._offer, self._ending = offer, ending
        self._roles = roles  # of a job whose tasks are not alike
        self._memory, self._limits = memory or GrowingMemory(), MemoryLimits()
        self._offered = Attachments()
        self._over: WorkerGroup | None = None  # its tasks have done what the job is for: the rest is being stopped
        self._in_place = InPlace(in_place_timeout, stepped=monitor.stepped, counted=self._count_parked)
        # Where a stop fails nobody would ever hear that the workers are gone, and all would wait for this node.
        self._tasks = Tasks(driver.fail)
        self._opening: asyncio.Task[None] | None = None  # the logs of a generation whose workers start after that
        self._group: WorkerGroup | None = None
        self._finished: WorkerGroup | None = None  # all of its workers have succeeded; something of it may run on
        self._environments: list[dict[str, str]] = []  # of the last generation's workers

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers of the present generation, by local rank."""
        return self._group.pids if self._group is not None else ()

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
            if self._roles is not None:
                self._roles.begin()
            watch = self._monitor.begin(assignment)
            self._offered = self._offer(assignment, keeping)
            environments = [self._environment(assignment, r, watch) for r in range(self._spawner.launch.nproc)]
        except (OSError, ValueError) as error:
            self._abort(assignment, error)
            return
        self._opening = self._tasks.start(self._start(assignment, watch, environments))

    def _environment(self, assignment: Assignment, local_rank: int, watch: Watch) -> dict[str, str]:
        offered = replace(self._offered, board=watch.address(local_rank))
        if self._roles is not None:
            offered = self._roles.offered(local_rank, offered)
        return self._spawner.environment(assignment, local_rank, offered)

    async def _start(self, assignment: Assignment, watch: Watch, environments: list[dict[str, str]]) -> None:
        """The logs may be on a disk that takes its time. Whoever stops the generation meanwhile cancels this."""
        try:
            streams = await self._logs.open(assignment, environments)
            self._opening = None
            self._end_standby()
            parked = self._in_place.take(fresh=assignment.fresh)
            self._group = group = self._spawner.start(environments, streams, partial(self._exited, assignment), parked)
            self._environments = [dict(worker.environment) for worker in group.workers]
            # A restartable function that raises is as good as an exit, though its process goes on.
            self._in_place.begin(group, failed=partial(self._exited, assignment, exit_code=1))
            self._inquest.begin(assignment, watch, streams)
            self._guard.watch(group.pids)
            for local_rank, pid in enumerate(group.pids):
                self._limit(local_rank, pid)
            self._monitor.attend(group, self)
        except (OSError, ValueError) as error:
            self._opening = None
            self._abort(assignment, error)
            return
        last = assignment.first_rank + len(environments) - 1
        shown = f"rank {last}" if len(environments) == 1 else f"ranks {assignment.first_rank} to {last}"
        stayed = f", {len(group.restartable)} in place" if group.restartable else ""
        log.info("generation %d: started %s of %d%s", assignment.generation, shown, assignment.world_size, stayed)
        if self._roles is not None:
            self.feed(self._roles.news(assignment.generation))
        asyncio.get_running_loop().call_soon(self._inquest.prepare)

    def refill(self) -> None:
        """Start a process for each worker that died. They set themselves up, and wait for a generation."""
        waiting = {worker.local_rank for worker in self._in_place.parked}
        starting = {rank for group in self._in_place.standby for rank in group.alive}
        missing = set(range(len(self._environments))) - waiting - starting
        if self._group is not None or self._opening is not None or not missing:
            return
        environments = [standby_environment(each) for each in self._environments]
        try:
            group = self._spawner.start(environments, [NOWHERE] * len(environments), self._standby_ended, only=missing)
        except OSError as error:
            log.warning("cannot replace the workers that died: %s", error)
            return
        self._in_place.stand_by(group)
        shown = ", ".join(map(str, sorted(missing)))
        log.info("others go on: new processes for the local ranks that died (%s) are started beside them", shown)

    def _standby_ended(self, local_rank: int, pid: int, exit_code: int) -> None:
        if not self._in_place.standby:
            return  # we have ended it: the node is needed, or leaves
        log.warning(
            "the new process of local rank %d (pid %d) ended with exit code %d before its restartable function; "
            "another is started in a minute, or when this node is needed",
            local_rank,
            pid,
            exit_code,
        )

    def _end_standby(self) -> None:
        """Processes that are not set up by now are of no use: the generation has new ones."""
        for group in self._in_place.standby:
            self._tasks.start(group.stop(signal.SIGKILL, 0))

    def _count_parked(self) -> None:
        if self._group is None and (waiting := self._in_place.waiting) is not None:
            self.feed(Kept(waiting))

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
        self._end_standby()
        await self._in_place.close()
        self._unwatch()
        if self._roles is not None:
            self._roles.close()
        await self._tasks.wait()
        self._limits.close()

    @property
    def in_place_address(self) -> str:
        """Where workers say that they can be restarted in place."""
        return self._in_place.address

    def reap_orphans(self) -> None:
        for group in (self._group, self._finished, *self._in_place.standby):
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

    def judged(self, failure: Failure, *, oom_kills: int = 0) -> Failure:
        self._logs.drain()
        return self._inquest.judged(failure, first=not self._driver.node.current.failed, oom_kills=oom_kills)

    # -- their memory

    def _name(self, local_rank: int) -> str:
        return self._roles.names[local_rank] if self._roles is not None else f"worker-{local_rank}"

    def _limit(self, local_rank: int, pid: int) -> None:
        """Raises OSError where it cannot be limited."""
        slots = self._roles.table.slots if self._roles is not None else None
        most = slots[local_rank].memory if slots is not None else self._memory.of(local_rank)
        self._limits.put(self._name(local_rank), pid, most)

    def _grow(self, local_rank: int) -> None:
        if self._memory.grow(local_rank):
            now = amount(self._memory.of(local_rank))
            log.warning("local rank %d was killed at its memory limit: it restarts with %s", local_rank, now)
        else:
            log.warning("local rank %d was killed at its memory limit, and may not have more", local_rank)

    # -- how they end

    def _exited(self, assignment: Assignment, local_rank: int, pid: int, exit_code: int) -> None:
        if self._group is None or self._group is self._over:
            return  # it counts as not started, or as done
        current, generation = self._driver.node.current, assignment.generation
        hung = self._monitor.exited(local_rank)
        succeeded = self._spawner.workload.succeeded(exit_code)
        failure, killed = None, 0
        stopped = self._roles is not None and self._roles.table.slots[local_rank].state == "stopping"
        if not succeeded and not hung and not current.told_to_stop and not stopped:
            killed = self._limits.kills(self._name(local_rank))
            failure = self.judged(self._inquest.failure(local_rank, pid, exit_code), oom_kills=killed)
            if killed and self._roles is None:
                self._grow(local_rank)
        if self._roles is not None and not hung and current.runs(generation):
            decision = self._roles.table.ended(local_rank, succeeded=succeeded, out_of_memory=killed > 0)
            if self._decided(assignment, decision, failure):
                return
        self.feed(Exited(generation, failure, finished=assignment.first_rank + local_rank if succeeded else None))
        if self._group is None or self._group.alive:
            return
        if self._group.succeeded and current.state is State.RUNNING and not current.told_to_stop:
            self._finish(self._group, generation)
        else:
            self.stop(generation, 0)  # the children that workers may have left behind

    # -- tasks of a job with roles

    def _decided(self, assignment: Assignment, decision: TaskDecision, failure: Failure | None) -> bool:
        """Do what follows from the end of a task. Returns False where it is the end of the generation's workers."""
        group, roles = self._group, self._roles
        assert group is not None
        assert roles is not None
        action, generation = decision.action, assignment.generation
        if action is TaskAction.FAIL:
            return False
        if action is TaskAction.FINISH:
            if not decision.tasks:
                return False
            self._over = group
            self._tasks.start(self._stop_rest(group, generation))
        elif action is TaskAction.STOP:
            self._tasks.start(group.end_some(decision.tasks, self._ending(), STOP_GRACE))
        if failure is not None:
            self.feed(roles.relaunch(generation, failure, decision))
        elif action is not TaskAction.RELAUNCH:
            self.feed(roles.news(generation))
        for local_rank in decision.tasks if action is TaskAction.RELAUNCH else ():
            self._tasks.start(self._relaunch(group, assignment, local_rank))
        return True

    async def _relaunch(self, group: WorkerGroup, assignment: Assignment, local_rank: int) -> None:
        """Start the next life of a task, unless its generation has ended meanwhile."""
        roles, generation = self._roles, assignment.generation
        watch = self._monitor.watch
        assert roles is not None
        try:
            await group.clear(local_rank)
            if not self._goes_on(group, generation) or watch is None:
                return
            roles.table.relaunched(local_rank)
            environment = self._environment(assignment, local_rank, watch)
            streams = await self._logs.reopen(assignment, local_rank, environment)
            if not self._goes_on(group, generation):
                streams.close()
                return
            self._monitor.readmit(local_rank)
            self._spawner.restart(group, local_rank, environment, streams)
            self._limit(local_rank, group.pids[local_rank])
        except (OSError, ValueError) as error:
            log.error("%s", error)
            failure = self._inquest.failure(local_rank, pid=0, exit_code=NOT_STARTED, written=False)
            self.feed(Exited(generation, self.judged(replace(failure, message=sendable(str(error))))))
            return
        self._guard.watch(group.pids)
        log.info("generation %d: started %s again, life %d", generation, *roles.life(local_rank))
        self.feed(roles.news(generation))

    def _goes_on(self, group: WorkerGroup, generation: int) -> bool:
        return self._group is group and group is not self._over and self._driver.node.current.runs(generation)

    async def _stop_rest(self, group: WorkerGroup, generation: int) -> None:
        """The job is done: the tasks that would never end by themselves are stopped."""
        self._monitor.rest()
        await group.stop(signal.SIGTERM, STOP_GRACE)
        if self._group is group:
            self._ended(generation)

    async def _stopping(self, group: WorkerGroup, generation: int, grace: float, in_place: bool) -> None:
        await group.stop(self._ending(), grace, in_place=in_place)
        if self._group is group:
            self._in_place.keep(group)
            self._ended(generation, kept=self._in_place.waiting)
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

    def _ended(self, generation: int, *, kept: int | None = None) -> None:
        """No worker of it is alive but for those that are kept."""
        self._group = self._over = None
        self._unwatch()
        if self._roles is not None:
            self._roles.close()
        self._logs.finish()
        self._ports.release()
        self.feed(Holds(self._keeper.held()))
        self.feed(Cleared(generation, kept))

    def _unwatch(self) -> None:
        self._guard.watch(())
        self._inquest.end()
        self._monitor.end()
