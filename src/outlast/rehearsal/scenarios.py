"""Which faults a rehearsal has, and at which steps: from what the undisturbed run did, and a seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

import msgspec

from outlast.rehearsal.history import RunHistory

DELAY = 1.0  # seconds that a save takes longer
DELAYED = 10.0  # seconds for all saves of a run

TITLES = {
    "undisturbed": "nothing happens",
    "again": "nothing happens, once more",
    "kill": "workers are killed at random steps",
    "kill-in-save": "a worker is killed while it writes a checkpoint",
    "slow-save": "every save takes longer",
    "lost-node": "a node is lost, and another takes its place",
    "fewer-nodes": "a node is preempted, and the job goes on without it",
    "hang": "a rank hangs",
    "damage": "the newest checkpoint is damaged, and its writer killed",
}
QUICK = ("undisturbed", "again", "kill")


class PlannedFault(msgspec.Struct, frozen=True):
    """For the probe. `step`: of the process, in the life after the fault before it."""

    name: str
    what: str
    rank: int
    step: int


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the script."""

    name: str
    faults: tuple[PlannedFault, ...] = ()
    save_delay: float = 0.0
    replace: bool = False  # a node that ends is replaced
    least: int | None = None  # nodes that are enough; None: all

    @property
    def title(self) -> str:
        """For people."""
        return TITLES[self.name]


class BaselineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan needs to know of the undisturbed run."""

    steps: int
    world: int
    saved_at: tuple[int, ...]  # steps after which something was saved
    saver: int = 0  # a rank that saves
    plain_saves: bool = False  # by torch.save or DCP
    nodes: int = 2


def facts_of(history: RunHistory, nodes: int) -> BaselineFacts:
    """Of the undisturbed run."""
    saves = [(save, rank) for job in history.lives for rank, life in job.ranks.items() for save in life.saves]
    last = history.last
    return BaselineFacts(
        steps=last,
        world=history.world_at(last),
        saved_at=tuple(sorted({save.step for save, _ in saves if save.step})),
        saver=min((rank for _, rank in saves), default=0),
        plain_saves=any(save.path and not save.ours for save, _ in saves),
        nodes=nodes,
    )


def plan(facts: BaselineFacts, seed: int, chosen: Collection[str]) -> list[Scenario]:
    """The scenarios after the undisturbed one, of those that were chosen and that make sense."""
    return [scenario for scenario in _all(facts, seed) if scenario.name in chosen]


def _all(facts: BaselineFacts, seed: int) -> Iterable[Scenario]:
    def drawn(name: str) -> random.Random:
        return random.Random(f"{seed} {name}")  # of its own: which others are chosen changes nothing

    yield Scenario(name="again")
    draw = drawn("kill")
    first = _step(facts, draw)
    second = draw.randint(1, max(1, (facts.steps - first) // 2))
    ranks = [draw.randrange(facts.world) for _ in range(2)]
    yield Scenario(
        name="kill",
        faults=(PlannedFault("kill-1", "kill", ranks[0], first), PlannedFault("kill-2", "kill", ranks[1], second)),
    )
    if facts.plain_saves and len(facts.saved_at) > 1:
        yield _one("kill-in-save", "kill-in-save", facts.saver, facts.saved_at[0] + 1)
        delay = min(DELAY, DELAYED / len(facts.saved_at))
        yield Scenario(name="slow-save", save_delay=delay)
    if facts.nodes > 1:
        last = facts.world - 1
        yield _one("lost-node", "lose-node", last, _step(facts, drawn("lost-node")), replace=True)
        yield _one("fewer-nodes", "preempt", last, _step(facts, drawn("fewer-nodes")), least=facts.nodes - 1)
    draw = drawn("hang")
    yield _one("hang", "hang", draw.randrange(facts.world), _step(facts, draw))
    if facts.saved_at:
        yield _one("damage", "damage", facts.saver, _step(facts, drawn("damage"), after=facts.saved_at[:2][-1]))


def _one(name: str, what: str, rank: int, step: int, *, replace: bool = False, least: int | None = None) -> Scenario:
    return Scenario(name=name, faults=(PlannedFault(name, what, rank, step),), replace=replace, least=least)


def _step(facts: BaselineFacts, draw: random.Random, *, after: int | None = None) -> int:
    """A step after something was saved and before the end, as far as there is one."""
    if after is None:
        after = facts.saved_at[0] if facts.saved_at else facts.steps // 3
    lowest = min(after + 1, facts.steps - 1)
    return draw.randint(max(1, lowest), max(1, lowest, facts.steps - 2))
