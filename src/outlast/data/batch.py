"""Batch arithmetic: which positions of a global batch each rank trains, in which micro step, with which weight.

A global batch is a row of positions. Rank *r* of *w* takes every *w*-th of them, so that the set is the same whatever
*w* is, and no rank has more than one sample more than another. What a rank lacks to make its micro batches all of one
size is filled up with positions beyond the batch, which weigh nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchPlan:
    """How ranks share a global batch of a constant size, in micro batches that fit into their memory.

    >>> plan = BatchPlan(global_batch=128, micro_batch=16, world_size=3)
    >>> plan.micro_steps, plan.micro_size  # 128 / 3 = 42.7 per rank: three times 15, of which some weigh nothing
    (3, 15)
    >>> BatchPlan(global_batch=128, micro_batch=16, world_size=4).micro_steps
    2

    `micro_batch` is the most that a rank takes at once; without it, a rank takes its whole share at once.

    The weights of a batch add up to the world size, over all ranks and micro steps. So, where gradients are averaged
    over ranks (DDP, FSDP) and added up over micro steps, `(losses * weights).sum()` gives the gradient of the mean
    over the samples of the global batch, however unevenly they are spread.
    """

    global_batch: int
    micro_batch: int | None = None
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in ("global_batch", "micro_batch", "world_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")

    @property
    def share(self) -> int:
        """The most samples of a global batch that a rank has."""
        return -(-self.global_batch // self.world_size)

    @property
    def micro_steps(self) -> int:
        """How many micro batches every rank makes of its share; it steps its optimizer after the last one."""
        return -(-self.share // (self.micro_batch or self.share))

    @property
    def micro_size(self) -> int:
        """How many samples every micro batch has, those that weigh nothing included."""
        return -(-self.share // self.micro_steps)

    @property
    def even(self) -> bool:
        """Whether a full batch needs no filling."""
        return self.micro_size * self.micro_steps * self.world_size == self.global_batch

    def steps(self, samples: int, *, drop: bool = False) -> int:
        """How many global batches so many samples make; the last one may be smaller, or is dropped."""
        return samples // self.global_batch if drop else -(-samples // self.global_batch)

    def positions(self, rank: int, step: int, *, samples: int | None = None) -> range:
        """What this rank trains in micro step `step`, counted from the start of the batch.

        With `samples`, only those that a batch of so many has; without, also those that fill it up.

        >>> plan = BatchPlan(global_batch=8, world_size=3)
        >>> [list(plan.positions(rank, 0)) for rank in range(3)]
        [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
        >>> [list(plan.positions(rank, 0, samples=8)) for rank in range(3)]
        [[0, 3, 6], [1, 4, 7], [2, 5]]
        """
        start, stop = self.bounds(step)
        return range(start + rank, stop if samples is None else min(stop, samples), self.world_size)

    def bounds(self, step: int) -> tuple[int, int]:
        """What all ranks together train in micro step `step`: from, and up to."""
        size = self.micro_size * self.world_size
        return step * size, (step + 1) * size

    def weights(self, rank: int, step: int, *, samples: int | None = None) -> list[float]:
        """What each sample of this micro batch weighs in the loss; 0 for those that fill it up.

        `samples`: how many the batch has, when it is the last one of an epoch.

        >>> BatchPlan(global_batch=8, world_size=3).weights(2, 0)
        [0.375, 0.375, 0.0]
        """
        samples = self.global_batch if samples is None else samples
        each = self.world_size / samples
        return [each if position < samples else 0.0 for position in self.positions(rank, step)]
