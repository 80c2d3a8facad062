"""What must hold after every event. The witness sees the truth, which no coordinator and no node can."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.protocol.generations import Assignment, Start
from outlast.protocol.membership import Over
from outlast.protocol.rules import Rules

ENDS = (
    "it was told to stop",
    "interrupted on",
    "no node is left",
    "(pend_timeout)",
    "--ft-crash-loop=",
)  # reasons for which a job may end


class Violation(AssertionError):
    """An invariant does not hold: its name, and what was seen."""

    def __init__(self, invariant: str, seen: str) -> None:
        super().__init__(f"{invariant}: {seen}")
        self.invariant = invariant


@dataclass
class Generation:
    """The truth about one generation."""

    number: int
    roster: dict[str, Assignment]
    restarts: int
    failed_by_itself: bool = False  # a worker of it
    excused: bool = False  # something else happened that may have ended it
    lost: bool = False  # a coordinator was told of the loss of a node while this was its newest
    blurred: bool = False  # it has had more than one coordinator, or more than one term of one
    succeeded: set[str] = field(default_factory=set)  # nodes whose workers of this generation all exited with 0


NONE = Generation(0, {}, 0)


class Witness:
    """Follows one schedule, and raises `Violation` at the first event that breaks an invariant."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.alive: dict[int, int] = {}  # groups of workers, on all nodes together, by generation
        self.generations: dict[int, Generation] = {0: NONE}
        self._started: dict[str, int] = {}
        self._over: set[str] = set()  # nodes that know that the job is over
        self._ports: set[tuple[str, int]] = set()  # where a generation's store has been
        self._judged: set[int] = set()  # jobs whose end has been looked at

    # -- what happens to workers

    def workers_start(self, node: str, place: Assignment, store_port: int) -> None:
        number = place.generation
        if any(other != number for other in self.alive):
            self._broken("one generation", f"{node} starts {number} while {sorted(self.alive)} are alive")
        if number <= self._started.get(node, 0):
            self._broken("generations only grow", f"{node} starts {number} after {self._started[node]}")
        if node in self._over:
            self._broken("nothing starts after the end", f"{node} starts {number}")
        if place.group_rank == 0:
            if place.master_port != store_port:
                self._broken("the store's port is reserved", f"{node} has {store_port}, not {place.master_port}")
            self._ports.add((place.master_addr, place.master_port))
        self._started[node] = number
        self.alive[number] = self.alive.get(number, 0) + 1

    def workers_gone(self, number: int) -> None:
        self.alive[number] -= 1
        if not self.alive[number]:
            del self.alive[number]

    def node_heard_over(self, node: str) -> None:
        self._over.add(node)

    # -- what coordinators decide

    def acting(self, terms: list[str]) -> None:
        """These coordinators may all act at this moment."""
        if len(terms) > 1:
            self._broken("one coordinator acts", " and ".join(terms))

    def excuse(self, number: int, *, lost: bool = False, blurred: bool = False) -> None:
        """Something happens to a generation that may end it, and that is no worker's failure."""
        generation = self.generations.get(number, NONE)
        if generation is not NONE:
            generation.excused = True
            generation.lost = generation.lost or lost
            generation.blurred = generation.blurred or blurred

    def start_sent(self, job: Job, node: str, message: Start) -> None:
        if job.phase is Phase.OVER:
            self._broken("nothing starts after the end", f"Start sent to {node}")
        known = self.generations.get(message.assignment.generation)
        if known is None or known.roster.get(node) != message.assignment:
            self._broken("one roster per generation", f"{node} is sent {message.assignment}")

    def decided(self, job: Job) -> None:
        """After every event of a job, before its commands are carried out."""
        if job.outcome is not None and id(job) not in self._judged:
            self._judged.add(id(job))
            self._judge(job, job.outcome)
        if job.restarts > self.rules.max_restarts:
            self._broken("restarts are bounded", f"{job.restarts}")

    def formed(self, job: Job, base: int, connected: int, infra: dict[str, int | None]) -> None:
        """A job has formed a generation after that one."""
        rules, roster = self.rules, job.roster
        number = job.generation
        if number in self.generations:
            self._broken("one roster per generation", f"{number} is formed twice")
        if number <= base:
            self._broken("generations only grow", f"{number} follows {base}")
        before = self.generations[base]
        places = sorted(roster.values(), key=lambda p: p.group_rank)
        size = len(places)
        if not rules.min_nodes <= size <= rules.max_nodes or size % rules.node_unit:
            self._broken("the world's size", f"{size} nodes")
        self._check_charge(before, number, job.restarts)
        if before.roster and not before.lost and not before.blurred and before.succeeded == set(before.roster):
            self._broken("finished work is not done again", f"{number} follows {base}")
        first = 0
        for index, place in enumerate(places):
            following = places[index + 1].first_rank if index + 1 < size else place.world_size
            if (
                place.group_rank != index
                or place.first_rank != first
                or following <= first
                or place.role_rank != first
                or place.group_world_size != size
                or place.world_size != places[0].world_size
                or place.role_world_size != place.world_size
                or place.generation != number
                or place.restart_count != job.restarts
                or (place.master_addr, place.master_port) != (places[0].master_addr, places[0].master_port)
            ):
                self._broken("ranks are consistent", f"{places}")
            first = following
        if (places[0].master_addr, places[0].master_port) in self._ports:
            self._broken("a fresh store port", f"{places[0].master_addr}:{places[0].master_port} was used before")
        self._check_order(before, roster, size, infra)
        self.generations[number] = Generation(number, roster, job.restarts, excused=connected > size)

    def _check_charge(self, before: Generation, number: int, restarts: int) -> None:
        """Never twice for one generation, and only for a failure of its own."""
        if restarts > before.restarts + 1:
            self._broken("restarts are bounded", f"{before.restarts} became {restarts}")
        if restarts > before.restarts and not before.failed_by_itself:
            self._broken("only failures cost restarts", f"generation {before.number} had none of its own")
        if restarts < before.restarts:
            self._broken("failures cost restarts", f"{before.restarts} became {restarts}")
        if before.failed_by_itself and not before.excused and restarts <= before.restarts:
            self._broken("failures cost restarts", f"generation {before.number} failed, {number} cost nothing")

    def _check_order(
        self, before: Generation, roster: dict[str, Assignment], size: int, infra: dict[str, int | None]
    ) -> None:
        if self.rules.use_infra_group_rank and any(infra[n] is not None for n in roster):
            in_order = sorted(roster, key=lambda n: roster[n].group_rank)
            given = [(infra[n] is None, infra[n] or 0) for n in in_order]
            if given != sorted(given):
                self._broken("infrastructure ranks", f"{given}")
            return
        for node, place in roster.items() if not before.blurred else ():
            was = before.roster.get(node)
            if was is not None and was.group_rank < size and was.group_rank != place.group_rank:
                self._broken("survivors keep their ranks", f"{node}: {was.group_rank} became {place.group_rank}")

    def _judge(self, job: Job, over: Over) -> None:
        generation = self.generations.get(job.generation, NONE)
        if over.success:
            if not generation.roster or generation.succeeded != set(generation.roster):
                done, all_of = sorted(generation.succeeded), sorted(generation.roster)
                self._broken("success is earned", f"only {done} finished of {all_of}")
            if self.alive:
                self._broken("success is earned", f"workers of {sorted(self.alive)} still live")
        elif "--max-restarts" in over.reason:
            if not generation.failed_by_itself or job.restarts != self.rules.max_restarts:
                self._broken("only failures cost restarts", over.reason)
        elif not any(why in over.reason for why in (*ENDS, *["no node is fit"] * self.rules.network_check)):
            self._broken("a job ends for a reason", over.reason)

    def _broken(self, invariant: str, seen: str) -> None:
        raise Violation(invariant, seen)
