"""What a loader gives out, step by step: the terms between `ElasticLoader` and where its samples come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from outlast.data.batch import BatchPlan
from outlast.data.position import Position


class Key(NamedTuple):
    """What a worker of a loader is told about one sample: its number in the epoch's data, and what was read of it."""

    epoch: int
    sample: int
    record: Any = None


class MicroBatch(NamedTuple):
    """One micro batch of this rank: its samples, what they weigh, and the position once all ranks have trained it."""

    keys: list[Key]
    weights: list[float]
    after: Position


class SampleSource(Protocol):
    """Where samples come from: a data set that is indexed, or a stream."""

    plan: BatchPlan
    position: Position

    @property
    def epoch(self) -> int: ...
    def next_start(self, position: Position) -> Position:
        """Where a pass begins when training is at this position."""

    def micro_batches(self) -> int: ...
    def give(self, start: Position) -> Iterator[MicroBatch]: ...
    def load(self, key: Key) -> Any:
        """The sample itself; called in a worker."""

    def load_many(self, keys: list[Key]) -> list[Any] | None:
        """Several samples at once, where the data can do that."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
