"""Random courses of a training: world sizes that change, kills, checkpoints, prefetch. And what survives of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from hypothesis import strategies as st


@dataclass(frozen=True)
class Life:
    """One generation: on so many ranks, until it is killed after so many steps (or the data ends)."""

    world_size: int
    steps: int
    prefetch: int  # batches that are asked for before they are trained


@dataclass(frozen=True)
class Story:
    """A training of some epochs, with its lives one after the other; the last one goes on to the end."""

    length: int
    epochs: int
    global_batch: int
    save_every: int
    seed: int
    lives: list[Life]


lives = st.builds(Life, world_size=st.integers(1, 7), steps=st.integers(0, 12), prefetch=st.integers(0, 5))
stories = st.builds(
    Story,
    length=st.integers(1, 120),
    epochs=st.integers(1, 3),
    global_batch=st.integers(1, 40),
    save_every=st.integers(1, 5),
    seed=st.integers(0, 1000),
    lives=st.lists(lives, max_size=6),
)


class Rank(Protocol):
    """One rank's view of the data, however it is made."""

    def batches(self) -> Iterator[list[tuple[int, float]]]:
        """One pass: samples of each step with their weights. Trained when the next step is asked for."""

    def step(self) -> None: ...
    def epoch(self) -> int: ...
    def state(self) -> Any: ...


@dataclass
class Model:
    """What training makes of the data: which samples are in it, by epoch, and in which batches."""

    epochs: dict[int, Counter[int]] = field(default_factory=dict)
    batches: dict[int, list[frozenset[int]]] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(
            {epoch: counter.copy() for epoch, counter in self.epochs.items()},
            {epoch: list(batches) for epoch, batches in self.batches.items()},
        )


def tell(story: Story, make: Callable[[int, int, Any], Rank]) -> Model:
    """Live through a story; `make(rank, world_size, state)` makes a rank. Returns what the surviving model has seen."""
    saved: tuple[Model, Any] = (Model(), None)
    endless = Life(
        story.lives[-1].world_size if story.lives else 3, 10**9, story.lives[-1].prefetch if story.lives else 0
    )
    for life in [*story.lives, endless]:
        model, state = saved[0].copy(), saved[1]
        ranks = [make(rank, life.world_size, state) for rank in range(life.world_size)]
        for left, _ in enumerate(train(story, life, ranks, model)):
            if (left + 1) % story.save_every == 0:
                states = [rank.state() for rank in ranks]
                assert all(each == states[0] for each in states)
                saved = (model.copy(), states[0])
            if left + 1 >= life.steps:
                break  # killed: what was prefetched, and trained since the last checkpoint, is gone
        else:
            return model
    raise AssertionError("the last life has no end")


def train(story: Story, life: Life, ranks: list[Rank], model: Model) -> Iterator[None]:
    """Every rank in step; yields after each optimizer step."""
    while (epoch := ranks[0].epoch()) < story.epochs:
        passes = [prefetched(rank.batches(), life.prefetch) for rank in ranks]
        while True:
            shares = [next(each, None) for each in passes]
            if None in shares:
                assert all(share is None for share in shares), "a rank makes more steps than another"
                break
            real = [sample for share in shares if share for sample, weight in share if weight]
            model.epochs.setdefault(epoch, Counter()).update(real)
            model.batches.setdefault(epoch, []).append(frozenset(real))
            assert sum(weight for share in shares if share for _, weight in share) == approximately(life.world_size)
            for rank in ranks:
                rank.step()
            yield
        assert ranks[0].epoch() > epoch


def prefetched(source: Iterator[Any], depth: int) -> Iterator[Any]:
    """As a loader with workers does: asks for `depth` more than it gives."""
    queue: deque[Any] = deque()
    for item in source:
        queue.append(item)
        if len(queue) > depth:
            yield queue.popleft()
    yield from queue


class approximately(float):  # noqa: N801  (reads as pytest's approx, which is slow)
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and abs(float(other) - float(self)) < 1e-5  # weights are float32

    __hash__ = float.__hash__
