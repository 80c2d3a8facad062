"""`ElasticIterable`: samples that come in shards, which can be read but not indexed: files of lines, of records.

The stream of an epoch is one shard after the other, in an order made of (seed, epoch). Its samples are counted, and
rank *r* of *w* takes every *w*-th, so that one count is the position here too, exact within a shard, on any world
size. The price: every rank reads all records. So reading and making a sample of what was read are two functions:
`read` runs in the training process and should be cheap; `transform` runs in the loader's workers, for own samples only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from outlast.data.order import Order
from outlast.data.position import Course, Position
from outlast.data.sampler import Tail, place, plan_of
from outlast.data.source import Key, MicroBatch


class ElasticIterable:
    """Shards to read one after the other, for `outlast.ElasticLoader`.

        lines = outlast.ElasticIterable(sorted(Path("data").glob("*.txt")), read=open, transform=tokenize)
        loader = outlast.ElasticLoader(lines, global_batch=64, num_workers=4)

    `shards`: whatever `read` understands, in the same order in every run. `read(shard)` gives the records of a shard,
    always the same ones. `lengths`: how many each shard has, if that is known: then a run that goes on in the middle
    of an epoch opens none of those that lie behind it, and the loader has a length.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        read: Callable[[Any], Iterable[Any]],
        *,
        transform: Callable[[Any], Any] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        if not shards:
            raise ValueError("there are no shards: there is nothing to train")
        if lengths is not None and len(lengths) != len(shards):
            raise ValueError(f"lengths has {len(lengths)} entries for {len(shards)} shards: give one for each")
        self.shards = shards
        self.read = read
        self.transform = transform
        self.lengths = lengths

    def records(self, order: Order, skip: int = 0) -> Iterator[Any]:
        """The records of an epoch, the first `skip` left out: without opening their shards where that can be known."""
        shards = iter(order.samples(range(len(self.shards))))
        if self.lengths is None:
            return islice(chain.from_iterable(self._shard(number) for number in shards), skip, None)
        for number in shards:
            if skip < self.lengths[number]:
                own = islice(self._shard(number), skip, None)
                return chain(own, chain.from_iterable(self._shard(number) for number in shards))
            skip -= self.lengths[number]
        return iter(())

    def _shard(self, number: int) -> Iterator[Any]:
        """The records of one shard, which is closed when they have been read; counted where their number is known."""
        found = 0
        opened = self.read(self.shards[number])
        try:
            for record in opened:
                found += 1
                yield record
        finally:
            if callable(close := getattr(opened, "close", None)):
                close()
        if self.lengths is not None and found != self.lengths[number]:
            raise ValueError(
                f"shard {self.shards[number]!r} has {found} records, not {self.lengths[number]} as lengths says: "
                "correct lengths, or leave it out"
            )


class Stream:
    """The samples of an ElasticIterable, as a loader takes them."""

    def __init__(
        self,
        data: ElasticIterable,
        *,
        batch_size: int | None,
        global_batch: int | None,
        micro_batch: int | None,
        seed: int,
        shuffle: bool,
        tail: Tail,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        if tail == "pad":
            raise ValueError("a stream has no samples to pad with: use tail='mask' or tail='drop'")
        self.rank, self.world_size = place(rank, world_size)
        self.plan = plan_of(batch_size, global_batch, micro_batch, self.world_size)
        if tail == "drop" and not self.plan.even:
            raise ValueError(
                f"a global batch of {self.plan.global_batch} does not divide evenly among {self.world_size} ranks: "
                "use tail='mask'"
            )
        self.data = data
        self.tail = tail
        self.course = Course(None if data.lengths is None else sum(data.lengths), seed, shuffle, len(data.shards))
        self.position = Position()
        self._start: Position | None = None

    @property
    def epoch(self) -> int:
        return self.position.epoch

    def next_start(self, position: Position) -> Position:
        return position  # the last batch of an epoch leads to the next one

    def micro_batches(self) -> int:
        if self.course.length is None:
            raise TypeError("the length of this stream is unknown: give ElasticIterable the lengths of its shards")
        start = self._start or self.position
        return self.plan.steps(self.course.length - start.samples, drop=self.tail == "drop") * self.plan.micro_steps

    def give(self, start: Position) -> Iterator[MicroBatch]:
        self._start = start
        order = Order(len(self.data.shards), seed=self.course.seed, epoch=start.epoch, shuffle=self.course.shuffle)
        at = start.samples
        batches = self._batches(self.data.records(order, at))
        batch = next(batches, None)
        if batch is None:
            if at == 0:
                few = f"fewer samples than a batch, {self.plan.global_batch}" if self.tail == "drop" else "no samples"
                raise ValueError(f"there is nothing to train in epoch {start.epoch}: its shards have {few}")
            self.position = Position(start.epoch + 1)  # nothing is left of this epoch, so no batch can lead to the next
        while batch is not None:
            own, filler, samples = batch
            following = next(batches, None)  # one ahead: only the end of the stream tells which batch is the last one
            for step in range(self.plan.micro_steps):
                keys = [Key(start.epoch, at + p, own.get(p, filler)) for p in self.plan.positions(self.rank, step)]
                done = min(self.plan.bounds(step + 1)[0], samples)
                last = following is None and step + 1 == self.plan.micro_steps
                after = Position(start.epoch + 1) if last else Position(start.epoch, at + done)
                yield MicroBatch(keys, self.plan.weights(self.rank, step, samples=samples), after)
            at, batch = at + samples, following

    def _batches(self, records: Iterator[Any]) -> Iterator[tuple[dict[int, Any], Any, int]]:
        """Batch by batch: this rank's records by their position in it, one to fill up with, and how many it has."""
        while batch := self._batch(islice(records, self.plan.global_batch)):
            if batch[2] < self.plan.global_batch and self.tail == "drop":
                return
            yield batch

    def _batch(self, records: Iterator[Any]) -> tuple[dict[int, Any], Any, int] | None:
        own, filler, samples = {}, None, 0
        for position, record in enumerate(records):
            samples += 1
            if position == 0:
                filler = record
            if position % self.world_size == self.rank:
                own[position] = record
        return (own, filler, samples) if samples else None

    def load(self, key: Key) -> Any:
        return key.record if self.data.transform is None else self.data.transform(key.record)

    def load_many(self, keys: list[Key]) -> list[Any] | None:  # noqa: ARG002  (others can)
        return None

    def state_dict(self) -> dict[str, Any]:
        return self.course.save(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = self.course.load(state)
        self._start = None
