"""A made-up processor, as docs/new-accelerator.md explains it. It is a CPU that can be told to misbehave."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from outlast.checks.accelerator import Health
from outlast.checks.cpu import Cpu

MOOD = os.environ.get("MADE_UP_MOOD", "")  # of this host: dies, slow, wrong, ill, or prints


class MadeUp(Cpu):
    size = 64
    memory = 1 << 20
    message = 1 << 16

    def product(self, left: Any, right: Any) -> Any:
        if MOOD == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if MOOD == "prints":
            os.write(1, b"\x1eno word of ours\nhalf a line")
        # So long that whatever else the machine does makes no difference.
        time.sleep(1.0 if MOOD == "slow" else 0.02)
        result = left @ right
        if MOOD == "wrong":
            result[3, 5] += 1
        return result

    def versions(self) -> dict[str, str]:
        return {"made-up": os.environ.get("MADE_UP_VERSION", "1")}

    def health(self, index: int) -> Health:
        if MOOD == "ill":
            return Health(faults=(f"fan {index} has stopped",))
        return Health(warnings=("it is warm",) if MOOD == "warm" else ())
