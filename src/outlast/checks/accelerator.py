"""What a check has to know of a kind of processor. Others than those that are built in come as plug-ins.

    [project.entry-points."outlast.accelerators"]
    tpu9000 = "my_package:Tpu9000"         # a subclass of outlast.checks.accelerator.Accelerator

All of it is written to torch's device interface (`torch.get_device_module`), so a subclass that only has names is
enough for a processor that torch knows. See docs/new-accelerator.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

GROUP = "outlast.accelerators"
BUILT_IN = {
    "cpu": "outlast.checks.cpu:Cpu",
    "cuda": "outlast.checks.cuda:Cuda",
    "ascend": "outlast.checks.ascend:Ascend",
    "xpu": "outlast.checks.xpu:Xpu",
}
OTHER_NAMES = {"nvidia.com/gpu": "cuda", "ascend-npu": "ascend"}  # as DLRover's users type them
AUTO = ("cuda", "ascend", "xpu")  # in this order, where there is one


class Health(msgspec.Struct, frozen=True):
    """What a device says about itself."""

    faults: tuple[str, ...] = ()  # each is reason enough to leave this node out
    warnings: tuple[str, ...] = ()


class Accelerator:
    """One kind of processor: the names that torch has for it, sizes that keep it busy for a moment, and its health."""

    device = ""  # as torch names it: torch.device("npu", 0)
    backend = "gloo"  # of torch.distributed, for collectives between such devices
    dtype = "float32"  # of the product
    size = 2048  # of the product's square matrices
    memory = 256 << 20  # bytes that are written and read back
    message = 16 << 20  # bytes of the collectives by which a network is measured

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch

    def count(self) -> int:
        """How many there are on this machine; 0: none, or torch cannot use them."""
        module = self.module()
        return int(module.device_count()) if module is not None and module.is_available() else 0

    def use(self, index: int) -> None:
        """Make this one the process's own."""
        module = self.module()
        if module is not None:
            module.set_device(index)

    def synchronize(self) -> None:
        """Wait until what was asked for has been done."""
        module = self.module()
        if module is not None:
            module.synchronize()

    def product(self, left: Any, right: Any) -> Any:
        """The matrix product that is timed, and whose result is known."""
        return left @ right

    def versions(self) -> dict[str, str]:
        """What should be the same on all nodes: a driver, a runtime."""
        return {}

    def health(self, index: int) -> Health:  # noqa: ARG002
        """What this device says about itself. Whatever it does not say is not held against it."""
        return Health()

    def module(self) -> Any:
        """torch's interface to such devices; None where this torch has none."""
        try:
            return self.torch.get_device_module(self.device)
        except RuntimeError:
            return None


def reference_of(name: str) -> str:
    """Where the accelerator of this name is. Raises ValueError, with the rest of a line, if there is none.

    >>> reference_of("cpu")
    'outlast.checks.cpu:Cpu'
    """
    name = OTHER_NAMES.get(name, name)
    if name in BUILT_IN:
        return BUILT_IN[name]
    from importlib import metadata  # slow to import, and hardly anybody needs it

    points = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    if name not in points:
        raise ValueError(f"must be one of {', '.join(['auto', *BUILT_IN, *points])}, not {name!r}")
    return points[name]


def find(name: str) -> Accelerator:
    """The accelerator of this name; "auto": the one that is there, else the CPU. Raises ValueError, in one line."""
    if name == "auto":
        found = (find(each) for each in AUTO)
        return next((each for each in found if each.count()), None) or find("cpu")
    reference = reference_of(name)
    module, _, attribute = reference.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"accelerator {name!r} ({reference}) cannot be loaded: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Accelerator)):
        raise ValueError(
            f"accelerator {name!r}: {reference} is not a subclass of outlast.checks.accelerator.Accelerator"
        )
    return kind()
