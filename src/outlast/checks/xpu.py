"""Intel's GPUs: torch has the device "xpu" and the backend "xccl" by itself."""

from __future__ import annotations

from outlast.checks.accelerator import Accelerator


class Xpu(Accelerator):
    device = "xpu"
    backend = "xccl"
    dtype = "bfloat16"
    size = 4096
    memory = 1 << 30
    message = 64 << 20
