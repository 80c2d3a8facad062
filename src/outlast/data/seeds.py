"""Randomness per sample: what augmentation does to a sample depends on the sample and the epoch, and on nothing else.

Seeded per worker, as loaders do it, a sample looks different whenever another worker or rank has it. Pure but for
`sample_generator`, which makes what torch takes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """A number of 63 bits for this sample in this epoch; another one for every other.

    >>> sample_seed(1, 0, 12345)
    1477405709048484569
    """
    digest = hashlib.blake2b(f"outlast sample {seed} {epoch} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def sample_generator(seed: int, epoch: int, sample: int) -> torch.Generator:
    """A generator for the augmentation of this sample in this epoch, the same on every rank and in every worker.

    >>> torch.rand(1, generator=sample_generator(1, 0, 12345))  # doctest: +SKIP
    """
    import torch

    return torch.Generator().manual_seed(sample_seed(seed, epoch, sample))
