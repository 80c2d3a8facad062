"""What workers do besides living and dying: they are late, measure, fall behind, ask for shards, tell how they get on.

So the commands and messages about all this meet the faulty network, too. Every draw comes from a `Random` of its own:
whatever else a seed means stays.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from invariants import Violation
from shard_worker import Worker

from outlast.core.job.job import Job
from outlast.core.node import commands as node_commands
from outlast.core.node import inputs as node_inputs
from outlast.diagnosis.observation import Observation
from outlast.protocol.hangs import Named
from outlast.protocol.paces import Pace
from outlast.protocol.shards import Deck, DeckProgress, Finding, ShardQuestion, Taken, Unanswerable

if TYPE_CHECKING:
    from simulator import Agent, Group, Simulation

ENDED = 1.0  # seconds after which a rank that hangs is ended, named or not
PACE = 1.0  # seconds from one look at how ranks get on to the next


class Habits:
    """Those of one schedule."""

    def __init__(self, world: Simulation, seed: int) -> None:
        random = self._random = Random(f"habits {seed}")
        self._world = world
        calm = world.schedule.kind == "kills"
        self._late = random.random() < 0.3
        self._ending = not calm  # nobody is ended for being late where nothing but the coordinator may fail
        self._measures = random.random() < 0.4
        self._strides = random.random() < 0.3
        self._paces = random.random() < 0.15
        self._slow = 0.0 if calm else 0.3  # the share of slow groups
        self._deck = self._draw_deck() if random.random() < 0.35 else None
        self._base = DeckProgress()
        self._trained: Counter[int] = Counter()  # shards, in the history that survives
        self._generation = 0
        self._workers: dict[int, tuple[Group, Worker]] = {}  # of the newest generation, by visitor
        self._done: set[int] = set()  # shards, in it
        self._visitors = 0

    def _draw_deck(self) -> Deck:
        random = self._random
        length, size = random.randint(1, 60), random.randint(1, 9)
        return Deck("train", length, size, random.randint(1, 2), save_every=random.choice((1, 3, 7, 20)))

    # -- what workers do

    def started(self, group: Group) -> None:
        """The workers of a group are being started."""
        if self._deck is None:
            return
        if group.place.generation != self._generation:
            self._save()
            self._generation, self._workers, self._done = group.place.generation, {}, set()
        for rank in range(group.place.first_rank, group.place.first_rank + group.agent.nproc):
            self._visitors += 1
            self._workers[self._visitors] = (group, Worker(rank, self._deck, self._base))

    def running(self, group: Group) -> None:
        """They run."""
        random, timeout = self._random, self._world.rules.node_timeout
        if self._late:
            self._after(random.random() * 3 * timeout, self._be_late, group)
        if self._measures:
            self._after(random.random() * 4 * timeout, self._measured, group, None)
        if self._strides:
            self._after(random.random() * 3 * timeout, self._fall_behind, group)
        if self._paces:
            group.pace = 0.1 * (1.8 if random.random() < self._slow else 1.0)
            self._after(PACE, self._tell_pace, group)
        for visitor, (of, _) in self._workers.items():
            if of is group:
                self._after(random.random() * 0.1, self._ask, visitor)

    def _after(self, delay: float, step: object, *arguments: object) -> None:
        self._world._after(delay, step, *arguments)  # type: ignore[arg-type]

    def _be_late(self, group: Group) -> None:
        if not group.running:
            return
        ending = self._ending and self._world._chaos and self._random.random() < 0.5
        group.late, group.hung = True, ending
        self._tell(group, node_inputs.Late(group.place.generation, ending))
        if ending:
            self._after(ENDED, self._end, group)

    def _end(self, group: Group) -> None:
        if group.hung:
            group.hung = False
            self._world._fail(group, True)

    def _measured(self, group: Group, number: int | None) -> None:
        if group.alive:
            longest = {"heartbeat": round(self._random.uniform(0.1, 5.0), 1)}
            self._tell(group, node_inputs.Measured(longest, number))

    def _fall_behind(self, group: Group) -> None:
        if group.alive:
            self._tell(group, node_inputs.KeepsUp(self._random.randint(1, 4)))

    def _tell_pace(self, group: Group) -> None:
        if not group.running:
            return
        step = int(self._world.t * 10)
        ranks = range(group.place.first_rank, group.place.first_rank + group.agent.nproc)
        paces = tuple(Pace(rank, step - 10, step, 0.2, {"forward": group.pace}) for rank in ranks)
        self._tell(group, node_inputs.Paced(group.place.generation, paces))
        self._after(PACE, self._tell_pace, group)

    def _ask(self, visitor: int) -> None:
        if visitor in self._workers:
            group, worker = self._workers[visitor]
            if group.running and not worker.finished:
                question = ShardQuestion(group.place.generation, worker.rank, worker.next)
                self._tell(group, node_inputs.Inquired(visitor, question))

    def _tell(self, group: Group, event: node_inputs.Event) -> None:
        self._world._to_node(group.agent, event)

    # -- what agents are told to do

    def carry_out(self, one: Agent, command: node_commands.Command) -> bool:
        """Do it, if it is about any of this."""
        group = one.group
        if isinstance(command, node_commands.Observe):
            if group is not None:
                self._after(self._random.random() * 0.3, self._observed, group, command.number)
        elif isinstance(command, node_commands.Blame):
            if group is not None:
                self._blame(group, command.named)
        elif isinstance(command, node_commands.TakeMeasures):
            if group is not None:
                self._after(0.0, self._measured, group, command.round)
        elif isinstance(command, node_commands.Agree):
            one.agreed = command.longest
        elif isinstance(command, node_commands.SetStride):
            one.stride = command.stride
        elif isinstance(command, node_commands.Respond):
            self._hear(command.visitor, command.finding)
        else:
            return isinstance(command, node_commands.Announce)
        return True

    def _observed(self, group: Group, number: int) -> None:
        if group.alive:
            first, *others = range(group.place.first_rank, group.place.first_rank + group.agent.nproc)
            name = f"host{group.agent.host.number}"
            seen = Observation(rank=first, node=name, late=group.late, also=tuple(others))
            self._tell(group, node_inputs.Observed(group.place.generation, number, (seen,)))

    def _blame(self, group: Group, named: Named) -> None:
        if named.generation != group.place.generation or any(r >= group.place.world_size for r in named.culprits):
            raise Violation("only ranks of the generation are named", f"{named}, to {group.place}")
        self._end(group)

    def _hear(self, visitor: int, finding: Finding) -> None:
        if visitor not in self._workers:
            return  # it has ended, and others have begun elsewhere
        group, worker = self._workers[visitor]
        if not group.running:
            return
        if isinstance(finding, Unanswerable):
            raise Violation("whoever asks is answered", f"rank {worker.rank}: {finding.reason}")
        if isinstance(finding, Taken):
            holders = [w.rank for g, w in self._workers.values() if g.running and w.holds == finding.number]
            if finding.number in self._done or holders:
                raise Violation("a shard is given to one", f"{finding.number} to {worker.rank}, not {holders}")
        before = len(worker.model)
        worker.hear(finding)
        self._done.update(worker.model[before:])
        if not worker.finished:
            self._after(self._random.random() ** 3 * 0.5, self._ask, visitor)

    # -- what must hold

    def _save(self) -> None:
        """A generation is over: its last save of all ranks is what the next one begins with."""
        workers = [worker for _, worker in self._workers.values()]
        groups = {id(group): group for group, _ in self._workers.values()}.values()
        whole = groups and len(groups) == next(iter(groups)).place.group_world_size
        if whole and workers[0].saved is not None and len({worker.saves for worker in workers}) == 1:
            cuts = {worker.saved[1] for worker in workers if worker.saved is not None}
            if len(cuts) != 1:
                raise Violation("all ranks save the same", f"{cuts}")
            (self._base,) = cuts
            for worker in workers:
                assert worker.saved is not None
                self._trained.update(worker.saved[0])
        if sum(self._trained.values()) != self._base.done or any(n > 1 for n in self._trained.values()):
            raise Violation("every shard is trained once", f"{self._trained}, and {self._base}")

    def open_point(self, job: Job) -> str:
        """What the members of the running generation have not come to yet."""
        calibration, members = job._state.calibration, [self._world._agents[name] for name in job.roster]
        behind = [one.id for one in members if one.node.state.hangs.agreed < calibration.agreed.round]
        if calibration.round != calibration.agreed.round or behind:
            return f"calibration {calibration.round} is not over: {behind} of {list(job.roster)}"
        if any(not worker.finished for _, worker in self._workers.values()):
            return f"not all shards of generation {self._generation} are done"
        return ""
