"""Tensors as short texts: the same bits, the same text."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import xxhash

MOST = 256 << 20  # bytes of one state that are looked at; of more, evenly spread elements


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    """Of these tensors, in this order: to the bit, up to `MOST` bytes.

    >>> fingerprint([torch.ones(2)]) == fingerprint([torch.ones(2)]) != fingerprint([torch.zeros(2)])
    True
    """
    several = [_local(each) for each in tensors]
    whole = sum(each.numel() * each.element_size() for each in several)
    stride = max(1, math.ceil(whole / MOST))
    digest = xxhash.xxh3_64()
    for each in several:
        part = (each.flatten()[::stride] if stride > 1 else each).cpu().contiguous()
        size = part.numel() * part.element_size()
        if size:
            digest.update((ctypes.c_char * size).from_address(part.data_ptr()))
    return digest.hexdigest()


def norm(tensors: Iterable[torch.Tensor]) -> float:
    """The length of all of these as one vector."""
    squares = [float(torch.linalg.vector_norm(_local(each).float())) ** 2 for each in tensors]
    return math.sqrt(sum(squares))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The state of an optimizer, in the order of its parameters: of each parameter by name."""
    for parameter in parameters(optimizer):
        held = optimizer.state.get(parameter) or {}
        for name in sorted(held, key=str):
            if isinstance(held[name], torch.Tensor):
                yield held[name]


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What an optimizer steps."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _local(tensor: Any) -> torch.Tensor:
    """This rank's part, of a DTensor."""
    tensor = tensor.detach()
    made: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return made
