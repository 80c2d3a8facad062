"""How far training has come: an epoch, and how many of its samples, over all ranks, are in the model.

Pure. One count is enough, because the order of samples is known from (seed, epoch): it means the same on every rank,
and on every world size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from outlast.data.order import VERSION


@dataclass(frozen=True, order=True)
class Position:
    """The first `samples` samples of `epoch`, and all of the epochs before it, have been trained."""

    epoch: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Course:
    """What a position is a position in. Two runs may share a checkpoint if this is the same in both.

    `length` is None for a stream of which nobody knows how long it is; `shards` is how many files it comes in.
    """

    length: int | None
    seed: int = 0
    shuffle: bool = True
    shards: int | None = None

    def advance(self, position: Position, samples: int) -> Position:
        """The position after so many more samples.

        >>> Course(length=100).advance(Position(epoch=1, samples=64), 32)
        Position(epoch=1, samples=96)
        """
        if samples < 0:
            raise ValueError(f"commit(n) takes how many samples were trained, not {samples}")
        after = position.samples + samples
        if self.length is not None and after > self.length:
            raise ValueError(
                f"commit({samples}) at sample {position.samples} goes beyond the epoch, which has {self.length}: "
                "commit once per optimizer step, and set_epoch(n) before a new epoch"
            )
        return replace(position, samples=after)

    def save(self, position: Position) -> dict[str, Any]:
        """The position as plain data, for a checkpoint."""
        return {"version": VERSION, "epoch": position.epoch, "samples": position.samples, **asdict(self)}

    def load(self, state: Mapping[str, Any]) -> Position:
        """The position that a checkpoint names; it must be one in the same data, in the same order.

        >>> course = Course(length=100, seed=3)
        >>> course.load(course.save(Position(2, 64)))
        Position(epoch=2, samples=64)
        """
        try:
            position = Position(int(state["epoch"]), int(state["samples"]))
            ours = {"version": VERSION, **asdict(self)}
            theirs = {name: state[name] for name in ours}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"this is not a position of Outlast ({error!r}): give what state_dict() returned"
            ) from None
        for name, value in ours.items():
            if theirs[name] != value:
                raise ValueError(
                    f"the checkpoint is of a training with {name} {theirs[name]!r}, this one has {value!r}: samples "
                    f"would be lost or repeated. Use the same {name}, or begin a new epoch with "
                    f"set_epoch({position.epoch + 1}) instead of load_state_dict"
                )
        if position.epoch < 0 or position.samples < 0 or (self.length is not None and position.samples > self.length):
            raise ValueError(f"the checkpoint names sample {position.samples} of {self.length}: it is damaged")
        return position
