"""NVIDIA GPUs (and AMD's, which torch calls the same). Their health comes from NVML, where that is installed."""

from __future__ import annotations

from outlast.checks import nvml
from outlast.checks.accelerator import Accelerator, Health


class Cuda(Accelerator):
    device = "cuda"
    backend = "nccl"
    dtype = "bfloat16"
    size = 8192
    memory = 1 << 30
    message = 64 << 20

    def versions(self) -> dict[str, str]:
        found = {"CUDA": str(self.torch.version.cuda or self.torch.version.hip)}
        driver = nvml.driver()
        return {**found, "driver": driver} if driver else found

    def health(self, index: int) -> Health:
        properties = self.torch.cuda.get_device_properties(index)
        return nvml.health(str(getattr(properties, "uuid", "")))
