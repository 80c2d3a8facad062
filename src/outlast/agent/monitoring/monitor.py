"""The workers of a generation as their board shows them: who is late, who asks for something, how they get on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from outlast.agent.driver import NodeDriver
from outlast.agent.monitoring.hangs import HangOwner, Hangs
from outlast.agent.monitoring.pace import Pacing
from outlast.agent.monitoring.training import TrainingLooks
from outlast.agent.monitoring.watch import Hang, Limits, Watch
from outlast.agent.processes.workers import WorkerGroup
from outlast.board.readings import Action, Request
from outlast.core.node.commands import Agree, ForMonitor, HaltWorkers, Observe, TakeMeasures
from outlast.core.node.inputs import Halting, Leave, Measured, Paced, Trained, Wished
from outlast.core.stragglers.pace import interval
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import Leaving, State, Wanted, Wish
from outlast.settings.settings import Settings
from outlast.settings.values import termination_signal
from outlast.system.tasks import Tasks

log = logging.getLogger("agent")


class Monitor:
    """Of one node, for one generation at a time. `rung` is called when a worker has left something in the arena.

    watch = monitor.begin(assignment)    # before the workers are started
    monitor.attend(group, owner)         # once they live
    monitor.end()
    """

    def __init__(
        self,
        node: str,
        nproc: int,
        settings: Settings,
        driver: NodeDriver,
        tasks: Tasks,
        *,
        rung: Callable[[], None],
        trainers: Sequence[int] | None = None,
    ) -> None:
        self._node, self._nproc, self._settings = node, nproc, settings
        self._trainers = range(nproc) if trainers is None else trainers  # whose steps are the job's
        self._driver, self._tasks = driver, tasks
        self._rung = rung
        self._limits = Limits.of(settings)
        self._longest: Mapping[str, float] = {}  # as all ranks of the job have measured it
        self._told_unentered = False  # of sections with a timeout
        self._assignment: Assignment | None = None
        self._watch: Watch | None = None
        self._hangs: Hangs | None = None
        self._pacing: Pacing | None = None
        self._training: TrainingLooks | None = None

    def begin(self, assignment: Assignment) -> Watch:
        self._assignment = assignment
        self._watch = Watch(
            self._nproc,
            self._limits,
            late=self._late,
            asked=self._asked,
            calibrate=self._measured,
            rung=self._heard,
            longest=self._longest,
        )
        return self._watch

    def attend(self, group: WorkerGroup, owner: HangOwner) -> None:
        """The workers live: from now on they can be late."""
        assignment, watch = self._assignment, self._watch
        assert assignment is not None
        assert watch is not None
        ending = termination_signal(self._settings.rank_termination_signal)
        self._hangs = Hangs(
            self._node,
            assignment,
            group,
            watch,
            ending=ending if self._limits.detection == "on" else None,
            owner=owner,
            tasks=self._tasks,
        )
        # Also where nobody is compared: whoever watches the job sees its step and pace.
        self._pacing = Pacing(
            watch.totals,
            first_rank=assignment.first_rank,
            nproc=self._nproc,
            nodes=assignment.group_world_size,
            tell=lambda paces: self._driver.feed(Paced(assignment.generation, paces)),
        )
        self._training = TrainingLooks(
            watch.totals,
            generation=assignment.generation,
            ranks=self._trainers,
            every=interval(assignment.group_world_size),
            tell=lambda training: self._driver.feed(Trained(training)),
        )
        watch.begin()

    def end(self) -> None:
        """Look no more: the workers are gone."""
        if self._training is not None:
            self._training.close()
            self._training = None
        if self._pacing is not None:
            self._pacing.close()
            self._pacing = None
        if self._hangs is not None:
            self._hangs.close()
            self._hangs = None
        if self._watch is not None:
            self._tell_unentered(self._watch.sections())
            self._watch.close()
            self._watch = None

    @property
    def watch(self) -> Watch | None:
        """The board of the workers that are watched."""
        return self._watch

    def exited(self, local_rank: int) -> bool:
        """A worker has ended. Returns whether it was ended for a hang: then its failure has been told."""
        if self._watch is not None:
            self._watch.exited(local_rank)  # before it counts as a failure: it may have said what to do about it
        return self._hangs is not None and local_rank in self._hangs.ended

    def readmit(self, local_rank: int) -> None:
        """Another process takes the place of one that has ended."""
        if self._watch is not None:
            self._watch.readmit(local_rank)
        if self._training is not None and local_rank in self._trainers:
            self._training.restart()

    def stepped(self, local_rank: int) -> bool:
        """Whether this worker has made a step in its generation."""
        return self._watch is not None and self._watch.reading(local_rank).step is not None

    def rest(self) -> None:
        """The workers are being ended."""
        if self._watch is not None:
            self._watch.rest()

    def awoke(self) -> None:
        """This process was held up."""
        if self._watch is not None:
            self._watch.awoke()

    def carry_out(self, command: ForMonitor) -> None:
        if isinstance(command, TakeMeasures):
            self._measured(command.round)
        elif isinstance(command, Agree):
            self._longest = command.longest
            if self._watch is not None:
                self._watch.agree(command.longest)
        elif isinstance(command, HaltWorkers):
            if self._watch is not None:
                self._watch.halt(command.at, command.durable)
                self._halting()
        elif self._hangs is not None:
            if isinstance(command, Observe):
                self._hangs.look(command.number, command.interrupt)
            else:
                self._hangs.named(command.named)

    def _late(self, found: list[Hang]) -> None:
        if self._hangs is not None:
            self._hangs.late(found)

    def _asked(self, local_rank: int, request: Request) -> None:
        assert self._assignment is not None
        rank, reason = self._assignment.first_rank + local_rank, " ".join(request.reason.split()) or "no reason given"
        log.warning("rank %d asks for %s: %s", rank, request.action.name.lower(), reason)
        if request.action is Action.DRAIN:
            self._driver.feed(Leave(Leaving.DRAIN))
        else:
            wanted = Wanted(request.action.name.lower())
            self._driver.feed(Wished(Wish(wanted, self._assignment.generation, rank, reason)))

    def _heard(self) -> None:
        self._rung()
        if self._training is not None:
            self._training.rung()
        self._halting()

    def _halting(self) -> None:
        halted = self._watch.halted() if self._watch is not None else None
        if halted is not None and self._assignment is not None:
            self._driver.feed(Halting(self._assignment.generation, halted))

    def _measured(self, number: int | None = None) -> None:
        self._driver.feed(Measured(self._watch.measures() if self._watch is not None else {}, number))

    def _tell_unentered(self, entered: set[str]) -> None:
        """A timeout for a section that is never entered is mostly one for a name that is misspelt."""
        missing = self._limits.timeouts.sections.keys() - entered
        finished = self._driver.node.current.state is State.FINISHED
        if not missing or self._told_unentered or not (entered or finished):
            return
        self._told_unentered = True
        log.warning(
            "no rank here has entered the section %s, which has a timeout (rank_section_timeouts); entered were: %s",
            ", ".join(map(repr, sorted(missing))),
            ", ".join(map(repr, sorted(entered))) or "none",
        )
