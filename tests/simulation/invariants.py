"""What must hold after every event. The witness sees the truth, which neither the job nor any node can."""

from __future__ import annotations

from outlast.core.events import Rules
from outlast.core.job import Job, Phase
from outlast.messages import Assignment, Over, Start


class Violation(AssertionError):
    """An invariant does not hold: its name, and what was seen."""

    def __init__(self, invariant: str, seen: str) -> None:
        super().__init__(f"{invariant}: {seen}")
        self.invariant = invariant


class Witness:
    """Follows one schedule, and raises `Violation` at the first event that breaks an invariant."""

    def __init__(self, rules: Rules, job: Job) -> None:
        self.rules = rules
        self.job = job
        self.alive = 0  # groups of workers, on all nodes together
        self.alive_generation = 0
        self.roster: dict[str, Assignment] = {}
        self.generation = 0
        self.restarts = 0
        self.failed_by_itself = False  # a worker of this generation
        self.excused = False  # something else happened that may have ended this generation
        self.lost = False  # the job was told of the loss of a node while this generation was the newest
        self.succeeded: set[str] = set()  # nodes whose workers of this generation all exited with 0
        self._started: dict[str, int] = {}
        self._over: set[str] = set()  # nodes that know that the job is over
        self._ports: set[tuple[str, int]] = set()  # where a generation's store has been
        self._ended = False

    # -- what happens to workers

    def workers_start(self, node: str, place: Assignment, store_port: int) -> None:
        generation = place.generation
        if self.alive and self.alive_generation != generation:
            self._broken("one generation", f"{node} starts {generation} while {self.alive_generation} is alive")
        if generation <= self._started.get(node, 0):
            self._broken("generations only grow", f"{node} starts {generation} after {self._started[node]}")
        if node in self._over:
            self._broken("nothing starts after the end", f"{node} starts {generation}")
        if place.group_rank == 0:
            if place.master_port != store_port:
                self._broken("the store's port is reserved", f"{node} has {store_port}, not {place.master_port}")
            self._ports.add((place.master_addr, place.master_port))
        self._started[node] = generation
        self.alive_generation = generation
        self.alive += 1

    def workers_gone(self) -> None:
        self.alive -= 1

    def node_heard_over(self, node: str) -> None:
        self._over.add(node)

    # -- what the job decides

    def start_sent(self, node: str, message: Start) -> None:
        if self.job.phase is Phase.OVER:
            self._broken("nothing starts after the end", f"Start sent to {node}")
        if self.roster.get(node) != message.assignment:
            self._broken("one assignment per node", f"{node} is sent {message.assignment}")

    def decided(self, connected: int, infra: dict[str, int | None]) -> None:
        """After every event of the job, before its commands are carried out."""
        job = self.job
        if job.restarts != self.restarts:
            self._charged()
        if job.generation != self.generation:
            self._formed(connected, infra)
        if job.outcome is not None and not self._ended:
            self._ended = True
            self._judge(job.outcome)

    def _charged(self) -> None:
        job = self.job
        if job.restarts != self.restarts + 1 or job.restarts > self.rules.max_restarts:
            self._broken("restarts are bounded", f"{self.restarts} became {job.restarts}")
        if not self.failed_by_itself:
            self._broken("only failures cost restarts", f"generation {self.generation} had none of its own")

    def _formed(self, connected: int, infra: dict[str, int | None]) -> None:
        job, rules = self.job, self.rules
        if job.generation < self.generation:
            self._broken("generations only grow", f"{job.generation} follows {self.generation}")
        if self.failed_by_itself and not self.excused and job.restarts == self.restarts:
            self._broken("failures cost restarts", f"generation {self.generation} failed and cost nothing")
        if self.roster and not self.lost and self.succeeded == set(self.roster):
            self._broken("finished work is not done again", f"{job.generation} follows {self.generation}")
        roster = job.roster
        places = sorted(roster.values(), key=lambda p: p.group_rank)
        size = len(places)
        if not rules.min_nodes <= size <= rules.max_nodes or size % rules.node_unit:
            self._broken("the world's size", f"{size} nodes")
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
                or place.generation != job.generation
                or place.restart_count != job.restarts
                or (place.master_addr, place.master_port) != (places[0].master_addr, places[0].master_port)
            ):
                self._broken("ranks are consistent", f"{places}")
            first = following
        if (places[0].master_addr, places[0].master_port) in self._ports:
            self._broken("a fresh store port", f"{places[0].master_addr}:{places[0].master_port} was used before")
        self._check_order(roster, size, infra)
        self.roster, self.generation, self.restarts = roster, job.generation, job.restarts
        self.failed_by_itself = self.lost = False
        self.excused = connected > size
        self.succeeded = set()

    def _check_order(self, roster: dict[str, Assignment], size: int, infra: dict[str, int | None]) -> None:
        if self.rules.infra_ranks and any(infra[n] is not None for n in roster):
            in_order = sorted(roster, key=lambda n: roster[n].group_rank)
            given = [(infra[n] is None, infra[n] or 0) for n in in_order]
            if given != sorted(given):
                self._broken("infrastructure ranks", f"{given}")
            return
        for node, place in roster.items():
            before = self.roster.get(node)
            if before is not None and before.group_rank < size and before.group_rank != place.group_rank:
                self._broken("survivors keep their ranks", f"{node}: {before.group_rank} became {place.group_rank}")

    def _judge(self, over: Over) -> None:
        if over.success:
            if self.succeeded != set(self.roster):
                self._broken("success is earned", f"only {sorted(self.succeeded)} finished of {sorted(self.roster)}")
            if self.alive:
                self._broken("success is earned", f"{self.alive} nodes still have workers")
        elif "--max-restarts" in over.reason:
            if not self.failed_by_itself or self.job.restarts != self.rules.max_restarts:
                self._broken("only failures cost restarts", over.reason)
        elif not any(why in over.reason for why in ("interrupted on", "no node is left", "(pend_timeout)")):
            self._broken("a job ends for a reason", over.reason)

    def _broken(self, invariant: str, seen: str) -> None:
        raise Violation(invariant, seen)
