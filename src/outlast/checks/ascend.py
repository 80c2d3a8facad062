"""Huawei's Ascend NPUs, through torch_npu, which gives torch the device "npu" and the backend "hccl"."""

from __future__ import annotations

from importlib import import_module, metadata

from outlast.checks.accelerator import Accelerator


class Ascend(Accelerator):
    device = "npu"
    backend = "hccl"
    dtype = "float16"
    size = 8192
    memory = 1 << 30
    message = 64 << 20

    def __init__(self) -> None:
        super().__init__()
        try:
            import_module("torch_npu")  # it makes itself known to torch
        except (ImportError, OSError):
            pass  # then there are none, as `count` will say

    def versions(self) -> dict[str, str]:
        return {"torch_npu": metadata.version("torch_npu")}
