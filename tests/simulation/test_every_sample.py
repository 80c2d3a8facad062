"""Every sample exactly once per epoch in the surviving history, over random stories of kills and world sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data_plans import Model, Story, stories, tell
from outlast.data.iterable import ElasticIterable
from outlast.data.loader import ElasticLoader
from outlast.data.order import Order
from outlast.data.sampler import ElasticSampler

CAMPAIGN = settings.get_current_profile_name() == "campaign"
MANY = settings() if CAMPAIGN else settings(max_examples=300, derandomize=True)


class SamplerRank:
    """A rank that trains with ElasticSampler as `sampler=` or as `batch_sampler=`."""

    def __init__(self, sampler: ElasticSampler, state: Any, *, as_batches: bool, set_epoch: bool) -> None:
        self.sampler = sampler
        self.as_batches, self.set_epoch = as_batches, set_epoch
        if state:
            sampler.load_state_dict(state)

    def batches(self) -> Iterator[list[tuple[int, float]]]:
        if self.set_epoch:
            self.sampler.set_epoch(self.sampler.epoch)
        plan = self.sampler.plan
        expected = self.sampler.micro_batches()
        lists = iter(self.sampler.batches) if self.as_batches else cut(iter(self.sampler), self.sampler.batch_size)
        given = list(lists)
        assert len(given) == expected
        start = self.sampler.position.samples
        for at in range(0, len(given), plan.micro_steps):
            left = min(self.sampler.length - start, plan.global_batch)
            weights = [plan.weights(self.sampler.rank, step, samples=left) for step in range(plan.micro_steps)]
            start += left
            step = given[at : at + plan.micro_steps]
            if self.sampler.tail == "mask":
                yield [
                    pair
                    for batch, weight in zip(step, weights, strict=True)
                    for pair in zip(batch, weight, strict=True)
                ]
            else:  # all count the same
                each = self.sampler.world_size / plan.global_batch
                yield [(sample, each) for batch in step for sample in batch]

    def step(self) -> None:
        self.sampler.commit()

    def epoch(self) -> int:
        return self.sampler.epoch

    def state(self) -> Any:
        return self.sampler.state_dict()


def cut(samples: Iterator[int], size: int) -> Iterator[list[int]]:
    """As DataLoader does."""
    batch: list[int] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == size:
            yield batch
            batch = []
    assert not batch, "a pass ends with a whole batch"


def is_exact(story: Story, model: Model) -> None:
    once = dict.fromkeys(range(story.length), 1)
    assert model.epochs == dict.fromkeys(range(story.epochs), once)


@MANY
@given(story=stories, as_batches=st.booleans(), set_epoch=st.booleans(), micro=st.none() | st.integers(1, 10))
def test_with_a_constant_global_batch(story: Story, as_batches: bool, set_epoch: bool, micro: int | None) -> None:
    def make(rank: int, world_size: int, state: Any) -> SamplerRank:
        sampler = ElasticSampler(
            story.length,
            global_batch=story.global_batch,
            micro_batch=micro,
            seed=story.seed,
            rank=rank,
            world_size=world_size,
        )
        return SamplerRank(sampler, state, as_batches=as_batches, set_epoch=set_epoch)

    model = tell(story, make)
    is_exact(story, model)
    # And the k-th batch is the same set of samples, whoever trained it.
    for epoch, batches in model.batches.items():
        order = Order(story.length, seed=story.seed, epoch=epoch).samples(range(story.length))
        size = story.global_batch
        assert batches == [frozenset(order[at : at + size]) for at in range(0, story.length, size)]


@MANY
@given(story=stories, batch_size=st.integers(1, 9), as_batches=st.booleans())
def test_with_a_constant_batch_per_rank(story: Story, batch_size: int, as_batches: bool) -> None:
    def make(rank: int, world_size: int, state: Any) -> SamplerRank:
        sampler = ElasticSampler(story.length, batch_size=batch_size, seed=story.seed, rank=rank, world_size=world_size)
        return SamplerRank(sampler, state, as_batches=as_batches, set_epoch=True)

    is_exact(story, tell(story, make))


@MANY
@given(story=stories, tail=st.sampled_from(["drop", "pad"]))
def test_dropped_and_padded_tails_concern_the_last_batch_only(story: Story, tail: Any) -> None:
    global_batch = min(story.global_batch, story.length)
    assume(all(life.world_size <= global_batch for life in story.lives) and global_batch >= 3)

    def make(rank: int, world_size: int, state: Any) -> SamplerRank:
        sampler = ElasticSampler(
            story.length, global_batch=global_batch, tail=tail, seed=story.seed, rank=rank, world_size=world_size
        )
        return SamplerRank(sampler, state, as_batches=True, set_epoch=False)

    rest = story.length % global_batch
    for epoch, counter in tell(story, make).epochs.items():
        order = Order(story.length, seed=story.seed, epoch=epoch).samples(range(story.length))
        if tail == "drop":
            assert counter == dict.fromkeys(order[: story.length - rest], 1)
        else:
            again = order[: -rest % global_batch if rest else 0]
            assert counter == {sample: 1 + (sample in again) for sample in order}


class LoaderRank:
    """A rank that trains with ElasticLoader, on data that is indexed or streams."""

    def __init__(self, loader: ElasticLoader, state: Any) -> None:
        self.loader = loader
        if state:
            loader.load_state_dict(state)

    def batches(self) -> Iterator[list[tuple[int, float]]]:
        gathered: list[tuple[int, float]] = []
        for at, (batch, weights) in enumerate(self.loader):
            gathered += zip(batch, weights.double().tolist(), strict=True)
            if (at + 1) % self.loader.plan.micro_steps == 0:
                yield gathered
                gathered = []
        assert not gathered

    def step(self) -> None:
        self.loader.commit()

    def epoch(self) -> int:
        return self.loader.epoch

    def state(self) -> Any:
        return self.loader.state_dict()


@MANY
@given(story=stories, shards=st.none() | st.integers(1, 9), counted=st.booleans(), micro=st.none() | st.integers(1, 10))
def test_with_a_loader(story: Story, shards: int | None, counted: bool, micro: int | None) -> None:
    data: Any = range(story.length)
    if shards:
        parts = [range(story.length)[part::shards] for part in range(shards)]
        data = ElasticIterable(parts, iter, lengths=[len(part) for part in parts] if counted else None)

    def make(rank: int, world_size: int, state: Any) -> LoaderRank:
        loader = ElasticLoader(
            data,
            global_batch=story.global_batch,
            micro_batch=micro,
            seed=story.seed,
            seed_samples=False,
            collate_fn=list,
            rank=rank,
            world_size=world_size,
        )
        return LoaderRank(loader, state)

    # Prefetching is the loader's own affair: asked for beyond the step, it would commit what is not trained.
    lives = [replace(life, prefetch=0) for life in story.lives]
    is_exact(story, tell(replace(story, lives=lives), make))
