"""The state of a process's random numbers, in words that a checkpoint holds: Python's, NumPy's and torch's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_numbers() -> dict[str, Any]:
    """Where they are now."""
    legacy: Any = np.random.get_state()
    kind, keys, *rest = legacy
    found = {
        "python": random.getstate(),
        "numpy": [str(kind), keys.tolist(), *rest],
        "torch": torch.random.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.random.get_rng_state().tolist()
    return found


def set_random_numbers(found: dict[str, Any]) -> None:
    """Go on from there."""
    version, internal, gauss = found["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = found["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.random.set_rng_state(torch.tensor(found["torch"], dtype=torch.uint8))
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.random.set_rng_state(torch.tensor(found["cuda"], dtype=torch.uint8))
