"""The simulator's world with workers that leave their generation without ending (`docs/in-process.md`).

A stop tells each worker to leave. It does within the timeout, and is parked; or it does not, and is killed. A worker
that raises says so at once, and can reach its generation until it has parked. A node is clear of a generation when no
process on it can reach it any more: that is what `Cleared` means here. The next generation is entered by the processes
that are parked, and by new ones for the others.

In half of the schedules the policy is min-healthy: nodes that lost processes are held back while MIN others are whole,
and replace them meanwhile. In some of these the script has no restartable function.

How the agent acts is a `Shell`, so that broken ones can be tried (`test_in_place_world.py`). All draws come from a
`Random` of their own: whatever else a seed means stays.
"""

from __future__ import annotations

from random import Random
from typing import Any

from invariants import Violation
from msgspec.structs import replace
from schedule import KILL_SHARE
from simulator import NEVER, Agent, Group, Life, Simulation

from outlast.core.job.job import Job
from outlast.core.membership.roster import world_of
from outlast.core.node import inputs as node_inputs
from outlast.core.node.course import REFILL_AGAIN
from outlast.events.events import GenerationEnding, GenerationFormed, NodeHeldBack
from outlast.events.reasons import ChangeReason, PlannedEnd
from outlast.protocol.generations import Assignment
from outlast.protocol.observers import NumberedEvent

DIES_PARKED = 0.05  # the probability that a process dies while it is parked
ASKED = 1e12  # seconds: instead of the time of a stop, which comes before it if there is another one without grace


class SimulatedProcess:
    """A worker's process, over all of its generations."""

    __slots__ = ("failed", "generation", "lives")

    def __init__(self) -> None:
        self.lives = True
        self.generation = 0  # that it can reach; 0: none, it is parked or new
        self.failed = False  # in that generation: its function has raised

    @property
    def reaches(self) -> bool:
        return self.lives and self.generation > 0


class Shell:
    """What an agent does about workers that leave."""

    gives_up = True  # on a process that has not left in time, and kills it

    def is_clear(self, members: list[SimulatedProcess]) -> bool:
        return not any(each.reaches for each in members)

    def is_reusable(self, process: SimulatedProcess) -> bool:
        return process.lives and not process.generation


class InPlaceSimulation(Simulation):
    """One schedule of a job whose workers can be restarted in place."""

    def __init__(self, seed: int, *, shell: type[Shell] = Shell, **options: Any) -> None:
        super().__init__(seed, **options)
        self._fate = fate = Random(f"in place {seed}")
        # Where nothing but the coordinator may fail, the first change must be over before the first kill.
        longest = 3.0 if self.schedule.kind != "kills" else 0.3
        self._in_place_timeout = self.rules.node_timeout * fate.choice((0.05, 0.3, longest))
        self._willing = fate.choice((0.5, 0.9, 1.0))  # the share of processes that leave in time
        self._shell = shell()
        self._members: dict[Group, list[SimulatedProcess]] = {}
        self._parked: dict[str, list[SimulatedProcess]] = {}  # by agent
        self._all: list[SimulatedProcess] = []
        self.stayed = self.given_up = 0  # processes that entered another generation; that did not leave in time
        self.held_back = self.refilled = 0  # nodes that others went on without; processes that were replaced meanwhile
        self._ended: set[int] = set()  # generations,
        self._planned: set[int] = set()  # and those of them that somebody wanted to end
        self._choose_policy(Random(f"policy {seed}"))

    def _choose_policy(self, draw: Random) -> None:
        min_healthy = draw.random() < 0.5
        self._restartable = not min_healthy or draw.random() < 0.9
        if min_healthy:
            self.rules = self.schedule.rules = self._witness.rules = replace(self.rules, restart_policy="min-healthy")
            self._more_patience = 3 * REFILL_AGAIN
        if not self._restartable:
            self._willing = 0.0

    # -- entering

    def _start_workers(self, one: Agent, place: Assignment) -> None:
        super()._start_workers(one, place)
        assert one.group is not None
        waiting = [each for each in self._parked.pop(one.id, []) if self._shell.is_reusable(each)]
        if place.fresh:
            for each in waiting:
                each.lives = False
            waiting = []
        self.stayed += len(waiting[: one.nproc])
        members = [*waiting, *(SimulatedProcess() for _ in range(one.nproc))][: one.nproc]
        self._all += [each for each in members if each not in waiting]
        elsewhere = {each.generation for each in self._all if each.reaches} - {place.generation}
        if elsewhere:
            raise Violation("one generation", f"{one.id} enters {place.generation}, processes can reach {elsewhere}")
        if not all(each.lives for each in members):
            raise Violation("the dead are replaced", f"{one.id} enters {place.generation} with a dead process")
        for each in members:
            each.generation, each.failed = place.generation, False
        self._members[one.group] = members

    # -- leaving

    def _fail(self, group: Group, by_itself: bool) -> None:
        well = [each for each in self._members[group] if each.reaches and not each.failed]
        if not group.alive or not well or (by_itself and not self._chaos):
            return
        one, place, process = group.agent, group.place, well[-1]
        if group.stop_at == NEVER and by_itself:
            self._witness.generations[place.generation].failed_by_itself = True
        raises = self._fate.random() < 0.6
        how = "raises" if raises else "dies"
        self._tell(f"{one.id} worker of {place.generation} {how}{'' if by_itself else ', a victim of others'}")
        self._break(place.generation)
        if raises:
            process.failed = True
            self._after(self._time_to_leave(), self._park, group, process)
        else:
            process.lives = False
        local_rank = self._members[group].index(process)
        failure = self._failure(one, place.first_rank + local_rank, local_rank, 1)
        self._to_node(one, node_inputs.Exited(place.generation, failure))
        if not raises:
            self._look_whether_clear(group)

    def _stop_workers(self, one: Agent, generation: int, grace: float | None) -> None:
        group = one.group
        if group is None or not group.alive or group.place.generation != generation:
            return
        if grace is None or grace == 0:
            super()._stop_workers(one, generation, grace)
        elif group.stop_at == NEVER:
            self._tell(f"{one.id} asks generation {generation} to leave")
            group.stop_at = ASKED
            for process in self._members[group]:
                if process.reaches:
                    self._ask_to_leave(group, process, grace)
            self._look_whether_clear(group)

    def _ask_to_leave(self, group: Group, process: SimulatedProcess, grace: float) -> None:
        needed = self._time_to_leave()
        if needed <= self._in_place_timeout:
            self._after(needed, self._park, group, process)
        elif self._shell.gives_up:
            kill = self._fate.random() * KILL_SHARE * self.rules.node_timeout
            self._after(self._in_place_timeout + min(needed, grace) + kill, self._give_up_on, group, process)

    def _time_to_leave(self) -> float:
        willing = self._fate.random() < self._willing
        return self._fate.random() ** 2 * self._in_place_timeout if willing else NEVER

    def _park(self, group: Group, process: SimulatedProcess) -> None:
        if process.reaches and process.generation == group.place.generation:
            process.generation = 0
            self._parked.setdefault(group.agent.id, []).append(process)
            if self._fate.random() < DIES_PARKED:
                process.lives = False
            elif self._fate.random() < DIES_PARKED and self._chaos:
                self._after(self._fate.random() * 5 * self.rules.node_timeout, self._die_parked, group.agent, process)
            self._look_whether_clear(group)

    def _die_parked(self, one: Agent, process: SimulatedProcess) -> None:
        if process in self._parked.get(one.id, ()) and process.lives:
            process.lives = False
            self._count_parked(one)

    # -- replacing those that died while others go on

    def _waiting(self, one: Agent) -> int:
        return sum(each.lives for each in self._parked.get(one.id, ()))

    def _count_parked(self, one: Agent) -> None:
        self._to_node(one, node_inputs.Kept(self._waiting(one)))

    def _cleared(self, group: Group) -> None:
        self._tell(f"{group.agent.id} is clear of generation {group.place.generation}")
        kept = self._waiting(group.agent) if self._restartable else None
        self._to_node(group.agent, node_inputs.Cleared(group.place.generation, kept))

    def _refill(self, one: Agent) -> None:
        self._tell(f"{one.id} replaces those that died")
        for _ in range(one.nproc - self._waiting(one)):
            if self._fate.random() < 0.9 or not self._chaos:
                self._after(self._fate.random() * 3 * self.rules.node_timeout, self._set_up, one, one.group)

    def _set_up(self, one: Agent, last: Group | None) -> None:
        if one.paused:
            one.backlog.append((self._set_up, (one, last)))
        elif one.alive and one.group is last and self._waiting(one) < one.nproc:  # else a start has ended it
            process = SimulatedProcess()
            self._all.append(process)
            self._parked.setdefault(one.id, []).append(process)
            self.refilled += 1
            self._count_parked(one)

    def _published(self, c: Life, numbered: NumberedEvent) -> None:
        super()._published(c, numbered)
        if isinstance(numbered.event, NodeHeldBack):
            self.held_back += 1
        elif isinstance(numbered.event, GenerationEnding):
            self._ended.add(numbered.event.generation)
            if isinstance(numbered.event.reason, PlannedEnd | ChangeReason):
                self._planned.add(numbered.event.generation)
        elif isinstance(numbered.event, GenerationFormed) and self.rules.restart_policy == "min-healthy":
            self._check_healthy(c.job)

    def _check_healthy(self, job: Job) -> None:
        """Nobody waits for a process that starts in place of one that died, while there are enough others.

        Unless the generation before was ended to let others in.
        """
        planned = max((number for number in self._ended if number < job.generation), default=0) in self._planned
        nodes, rules = job._state.nodes, self.rules
        chosen = [nodes[name] for name in job.roster]
        here = [*chosen, *nodes.ready.values()]
        healthy = world_of(
            sum(not node.impaired for node in here),
            least=rules.min_nodes,
            most=job._state.admissions.most,
            unit=rules.node_unit,
        )
        impaired = [node.name for node in chosen if node.impaired]
        if impaired and healthy and any(node.whole for node in here) and not planned:
            raise Violation("the healthy wait for nobody", f"{impaired} are in generation {job.generation}")

    def _give_up_on(self, group: Group, process: SimulatedProcess) -> None:
        if group.agent.paused:
            self._after(0.1 * self.rules.node_timeout, self._give_up_on, group, process)
        elif process.reaches and process.generation == group.place.generation:
            self.given_up += 1
            self._die(group, process)
            self._look_whether_clear(group)

    def _die(self, group: Group, process: SimulatedProcess) -> None:
        process.lives = False
        if not process.failed:
            self._to_node(group.agent, node_inputs.Exited(group.place.generation))

    def _look_whether_clear(self, group: Group) -> None:
        """Those that have all left by themselves count as clear once they are asked: the agent looks only then."""
        members = self._members[group]
        asked = group.stop_at != NEVER or not any(each.lives for each in members)
        if group.alive and asked and self._shell.is_clear(members):
            self._gone(group)
            self._cleared(group)

    # -- ending

    def _stopped(self, group: Group, at: float) -> None:
        """A stop without leaving: what is not parked by now ends."""
        if not group.alive or group.stop_at != at:
            return
        for process in self._members[group]:
            if process.reaches:
                self._die(group, process)
        if group.alive:
            self._gone(group)
            self._cleared(group)

    def _finish(self, group: Group) -> None:
        if all(each.reaches and not each.failed for each in self._members[group]):
            for each in self._members[group] if group.alive else ():
                each.lives = False
            super()._finish(group)

    def _gone(self, group: Group, *, whole: bool = False) -> None:
        super()._gone(group, whole=whole)
        if not group.agent.alive:  # and with it all that it started
            for each in self._members[group]:
                each.lives = False

    def _end_agent(self, one: Agent, *, fin: bool) -> None:
        super()._end_agent(one, fin=fin)
        for each in self._parked.pop(one.id, []):
            each.lives = False
