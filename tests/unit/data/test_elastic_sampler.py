"""ElasticSampler in the hands of torch's DataLoader and torchdata's StatefulDataLoader, and what it refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import outlast
from outlast.data.sampler import ElasticSampler

LENGTH = 101
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # of torchdata with a newer torch


def sampler(rank: int = 0, world_size: int = 1, **options: Any) -> ElasticSampler:
    return ElasticSampler(LENGTH, rank=rank, world_size=world_size, **({"batch_size": 4} | options))


def loaders(kind: Any, world_size: int, state: Any, **options: Any) -> list[tuple[ElasticSampler, Any]]:
    """One of each per rank, at the position of `state`."""
    made = []
    for rank in range(world_size):
        each = sampler(rank, world_size, seed=3)
        if state:
            each.load_state_dict(state)
        made.append((each, kind(range(LENGTH), batch_size=4, sampler=each, **options)))
    return made


def real(each: ElasticSampler, batch: Any) -> list[int]:
    """The samples of a batch that count."""
    return [sample for sample, weight in zip(batch.tolist(), each.weights(), strict=True) if weight]


def test_the_public_name() -> None:
    assert outlast.ElasticSampler is ElasticSampler


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_prefetching_workers_move_nothing_and_any_world_size_goes_on(kind: Any, workers: int) -> None:
    options = {"num_workers": workers, "prefetch_factor": 3 if workers else None}
    trained: Counter[int] = Counter()
    state = None
    for world_size, steps in ((2, 3), (3, 2), (1, 1), (2, 100)):
        ranks = loaders(kind, world_size, state, **options)
        for step, batches in enumerate(zip(*(loader for _, loader in ranks), strict=True)):
            if step == steps:
                break  # the workers are far ahead by now
            for (each, _), batch in zip(ranks, batches, strict=True):
                trained.update(real(each, batch))
            for each, _ in ranks:
                each.commit()
        state = ranks[0][0].state_dict()
    assert trained == dict.fromkeys(range(LENGTH), 1)


@pytest.mark.parametrize("as_batches", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_stateful_data_loader_goes_on_on_another_world_size(as_batches: bool, workers: int) -> None:
    """Its own state, not the sampler's: what it gave out is behind, what it asked for ahead is not."""

    def make(rank: int, world_size: int, state: Any) -> Any:
        each = sampler(rank, world_size, seed=3, tail="drop")
        how = {"batch_sampler": each.batches} if as_batches else {"sampler": each, "batch_size": 4}
        loader = StatefulDataLoader(range(LENGTH), **how, num_workers=workers)
        if state:
            loader.load_state_dict(state)
        return loader

    seen: Counter[int] = Counter()
    state = None
    for world_size, steps in ((2, 3), (3, 2), (1, 9)):
        ranks = [make(rank, world_size, state) for rank in range(world_size)]
        iterators = [iter(each) for each in ranks]
        for _ in range(steps):
            for each in iterators:
                seen.update(next(each).tolist())
        state = ranks[0].state_dict()
    seen.update(sample for batch in make(0, 1, state) for sample in batch.tolist())
    assert max(seen.values()) == 1
    assert len(seen) == LENGTH // 4 * 4


@pytest.mark.parametrize("tail", ["mask", "drop", "pad"])
@pytest.mark.parametrize("size", [{"batch_size": 4}, {"batch_size": None, "global_batch": 12}])
def test_an_epoch_has_as_many_steps_as_is_said(tail: str, size: dict[str, Any]) -> None:
    for world_size in (1, 2, 3, 5):
        each = sampler(world_size=world_size, tail=tail, **size)
        steps = 0
        while each.epoch == 0:
            each.commit()
            steps += 1
        assert steps == each.steps_per_epoch


def test_a_pass_begins_anew_at_the_position() -> None:
    each = sampler(shuffle=False)
    first = iter(each)
    assert [next(first) for _ in range(10)] == list(range(10))
    each.commit()
    assert [*each][:3] == [4, 5, 6]
    each.commit(1)  # as many as were trained, over all ranks
    assert [*each][:3] == [5, 6, 7]


def test_persistent_workers_follow_the_epochs() -> None:
    each = sampler(seed=1, tail="drop", global_batch=10, batch_size=None)
    loader = DataLoader(range(LENGTH), batch_sampler=each.batches, num_workers=1, persistent_workers=True)
    passes = []
    for epoch in range(2):
        each.set_epoch(epoch)
        for batch in loader:
            passes.append(batch.tolist())
            each.commit()
    assert len(passes) == 20
    assert passes[0] != passes[10]


class TestEpochs:
    def finish(self, each: ElasticSampler) -> None:
        each.commit(LENGTH - each.position.samples)

    def test_without_set_epoch_the_next_pass_is_of_the_next_epoch(self) -> None:
        each = sampler()
        first = list(each)
        self.finish(each)
        assert each.epoch == 1
        second = list(each)
        assert sorted(first[:LENGTH]) == sorted(second[:LENGTH])
        assert first != second

    def test_a_finished_epoch_that_is_asked_for_gives_nothing_and_the_next_one_all(self) -> None:
        """The loop of a script that saves its own epoch number, restored from the last step of an epoch."""
        saved = sampler()
        saved.set_epoch(3)
        self.finish(saved)
        each = sampler()
        each.load_state_dict(saved.state_dict())
        passes = []
        for epoch in (3, 4):
            each.set_epoch(epoch)
            passes.append(len(list(each)))
            if passes[-1]:
                self.finish(each)
        assert passes == [0, 104]
        assert each.epoch == 5

    def test_setting_the_epoch_that_is_under_way_loses_nothing(self) -> None:
        each = sampler()
        each.commit()
        each.set_epoch(0)
        assert each.position.samples == 4
        each.set_epoch(1)
        assert each.position.samples == 0

    def test_the_length_is_that_of_the_pass_while_it_runs(self) -> None:
        each = sampler()
        assert len(each) == 104
        each.commit()
        running = iter(each)
        next(running)
        each.commit()
        assert len(each) == 100  # what this pass gives out: counters of batches rely on it
        assert len(each.batches) == 25
        each.set_epoch(1)
        assert len(each) == 104


class TestRefused:
    def test_a_commit_beyond_the_end(self) -> None:
        each = sampler()
        each.commit(LENGTH - 1)
        with pytest.raises(ValueError, match="once per optimizer step"):
            each.commit(2)
        each.commit()
        with pytest.raises(ValueError, match="set_epoch"):
            each.commit()

    @pytest.mark.parametrize(
        ("change", "named"), [({"seed": 1}, "seed"), ({"shuffle": False}, "shuffle"), ({"length": 7}, "length")]
    )
    def test_a_checkpoint_of_other_data(self, change: dict[str, Any], named: str) -> None:
        each = sampler()
        with pytest.raises(ValueError, match=f"{named} .*set_epoch"):
            each.load_state_dict(each.state_dict() | change)

    @pytest.mark.parametrize("state", [{}, {"epoch": "x", "samples": 1}, {"model": 1}])
    def test_what_is_no_position(self, state: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="state_dict"):
            sampler().load_state_dict(state)

    def test_a_damaged_position(self) -> None:
        each = sampler()
        with pytest.raises(ValueError, match="damaged"):
            each.load_state_dict(each.state_dict() | {"samples": LENGTH + 1})

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"batch_size": None}, "batch_size"),
            ({"global_batch": 8}, "either"),
            ({"batch_size": 0}, "at least 1"),
            ({"tail": "keep"}, "mask, drop, pad"),
            ({"batch_size": 200, "tail": "drop"}, "would drop all"),
            ({"batch_size": None, "global_batch": 3, "world_size": 4, "tail": "pad"}, "nothing to train"),
            ({"rank": 4, "world_size": 4}, "rank 4"),
        ],
    )
    def test_what_cannot_be(self, options: dict[str, Any], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            sampler(**options)

    def test_uneven_shares_as_single_samples(self) -> None:
        each = sampler(world_size=3, batch_size=None, global_batch=8, tail="pad")
        with pytest.raises(ValueError, match=r"batch_sampler=sampler\.batches"):
            iter(each)

    def test_no_data(self) -> None:
        with pytest.raises(ValueError, match="empty"):
            ElasticSampler([], batch_size=1)


def test_the_launcher_says_rank_and_world_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    each = ElasticSampler(100, batch_size=4)
    assert (each.rank, each.world_size) == (2, 5)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, unless a test says so."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
