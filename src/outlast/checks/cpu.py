"""Processors without an accelerator."""

from __future__ import annotations

import os

from outlast.checks.accelerator import Accelerator


class Cpu(Accelerator):
    device = "cpu"
    size = 768  # a product takes longer than a scheduler's slice: else nobody sees that others want the CPU, too
    memory = 32 << 20
    message = 4 << 20

    def count(self) -> int:
        return len(os.sched_getaffinity(0))

    def use(self, index: int) -> None:  # noqa: ARG002
        """Any of them will do, and one is enough: threads that wait for each other measure the machine's mood."""
        self.torch.set_num_threads(1)

    def synchronize(self) -> None:
        """Nothing is done later."""
