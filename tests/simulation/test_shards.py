"""Dynamic shards, simulated: workers that are slow, lost, late and repeat themselves; checkpoints and restores."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from outlast.core.data_shards.shards import Shard, Shards


def simulate(seed: int) -> None:
    """One job from its start to its end; the model is the list of samples that are in it."""
    draw = random.Random(seed)
    length, size, epochs = draw.randint(1, 60), draw.randint(1, 15), draw.randint(1, 3)
    shards = Shards(length=length, size=size, epochs=epochs)
    model: Counter[tuple[int, int]] = Counter()
    saved = (model.copy(), shards.state_dict())
    names = iter(range(10**6))
    workers: dict[str, Shard | None] = {}
    faults = draw.randint(0, 40)
    old: list[tuple[str, int]] = []  # reports that may come again, or late
    for _ in range(100_000):
        if shards.over:
            break
        if not workers or draw.random() < 0.05:
            workers[f"worker {next(names)}"] = None
        worker = draw.choice(list(workers))
        event = draw.random()
        if event < 0.1 and faults:
            faults -= 1
            if shard := workers.pop(worker):
                old.append((worker, shard.number))  # it was on its way when the worker was lost
            shards.lost(worker)
        elif event < 0.13 and faults:
            faults -= 1
            model, state = saved[0].copy(), saved[1]
            if draw.random() < 0.5:  # the book-keeper is a new one
                shards = Shards(length=length, size=size, epochs=epochs)
            shards.load_state_dict(state)
            old += [(name, shard.number) for name, shard in workers.items() if shard]
            workers.clear()
        elif event < 0.2:
            saved = (model.copy(), shards.state_dict())
        elif event < 0.3 and old:
            assert not shards.done(*draw.choice(old))
        elif (shard := workers[worker]) is None or draw.random() < 0.2:
            answer = shards.take(worker)
            assert shard is None or answer == shard  # asked again
            workers[worker] = answer
        else:
            assert shards.done(worker, shard.number)
            model.update((shard.epoch, sample) for sample in range(shard.start, shard.stop))
            old.append((worker, shard.number))
            workers[worker] = None
    assert shards.over
    assert model == dict.fromkeys(((epoch, sample) for epoch in range(epochs) for sample in range(length)), 1)


@pytest.mark.parametrize("hundred", range(20))
def test_each_shard_once_in_the_surviving_history(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        simulate(seed)


def test_what_is_kept_does_not_grow_with_the_data() -> None:
    shards = Shards(length=10**12, size=10, epochs=5)
    for _ in range(1000):
        shard = shards.take("a")
        assert shard
        shards.done("a", shard.number)
    shards.take("b")
    assert shards.state_dict() == {"length": 10**12, "size": 10, "next": 1001, "open": [1000]}


def test_a_worker_that_is_lost_gets_no_more() -> None:
    shards = Shards(length=10, size=5, epochs=1)
    shards.lost("a")
    assert shards.take("a") is None
    assert shards.take("b")


def test_a_checkpoint_of_other_shards_is_refused() -> None:
    state = Shards(length=10, size=5, epochs=1).state_dict()
    with pytest.raises(ValueError, match="same data"):
        Shards(length=11, size=5, epochs=1).load_state_dict(state)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="size"):
        Shards(length=10, size=0, epochs=1)
