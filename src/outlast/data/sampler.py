"""`ElasticSampler`: which samples this rank trains next, for torch's DataLoader and torchdata's StatefulDataLoader.

A loader with workers asks for indices long before they are trained. So asking moves nothing: a pass has a cursor of its
own, and the position moves when training says so (`commit`). A pass that is given up, or dies with its process, is
begun again at the position, and gives out again what was asked for and not trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sized
from itertools import chain
from operator import length_hint
from typing import Any, Literal, cast

import torch.distributed
from torch.utils.data import Sampler

from outlast.data.batch import BatchPlan
from outlast.data.order import Order, length_of
from outlast.data.position import Course, Position

Tail = Literal["mask", "drop", "pad"]
TAILS = ("mask", "drop", "pad")

_AT_ONCE = 1 << 15  # samples that are looked up together, at most; and at least half as many


class ElasticSampler(Sampler[int]):  # type: ignore[misc]
    """The samples of this rank, each exactly once per epoch over all ranks, whatever the world size is and becomes.

        sampler = outlast.ElasticSampler(dataset, batch_size=32)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4)
        if checkpoint:
            sampler.load_state_dict(checkpoint["sampler"])
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                train(batch)  # up to optimizer.step()
                sampler.commit()

    >>> sampler = ElasticSampler(10, batch_size=2, rank=1, world_size=2, shuffle=False)
    >>> list(sampler)
    [1, 3, 5, 7, 9, 1]
    >>> sampler.commit()  # the first batch of both ranks has been trained
    >>> list(sampler)
    [5, 7, 9, 1]
    >>> sampler.commit(), sampler.weights().tolist()  # of the last one, only what was not there before counts
    (None, [1.0, 0.0])

    `data`: the data set, or how many samples it has. `batch_size`: samples per rank and optimizer step, as in
    DataLoader. Instead of it, `global_batch`: samples per step over all ranks, constant on every world size; then the
    k-th batch is the same set of samples on each. `micro_batch`: the most that a rank takes at once of its share.

    `tail`: what becomes of samples that do not fill a batch. "mask" fills it up with others, which `weights()`
    marks with 0; "pad" fills it up, and those others are trained twice; "drop" leaves them out.

    `rank` and `world_size` are those of the process group, or of the launcher. Give them where only some dimensions of
    a mesh are data parallel.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        batch_size: int | None = None,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "mask",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        length = length_of(data)
        if length < 1:
            raise ValueError("the data set is empty: there is nothing to train")
        if tail not in TAILS:
            raise ValueError(f"tail is one of {', '.join(TAILS)}, not {tail!r}")
        self.rank, self.world_size = place(rank, world_size)
        self.plan = plan_of(batch_size, global_batch, micro_batch, self.world_size)
        if tail == "drop" and length < self.plan.global_batch:
            raise ValueError(
                f"tail='drop' would drop all {length} samples: a batch over all ranks has {self.plan.global_batch}"
            )
        last = self.plan.positions(self.world_size - 1, self.plan.micro_steps - 1, samples=self.plan.global_batch)
        if tail != "mask" and not last:
            raise ValueError(
                f"a global batch of {self.plan.global_batch} leaves some of {self.world_size} ranks nothing to train: "
                "use tail='mask', larger micro batches, or fewer ranks"
            )
        self.length = length
        self.tail = tail
        self.course = Course(length, seed, shuffle)
        self.position = Position()
        self._start: Position | None = None  # of the newest pass
        self._finished_on_purpose = False

    @property
    def epoch(self) -> int:
        """The epoch that the next pass is of: the next one when this one is finished."""
        return self.position.epoch + self._finished()

    @property
    def batch_size(self) -> int:
        """What DataLoader is to be given as its `batch_size`: samples that this rank takes at once."""
        return self.plan.micro_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in a whole epoch, on this world size."""
        return self.plan.steps(self.length, drop=self.tail == "drop")

    @property
    def batches(self) -> Batches:
        """The same as lists, for `batch_sampler=` of DataLoader: one list is one micro batch of this rank."""
        return Batches(self)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch. An epoch that has begun goes on where it was left; another begins anew."""
        if epoch < 0:
            raise ValueError(f"epochs are counted from 0, not {epoch}")
        if epoch != self.position.epoch:
            self.position = Position(epoch)
        self.hold()
        self._start = None

    def commit(self, samples: int | None = None) -> None:
        """So many samples, over all ranks, are in the model: by default one batch of every rank.

        Call it on every rank, after each optimizer step, before a checkpoint is saved.
        """
        if samples is None:
            left = self.length - self.position.samples
            if self._finished():
                raise ValueError(
                    f"commit() after the end of epoch {self.position.epoch}: commit once per optimizer step, "
                    "and set_epoch(n) before a new epoch"
                )
            samples = min(left, self.plan.global_batch)
        self.position = self.course.advance(self.position, samples)

    def weights(self, micro_step: int = 0) -> torch.Tensor:
        """What each sample of this rank's next batch that is not committed weighs: `(losses * weights).sum()`."""
        samples = min(self.length - self.position.samples, self.plan.global_batch)
        if self._finished():
            raise ValueError(f"epoch {self.position.epoch} is finished: there is no batch to weigh")
        return torch.tensor(self.plan.weights(self.rank, micro_step, samples=samples))

    def state_dict(self) -> dict[str, Any]:
        """The position, for the checkpoint that the model is saved in. It is the same on every rank."""
        return self.course.save(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was saved, on whatever world size that was."""
        self.position = self.course.load(state)
        self._start = None
        self._finished_on_purpose = False

    def __iter__(self) -> Iterator[int]:
        if not self.plan.even and self.tail != "mask":
            raise ValueError(
                f"a global batch of {self.plan.global_batch} does not divide evenly among {self.world_size} ranks: "
                "give the loader batch_sampler=sampler.batches instead of sampler=sampler, or use tail='mask'"
            )
        return Samples.of(self)

    def __len__(self) -> int:
        """How many samples the newest pass, or else the next one, gives out on this rank."""
        return self.micro_batches() * self.plan.micro_size

    def micro_batches(self) -> int:
        """How many micro batches the newest pass, or else the next one, gives out; the same on every rank."""
        start = self.next_start(self.position) if self._start is None or self._finished() else self._start
        return self.plan.steps(self.length - start.samples, drop=self.tail == "drop") * self.plan.micro_steps

    def begin(self) -> Position:
        """A pass begins now: here."""
        self.position = self.next_start(self.position)
        self.begun(self.position)
        return self.position

    def begun(self, start: Position) -> None:
        """A pass has begun there, wherever the position is."""
        self._start = start
        self._finished_on_purpose = False

    def next_start(self, position: Position) -> Position:
        """Where a pass begins when training is at this position: there, or where the next epoch does."""
        if self._finished(position) and not self._finished_on_purpose:
            return Position(position.epoch + 1)
        return position

    def hold(self) -> None:
        """Should the epoch be finished, the next pass is one over nothing: it belongs to this epoch still."""
        self._finished_on_purpose = self._finished()

    def after(self, start: Position, micro_batches: int) -> Position:
        """The position once so many micro batches of a pass have been trained on every rank."""
        batches, micro_steps = divmod(micro_batches, self.plan.micro_steps)
        of_batch = min(self.plan.bounds(micro_steps)[0], self.plan.global_batch)
        samples = start.samples + batches * self.plan.global_batch + of_batch
        return Position(start.epoch, min(samples, self.length))

    def chunks(self, start: Position) -> Iterator[tuple[list[int], list[int]]]:
        """The samples of this rank from here to the end of the epoch, and how they are cut into micro batches."""
        order = Order(self.length, seed=self.course.seed, epoch=start.epoch, shuffle=self.course.shuffle)
        gathered: list[range] = []
        size = 0
        for positions in self._runs(start.samples):
            gathered.append(positions)
            size += len(positions)
            if size >= _AT_ONCE // 2:
                yield self._look_up(order, gathered), self._cuts(gathered)
                gathered, size = [], 0
        if gathered:
            yield self._look_up(order, gathered), self._cuts(gathered)

    def _runs(self, at: int) -> Iterator[range]:
        """Positions of this rank, in runs of whole micro batches; those that fill up may lie beyond the end."""
        plan, world = self.plan, self.world_size
        if plan.even:
            whole = at + (self.length - at) // plan.global_batch * plan.global_batch
            stride = max(_AT_ONCE // plan.micro_size, 1) * plan.micro_size * world
            for first in range(at, whole, stride):
                yield range(first + self.rank, min(first + stride, whole), world)
            at = whole
        for first in range(at, self.length, plan.global_batch):
            if self.tail == "drop" and first + plan.global_batch > self.length:
                return
            for step in range(plan.micro_steps):
                own = plan.positions(self.rank, step, samples=None if self.tail == "mask" else plan.global_batch)
                yield range(first + own.start, first + own.stop, world)

    def _look_up(self, order: Order, runs: list[range]) -> list[int]:
        if len(runs) == 1 and runs[0][-1] < self.length:
            return order.samples(runs[0])
        return order.samples(position % self.length for run in runs for position in run)

    def _cuts(self, runs: list[range]) -> list[int]:
        cuts: list[int] = []
        for run in runs:
            whole, rest = divmod(len(run), self.plan.micro_size)
            cuts += [self.plan.micro_size] * whole + [rest] * (rest > 0)
        return cuts

    def _finished(self, position: Position | None = None) -> bool:
        left = self.length - (position or self.position).samples
        return left < (self.plan.global_batch if self.tail == "drop" else 1)


class Samples(chain[int]):
    """One pass, sample by sample. It begins when the first one is asked for: loaders make iterators and drop them.

    The chain is C: what a sample costs is what its chunk costs. So it is not counted either; how much of the newest
    chunk is left says how many were given out. StatefulDataLoader keeps this state of every iterator it asks.
    """

    sampler: ElasticSampler
    start: Position | None
    asked: int
    chunk: Iterator[int]

    @classmethod
    def of(cls, sampler: ElasticSampler) -> Samples:
        def chunks() -> Iterator[Iterator[int]]:
            self.start = sampler.begin()
            for samples, _ in sampler.chunks(self.start):
                self.asked += len(samples)
                self.chunk = iter(samples)
                yield self.chunk

        self = cast(Samples, cls.from_iterable(chunks()))
        self.sampler, self.start, self.asked, self.chunk = sampler, None, 0, iter(())
        return self

    def state_dict(self) -> dict[str, Any]:
        """The position after what was given out, wherever training is: the loader keeps track of that itself."""
        sampler = self.sampler
        if self.start is None:
            return sampler.state_dict()
        given = self.asked - length_hint(self.chunk)
        if sampler.plan.even:
            after = min(self.start.samples + given * sampler.world_size, sampler.length)
            return sampler.course.save(Position(self.start.epoch, after))
        return sampler.course.save(sampler.after(self.start, given // sampler.plan.micro_size))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin there. What a loader has given out counts as trained, for the sampler too."""
        self.sampler.load_state_dict(state)
        self.sampler.hold()


class Batches:
    """The micro batches of this rank, as lists of samples: `DataLoader(dataset, batch_sampler=sampler.batches)`."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> BatchPass:
        return BatchPass(self.sampler)

    def __len__(self) -> int:
        return self.sampler.micro_batches()

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)


class BatchPass(Iterator[list[int]]):
    """One pass, micro batch by micro batch."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self.sampler = sampler
        self.start: Position | None = None
        self.given = 0
        self._lists = self._make()

    def __next__(self) -> list[int]:
        batch = next(self._lists)
        self.given += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position after what was given out, wherever training is: the loader keeps track of that itself."""
        if self.start is None:
            return self.sampler.state_dict()
        return self.sampler.course.save(self.sampler.after(self.start, self.given))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin there. What a loader has given out counts as trained, for the sampler too."""
        self.sampler.load_state_dict(state)
        self.sampler.hold()

    def _make(self) -> Iterator[list[int]]:
        self.start = self.sampler.begin()
        for samples, cuts in self.sampler.chunks(self.start):
            at = 0
            for cut in cuts:
                yield samples[at : at + cut]
                at += cut


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process's rank and world size: as given, or the process group's, or the launcher's, or alone."""
    if (rank is None) != (world_size is None):
        raise ValueError("give rank and world_size together, or neither")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} ranks, which are counted from 0")
    return rank, world_size


def plan_of(batch_size: int | None, global_batch: int | None, micro_batch: int | None, world_size: int) -> BatchPlan:
    """The plan that a user asked for, by the batch of a rank or by that of all ranks."""
    if (batch_size is None) == (global_batch is None):
        raise ValueError("give either batch_size (samples per rank) or global_batch (samples over all ranks)")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    return BatchPlan(global_batch or (batch_size or 0) * world_size, micro_batch, world_size)
