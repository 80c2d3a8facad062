"""Reads what the user gives to be saved, as nested dictionaries with DCP's names.

Models and optimizers go through `torch.distributed.checkpoint.state_dict`, so that the keys are those that users of DCP
expect: full names of parameters, without what DDP, FSDP or torch.compile put before them. Those functions take a tenth
of a second for a model of some hundred tensors. So there is a quick way beside them for the common case, which is used
only as long as it was seen to give the very same keys and the very same memory when the ranks planned together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from outlast.checkpoint.trainer import split
from outlast.checkpoint.trainer.flat import Nested, flatten
from outlast.checkpoint.trainer.optimizers import optimizer_state, owner, plain_name
from outlast.checkpoint.trainer.per_rank import PerRank, label


@runtime_checkable
class Stateful(Protocol):
    """Anything with a state: schedulers, samplers, data loaders, scalers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Sources:
    """Reads the state of what the user gave."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._quick: set[str] = set()  # names for which the quick way gives the same

    def read(self, state: Mapping[str, Any], *, verify: bool) -> Nested:
        """The state as nested dictionaries; tensors are the live ones. `verify`: see whether the quick way is right."""
        return {name: self._read(name, value, state, verify=verify) for name, value in state.items()}

    def _read(self, name: str, value: Any, state: Mapping[str, Any], *, verify: bool) -> Any:
        if verify:
            split.refuse(name, value)
        if isinstance(value, PerRank):
            nested = value.state_dict()
            if verify:
                _refuse_dtensors(name, nested)
            return {label(*rank_and_world(self._group)): nested}
        if isinstance(value, torch.nn.Module):
            if not verify and name in self._quick:
                return _model(value)
            slow = dcp.get_model_state_dict(value)
            for key, each in slow.items():
                if is_expanded(each):
                    raise ValueError(
                        f"{name}.{key} is expanded, and could not be loaded: give the model a clone() of it"
                    )
            if any(isinstance(each, ShardedTensor) for each in slow.values()):
                raise ValueError(
                    f"{name} is sharded by FSDP without a device mesh, in a way that torch has given up: make it with "
                    "FullyShardedDataParallel(…, device_mesh=…), or with torch.distributed.fsdp.fully_shard"
                )
            return self._compared(name, _model(value), slow)
        if isinstance(value, torch.optim.Optimizer):
            model = owner(value, state)
            if model is None:
                return value.state_dict()
            if verify and (others := [key for key in value.state if not isinstance(key, torch.Tensor)]):
                raise ValueError(
                    f"{name} has a state, {others[0]!r}, that belongs to none of its parameters, and DCP has no name "
                    f"for such: keep it in the optimizer's param_groups, or wrap it, outlast.PerRank({name})"
                )
            # Of an optimizer that has done nothing yet, DCP's function would make a state, by a step.
            if not value.state or (not verify and name in self._quick):
                return optimizer_state(value, model)
            return self._compared(name, optimizer_state(value, model), dcp.get_optimizer_state_dict(model, value))
        return value.state_dict() if isinstance(value, Stateful) else value

    def _compared(self, name: str, quick: Nested, slow: Nested) -> Nested:
        if _same(flatten(quick)[0], flatten(slow)[0]):
            self._quick.add(name)
            return quick
        self._quick.discard(name)
        return slow


def _refuse_dtensors(name: str, nested: Nested) -> None:
    for key, value in flatten({name: nested})[0].items():
        if isinstance(value, DTensor):
            raise ValueError(f"{key} is a DTensor, which knows where its parts belong: give {name} without PerRank")


def rank_and_world(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Of this process in the group; 0 of 1 without torch.distributed."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def is_expanded(value: Any) -> bool:
    """Whether elements of it share memory, so that it cannot be written to."""
    if not isinstance(value, torch.Tensor) or isinstance(value, ShardedTensor) or value.layout is not torch.strided:
        return False
    return any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True))


def _model(module: torch.nn.Module) -> Nested:
    if isinstance(module, DistributedDataParallel):
        module = module.module
    return {plain_name(name): value for name, value in module.state_dict().items()}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_identical(value, other[key]) for key, value in one.items())


def _identical(one: Any, other: Any) -> bool:
    if isinstance(one, DTensor) and isinstance(other, DTensor):
        return one.placements == other.placements and _identical(one._local_tensor, other._local_tensor)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        pieces = ((each.data_ptr(), each.shape, each.stride(), each.dtype, each.device) for each in (one, other))
        return next(pieces) == next(pieces)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    try:
        return type(one) is type(other) and bool(one == other)
    except (ValueError, RuntimeError):  # arrays, and tensors in tuples, are not equal or unequal as a whole
        return False
