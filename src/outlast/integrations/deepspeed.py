"""DeepSpeed's ZeRO with Outlast's checkpoints: saves at the speed of memory, and goes on from the newest, exactly.

    from outlast.integrations import deepspeed as zero

    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    ckpt = outlast.Checkpointer("checkpoints/")
    state = {**zero.state(engine), "epoch": 0}
    start = ckpt.restore(state)
    for step in range(start + 1, steps + 1):
        ...                                        # engine(…), engine.backward(…), engine.step()
        ckpt.save(step, state, durable=step % 1000 == 0)

ZeRO 1, 2 and 3, on as many ranks as it was saved by. Save between steps of the optimizer, not while gradients are being
accumulated: they are not saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from outlast.checkpoint.trainer.per_rank import PerRank

try:
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "outlast.integrations.deepspeed needs deepspeed: pip install deepspeed", name=error.name
    ) from error

# What an optimizer's state has that is no plain value, and that the one which is loaded into has as well.
_FIXED = ("loss_scaler", "param_slice_mappings", "zero_stage", "universal_checkpoint_info")
_COUNTS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
_PLAIN = (torch.Tensor, str, int, float, bool, type(None))


def state(engine: Any) -> dict[str, Any]:
    """What of an engine belongs into the state for `outlast.Checkpointer`: model, ZeRO's optimizer, schedule, counts.

        state = {**state(engine), "epoch": 0}

    Raises ValueError, in one line, for an engine that has no ZeRO, or one whose state is not to be had.
    """
    optimizer = engine.optimizer
    if not isinstance(optimizer, ZeROOptimizer):
        raise ValueError('this engine has no ZeRO: give {"model": engine.module, "optim": engine.optimizer} as it is')
    if getattr(optimizer, "elastic_checkpoint", False):
        raise ValueError("each rank loads its own part: set zero_optimization.elastic_checkpoint to false")
    if getattr(optimizer, "swap_optimizer", False):
        raise ValueError("what ZeRO has on NVMe cannot be saved: offload the optimizer to the cpu, or not at all")
    found: dict[str, Any] = {}
    if not _is_split(engine.module):  # else the optimizer's parts are the model
        alone = engine.dp_world_size == dist.get_world_size() and not engine.has_moe_layers
        found["model"] = engine.module if alone else PerRank(engine.module)
    found["zero"] = PerRank(_Zero(engine))
    if engine.lr_scheduler is not None:
        found["schedule"] = engine.lr_scheduler
    return found


class _Zero:
    """What a rank has for itself: its part of the optimizer, and of what ZeRO 3 has split and nobody trains.

    Buffers, too: DeepSpeed leaves them to each rank.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._engine.optimizer
        parts = {key: value for key, value in optimizer.state_dict().items() if key not in _FIXED}
        for key, value in parts.items():
            if not _is_plain(value):
                raise ValueError(
                    f"this version of DeepSpeed is not known here: its ZeRO has {key}, which is not a tensor"
                )
        scaler = getattr(optimizer, "loss_scaler", None)
        return {
            "optimizer": parts,
            "scaler": {key: value for key, value in vars(scaler).items() if _is_plain(value)} if scaler else {},
            "counts": {name: getattr(self._engine, name) for name in _COUNTS},
            "beside": dict(self._beside()),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        engine, optimizer = self._engine, self._engine.optimizer
        if scaler := getattr(optimizer, "loss_scaler", None):
            vars(scaler).update(state_dict["scaler"])
        parts = {**optimizer.state_dict(), **state_dict["optimizer"]}
        split = hasattr(optimizer, "checkpoint_event_prologue")
        if split:
            optimizer.checkpoint_event_prologue()
        # It takes those of all ranks, and looks at its own.
        ranks = dist.get_world_size(optimizer.dp_process_group)
        optimizer.load_state_dict([parts] * ranks, load_optimizer_states=True, load_from_fp32_weights=True)
        with torch.no_grad():
            for name, tensor in self._beside():
                tensor.copy_(state_dict["beside"][name])
        if split:
            optimizer.checkpoint_event_epilogue()
        for name, value in state_dict["counts"].items():
            setattr(engine, name, value)

    def _beside(self) -> Iterator[tuple[str, torch.Tensor]]:
        module = self._engine.module
        parameters = dict(module.named_parameters())
        for name, value in module.state_dict(keep_vars=True).items():
            if name not in parameters and isinstance(value, torch.Tensor) and not hasattr(value, "ds_tensor"):
                yield name, value.detach()
        for name, value in parameters.items():
            if not value.requires_grad and hasattr(value, "ds_tensor"):
                yield name, value.ds_tensor.detach()


def _is_split(module: torch.nn.Module) -> bool:
    return any(hasattr(each, "ds_tensor") for each in module.parameters())


def _is_plain(value: Any) -> bool:
    """Whether it can be loaded without trust."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, _PLAIN)
