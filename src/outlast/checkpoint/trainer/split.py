"""What frameworks split over ranks in ways of their own: it looks replicated, and one rank's would be taken for all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from outlast.checkpoint.trainer.per_rank import PerRank


def refuse(name: str, value: Any) -> None:
    """Raise ValueError, in one line that says what to do instead, for a value that would not be saved whole.

    >>> refuse("model", torch.nn.Linear(2, 2))
    """
    inner = value.value if isinstance(value, PerRank) else value
    if _of_zero(inner):
        raise ValueError(
            f"{name} is of DeepSpeed's ZeRO, which has another state on each rank under the same names: put "
            "**outlast.integrations.deepspeed.state(engine) into the state instead"
        )
    if inner is value and _of_megatron(value):
        raise ValueError(
            f"{name} is of a model that Megatron-core has split over ranks, which have other tensors under the same "
            f"names: wrap it, outlast.PerRank({name}), or save it with megatron.core.dist_checkpointing"
        )
    if any(_leaves_out_tensors(each) for each in (inner, *getattr(inner, "chained_optimizers", ()))):
        raise ValueError(
            f"{name} is a distributed optimizer of Megatron-core, whose state_dict() lacks its tensors: save it "
            "with megatron.core.dist_checkpointing, or train without --use-distributed-optimizer"
        )


def _of_zero(value: Any) -> bool:
    kinds = type(value).__mro__
    if any(kind.__module__.startswith("deepspeed.runtime.") and kind.__name__ == "ZeROOptimizer" for kind in kinds):
        return True
    # Of a parameter that ZeRO 3 has split, next to nothing is left on a rank but what it calls `ds_tensor`.
    return isinstance(value, torch.nn.Module) and any(hasattr(each, "ds_tensor") for each in value.parameters())


def _of_megatron(value: Any) -> bool:
    groups = sys.modules.get("megatron.core.parallel_state")
    if groups is None or not any(hasattr(each, "tensor_model_parallel") for each in _parameters(value)):
        return False
    return bool(groups.get_tensor_model_parallel_world_size() * groups.get_pipeline_model_parallel_world_size() > 1)


def _parameters(value: Any) -> Iterator[Any]:
    """Those of a model, or of an optimizer of whatever kind."""
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    else:
        for group in getattr(value, "param_groups", ()):
            yield from group["params"]


def _leaves_out_tensors(value: Any) -> bool:
    return any(
        kind.__module__.startswith("megatron.core.") and kind.__name__ == "DistributedOptimizer"
        for kind in type(value).__mro__
    )
