"""ElasticLoader: commits by itself, when an optimizer has stepped; and every sample has its own randomness."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import outlast
from data_plans import prefetched
from outlast.data.loader import ElasticLoader

LENGTH = 50


class Numbers(Dataset[Any]):
    """Each sample is its own number, and what randomness makes of it."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, torch.rand(()).item(), random.random(), float(np.random.rand())


def loader(data: Any = None, **options: Any) -> ElasticLoader:
    return ElasticLoader(
        Numbers() if data is None else data, **({"global_batch": 8, "rank": 0, "world_size": 1} | options)
    )


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_the_public_names() -> None:
    assert outlast.ElasticLoader is ElasticLoader
    assert outlast.ElasticIterable
    assert outlast.sample_generator


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_anywhere_in_the_loop_knows_what_the_model_has_seen(workers: int, optimizer: Any) -> None:
    each = loader(num_workers=workers)
    seen = 0
    for _, weights in each:
        assert each.state_dict()["samples"] == seen  # given out, not trained
        optimizer.step()
        seen += int((weights > 0).sum())
        assert each.state_dict()["samples"] == seen
    assert (seen, each.epoch) == (LENGTH, 1)


def test_batches_that_wait_for_a_step_are_committed_by_it_also_in_the_next_epoch(optimizer: Any) -> None:
    """Seven batches in an epoch, a step after every third: the third step has the first two of the second epoch."""
    each = loader()
    counts: Counter[int] = Counter()
    for at, ((numbers, *_), weights) in enumerate(each):
        counts.update(n for n, w in zip(numbers.tolist(), weights, strict=True) if w)
        if at % 3 == 2:
            optimizer.step()
    assert (each.position.samples, each.epoch) == (48, 1)  # the seventh batch waits for its step
    second = iter(each)
    next(second)
    next(second)
    assert (each.position.epoch, each.position.samples) == (0, 48)
    optimizer.step()
    assert (each.position.epoch, each.position.samples) == (1, 16)
    assert counts == dict.fromkeys(range(LENGTH), 1)


def test_a_pass_that_is_given_up_is_begun_again_at_the_last_step(optimizer: Any) -> None:
    each = loader(shuffle=False, num_workers=1)
    for at, _ in enumerate(each):
        if at == 2:
            break  # without a step
        optimizer.step()
    ((numbers, *_), _) = next(iter(each))
    assert numbers.tolist() == list(range(16, 24))


def test_other_loaders_and_dead_ones_do_not_disturb(optimizer: Any) -> None:
    first, second = loader(), loader()
    next(iter(first))
    del second
    gc.collect()
    optimizer.step()
    assert first.position.samples == 8


def test_without_an_optimizer_it_says_what_to_do_and_commit_does_it() -> None:
    with pytest.warns(UserWarning, match=r"loader\.commit\(\)"):
        list(loader())
    each = loader()
    for _ in each:
        each.commit()
    assert each.epoch == 1


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_other_tails_come_without_weights(tail: Any, optimizer: Any) -> None:
    counts: Counter[int] = Counter()
    for numbers, *_ in loader(tail=tail):
        counts.update(numbers.tolist())
        optimizer.step()
    assert sum(counts.values()) == (48 if tail == "drop" else 56)


def test_each_sample_has_its_own_randomness_whoever_loads_it(optimizer: Any) -> None:
    def samples(epochs: int = 1, **options: Any) -> list[tuple[float, ...]]:
        found = []
        each = loader(**options)
        for _ in range(epochs):
            found = [
                tuple(float(part) for part in sample)
                for batch, weights in each
                for *sample, weight in zip(*batch, weights, strict=True)
                if weight and (optimizer.step() or True)
            ]
        return sorted(found)

    alone = samples()
    assert len({part for sample in alone for part in sample[1:]}) == 3 * LENGTH
    assert samples(num_workers=2) == alone
    two = [samples(rank=rank, world_size=2, global_batch=6) for rank in range(2)]
    assert sorted(two[0] + two[1]) == alone
    assert samples(epochs=2) != alone
    assert samples(seed=1) != alone
    assert samples(seed_samples=False) != alone


def test_loading_leaves_the_randomness_of_training_alone() -> None:
    def draw(load: bool) -> tuple[float, float, float]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        if load:
            next(iter(loader()))
        return torch.rand(()).item(), random.random(), float(np.random.rand())

    assert draw(load=True) == draw(load=False)


def test_data_that_loads_several_at_once_still_does(optimizer: Any) -> None:
    class Several(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [index * 10 for index in indices]

    for batch, _ in loader(Several(), shuffle=False):
        assert batch.tolist() == [0, 10, 20, 30, 40, 50, 60, 70]
        optimizer.step()
        break


@pytest.mark.parametrize("option", ["sampler", "batch_sampler", "drop_last"])
def test_what_it_decides_itself_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        loader(**{option: True})


class TestStreams:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[Path]:
        """Seven files with 0 to 12 lines, 42 in all."""
        number = iter(range(1000))
        made = []
        for at in range(7):
            path = tmp_path / f"{at}.txt"
            path.write_text("".join(f"{next(number)}\n" for _ in range(at * 2)))
            made.append(path)
        return made

    @staticmethod
    def lines(path: Path) -> Iterator[str]:
        with path.open() as file:
            yield from file

    @pytest.mark.parametrize("counted", [False, True])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_each_line_once_on_changing_world_sizes(
        self, files: list[Path], counted: bool, workers: int, optimizer: Any
    ) -> None:
        lengths = [at * 2 for at in range(7)] if counted else None
        data = outlast.ElasticIterable(files, self.lines, transform=int, lengths=lengths)
        seen: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
        state: Any = None
        for world_size, steps in ((2, 2), (3, 4), (1, 3), (2, 100)):
            ranks = [
                loader(data, global_batch=5, rank=rank, world_size=world_size, num_workers=workers)
                for rank in range(world_size)
            ]
            for each in ranks:
                if state:
                    each.load_state_dict(state)
            while steps > 0 and (epoch := ranks[0].epoch) < 2:
                for batches in zip(*(prefetched(iter(each), 0) for each in ranks), strict=True):
                    for numbers, weights in batches:
                        seen[epoch].update(n for n, w in zip(numbers.tolist(), weights, strict=True) if w)
                    optimizer.step()
                    steps -= 1
                    if steps == 0:
                        break
            states = [each.state_dict() for each in ranks]
            assert all(each == states[0] for each in states)
            state = states[0]
        assert seen == {0: dict.fromkeys(range(42), 1), 1: dict.fromkeys(range(42), 1)}

    def test_shards_that_lie_behind_are_not_opened_when_their_lengths_are_known(self, files: list[Path]) -> None:
        opened: list[Path] = []

        def read(path: Path) -> Iterator[str]:
            opened.append(path)
            return self.lines(path)

        data = outlast.ElasticIterable(files, read, transform=int, lengths=[at * 2 for at in range(7)])
        each = loader(data, shuffle=False, global_batch=4)
        each.load_state_dict(each.state_dict() | {"samples": 31})
        ((numbers, _)) = next(iter(each))
        assert numbers.tolist() == [31, 32, 33, 34]
        assert opened == files[6:]
        assert len(each) == 3

    def test_dropped_tails_and_what_is_left_of_them_lead_to_the_next_epoch(
        self, files: list[Path], optimizer: Any
    ) -> None:
        data = outlast.ElasticIterable(files, self.lines, transform=int)
        each = loader(data, global_batch=4, tail="drop")
        assert sum(len(batch) for batch in each if optimizer.step() or True) == 40
        assert each.epoch == 1
        each.load_state_dict(each.state_dict() | {"epoch": 1, "samples": 40})
        assert list(each) == []
        assert each.epoch == 2

    def test_a_wrong_length_is_said(self, files: list[Path]) -> None:
        data = outlast.ElasticIterable(files, self.lines, lengths=[3] * 7)
        with pytest.raises(ValueError, match="correct lengths"):
            list(loader(data, shuffle=False))

    @pytest.mark.parametrize(("tail", "samples"), [("drop", 7), ("mask", 0)])
    def test_an_epoch_without_a_batch_is_said(self, tail: str, samples: int) -> None:
        """Else a script would run through all of its epochs, train nothing, and end well."""
        data = outlast.ElasticIterable([0], read=lambda _: range(samples))
        with pytest.raises(ValueError, match="nothing to train in epoch 0"):
            list(loader(data, tail=tail))

    def test_a_checkpoint_of_other_shards_is_refused(self, files: list[Path]) -> None:
        state = loader(outlast.ElasticIterable(files, self.lines)).state_dict()
        with pytest.raises(ValueError, match="shards 7"):
            loader(outlast.ElasticIterable(files[1:], self.lines)).load_state_dict(state)

    def test_a_stream_of_unknown_length_has_none(self, files: list[Path]) -> None:
        with pytest.raises(TypeError, match="lengths"):
            len(loader(outlast.ElasticIterable(files, self.lines)))

    def test_what_cannot_be_is_refused(self, files: list[Path]) -> None:
        with pytest.raises(ValueError, match="no shards"):
            outlast.ElasticIterable([], self.lines)
        with pytest.raises(ValueError, match="one for each"):
            outlast.ElasticIterable(files, self.lines, lengths=[1])
        with pytest.raises(ValueError, match="pad"):
            loader(outlast.ElasticIterable(files, self.lines), tail="pad")


class Lines(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_data_that_is_read_one_after_the_other_is_refused_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"Lines is an IterableDataset.* outlast.ElasticIterable\(shards, read=…\)"):
        ElasticLoader(Lines(), batch_size=1)
    with pytest.raises(TypeError, match=r"Lines has no length: .*outlast.ElasticIterable"):
        outlast.ElasticSampler(Lines(), batch_size=1)
