"""`ElasticLoader`: batches for training, each sample exactly once, with nothing else to say.

It hears from torch when an optimizer has made a step; what was given out until then is in the model, and that is where
the position moves. So steps of several batches, skipped steps and checkpoints in any place of the loop come out right.
"""

from __future__ import annotations

import random
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from outlast.data.batch import BatchPlan
from outlast.data.iterable import ElasticIterable, Stream
from outlast.data.position import Position
from outlast.data.sampler import ElasticSampler, Tail
from outlast.data.seeds import sample_seed
from outlast.data.source import Key, MicroBatch, SampleSource
from outlast.worker.session import session

END = object()  # of a pass


class ElasticLoader:
    """Batches of this rank, each sample exactly once per epoch over all ranks, on every world size.

        loader = outlast.ElasticLoader(dataset, global_batch=256, num_workers=4)
        if checkpoint:
            loader.load_state_dict(checkpoint["loader"])
        for epoch in range(loader.epoch, epochs):
            for batch, weights in loader:
                (losses(model, batch) * weights).sum().backward()
                optimizer.step()

    `data` is a data set that is indexed, or an `outlast.ElasticIterable`. `batch_size`, `global_batch`,
    `micro_batch`, `tail`, `rank` and `world_size` are those of `ElasticSampler`. With `tail="mask"` each batch comes
    with the weights of its samples; with "drop" and "pad" it comes alone.

    `seed_samples`: seed torch, `random` and numpy for each sample before it is loaded, so that augmentation depends
    on (seed, epoch, sample) alone; not where the data set loads several at once (`__getitems__`).

    Other options are those of torch's DataLoader: `num_workers`, `collate_fn`, `pin_memory`, …
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "mask",
        seed_samples: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        for name in ("sampler", "batch_sampler", "drop_last", "in_order"):
            if name in options:
                raise ValueError(f"ElasticLoader decides the order itself and takes no {name}=: use ElasticSampler")
        if isinstance(data, IterableDataset):
            raise TypeError(
                f"{type(data).__name__} is an IterableDataset, which cannot resume in the middle: give its shards, "
                "outlast.ElasticIterable(shards, read=…), or a data set with __len__ and __getitem__"
            )
        kind = Stream if isinstance(data, ElasticIterable) else MapSource
        self.source: SampleSource = kind(
            data,
            batch_size=batch_size,
            global_batch=global_batch,
            micro_batch=micro_batch,
            seed=seed,
            shuffle=shuffle,
            tail=tail,
            rank=rank,
            world_size=world_size,
        )
        self._weighs = tail == "mask"
        self._given: Position | None = None  # up to where batches were given out that no step has followed yet
        self._exhausted = False
        self._feed = _Feed(self.source)
        # DataLoader draws a number for its workers at the start of each pass: not from the randomness of training.
        options.setdefault("generator", torch.Generator().manual_seed(seed & (2**63 - 1)))
        samples = _Samples(self.source, seed if seed_samples else None)
        self._loader = DataLoader(samples, batch_sampler=self._feed, **options)
        handle = register_optimizer_step_post_hook(_Committer(self))
        weakref.finalize(self, handle.remove)

    @property
    def plan(self) -> BatchPlan:
        """How ranks share a batch."""
        return self.source.plan

    @property
    def epoch(self) -> int:
        """The epoch that the next pass is of."""
        return self.source.next_start(self._base()).epoch

    @property
    def position(self) -> Position:
        """What is in the model."""
        return self.source.position

    def __iter__(self) -> Iterator[Any]:
        start = self.source.next_start(self._base())
        self._exhausted = False
        before = self.source.position
        given = self._feed.begin(start)
        batches = iter(self._loader)
        while True:
            with session.waiting("data"):
                batch = next(batches, END)
            if batch is END:
                break
            _, weights, self._given = given.popleft()
            yield (batch, torch.tensor(weights)) if self._weighs else batch
        self._exhausted = True
        if self.source.position == before and self._given is not None:
            warnings.warn(
                "ElasticLoader saw no step of a torch optimizer in this pass: call loader.commit() after each step",
                stacklevel=2,
            )

    def __len__(self) -> int:
        """How many batches the newest pass, or else the next one, gives out; the same on every rank."""
        return self.source.micro_batches()

    def commit(self) -> None:
        """All that was given out is in the model: for training that steps no optimizer of torch's.

        Steps of torch's optimizers do this by themselves, unless they are compiled.
        """
        if self._given is not None:
            self.source.position, self._given = self._given, None

    def state_dict(self) -> dict[str, Any]:
        """The position, for the checkpoint that the model is saved in. It is the same on every rank."""
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was saved, on whatever world size that was."""
        self.source.load_state_dict(state)
        self._given, self._exhausted = None, False

    def _base(self) -> Position:
        """Where the next pass goes on. A pass that was given up is begun again at the position; one that came to its
        end is not, even if its last batches wait for a step that comes in the next epoch.
        """
        return self._given if self._exhausted and self._given is not None else self.source.position


class _Committer:
    """Told of every optimizer's steps; holds no loader that nobody else holds."""

    def __init__(self, loader: ElasticLoader) -> None:
        self._loader = weakref.ref(loader)

    def __call__(self, *_: object) -> None:
        # A step that is being compiled is not made now, and what is compiled cannot tell.
        if (loader := self._loader()) is not None and not torch.compiler.is_compiling():
            loader.commit()


class MapSource(ElasticSampler):
    """A data set that is indexed."""

    def __init__(self, data: Any, **options: Any) -> None:
        super().__init__(data, **options)
        self.data = data

    def give(self, start: Position) -> Iterator[MicroBatch]:
        self.begun(start)
        given = 0
        for samples, cuts in self.chunks(start):
            at = 0
            for cut in cuts:
                left = self.length - self.after(start, given - given % self.plan.micro_steps).samples
                weights = self.plan.weights(
                    self.rank, given % self.plan.micro_steps, samples=min(left, self.plan.global_batch)
                )
                keys = [Key(start.epoch, sample) for sample in samples[at : at + cut]]
                at, given = at + cut, given + 1
                yield MicroBatch(keys, weights, self.after(start, given))

    def load(self, key: Key) -> Any:
        return self.data[key.sample]

    def load_many(self, keys: list[Key]) -> list[Any] | None:
        if callable(fetch := getattr(self.data, "__getitems__", None)):
            found: list[Any] = fetch([key.sample for key in keys])
            return found
        return None


class _Feed:
    """The batch sampler: gives keys to the workers, and remembers what they are worth until the batch is there."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._start = Position()
        self._given: deque[MicroBatch] = deque()

    def begin(self, start: Position) -> deque[MicroBatch]:
        """Get ready for a pass from there; what it has given out will be found in here, in its order."""
        self._start, self._given = start, deque()
        return self._given

    def __iter__(self) -> Iterator[list[Key]]:
        given = self._given
        for batch in self._source.give(self._start):
            given.append(batch)
            yield batch.keys


class _Samples(Dataset[Any]):  # type: ignore[misc]
    """What the workers load from: each sample with its own randomness."""

    def __init__(self, source: SampleSource, seed: int | None) -> None:
        self._source = source
        self._seed = seed

    def __getitems__(self, keys: list[Key]) -> list[Any]:
        if (found := self._source.load_many(keys)) is not None:
            return found
        if self._seed is None:
            return [self._source.load(key) for key in keys]
        with _randomness_kept():
            return [self._load(key, self._seed) for key in keys]

    def __getitem__(self, key: Key) -> Any:
        return self.__getitems__([key])[0]

    def _load(self, key: Key, seed: int) -> Any:
        number = sample_seed(seed, key.epoch, key.sample)
        torch.default_generator.manual_seed(number)
        random.seed(number)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(number & 0xFFFFFFFF)
        return self._source.load(key)


@contextmanager
def _randomness_kept() -> Iterator[None]:
    """In the training process itself, dropout and the like go on as if nothing had been loaded."""
    if get_worker_info() is not None:
        yield
        return
    numpy = sys.modules.get("numpy")
    kept = torch.default_generator.get_state(), random.getstate(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(kept[0])
        random.setstate(kept[1])
        if numpy:
            numpy.random.set_state(kept[2])
