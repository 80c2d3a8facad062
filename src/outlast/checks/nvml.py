"""What NVIDIA's management library says of a GPU. Without `nvidia-ml-py`, a driver or a call: nothing, and no harm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from outlast.checks.accelerator import Health
from outlast.system import proc

LINKS = 18  # NVLinks of a GPU, at most
# What slows a GPU down though nobody wants it to: bits of the clocks' event reasons.
THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
RECOVERY_ACTION = 274  # the field "GPU recovery action", of drivers that have it
ACTIONS = {1: "a GPU reset", 2: "a reboot of the node", 3: "a drain of its peers", 4: "a drain and a reset"}

Reading = Callable[[Any, Any], Iterator[tuple[bool, str]]]  # whether it is a fault, and what it is


def driver() -> str:
    """The driver's version; "" if nobody says."""
    with _library() as nvml:
        if nvml is not None:
            with suppress(nvml.NVMLError):
                return _text(nvml.nvmlSystemGetDriverVersion())
    return ""


def health(uuid: str) -> Health:
    """What is known of the GPU with this UUID, as torch has it."""
    with _library() as nvml:
        handle = _handle(nvml, uuid) if nvml is not None else None
        return read(nvml, handle) if handle is not None else Health()


def states() -> list[str]:
    """How the GPUs of this machine are, a line for each, and one for each fault: what is seen when a worker failed."""
    lines = []
    with _library() as nvml:
        for index in range(nvml.nvmlDeviceGetCount() if nvml is not None else 0):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                lines.append(f"GPU {index}: it cannot be reached ({error})")
                continue
            memory, name = nvml.nvmlDeviceGetMemoryInfo(handle), _text(nvml.nvmlDeviceGetName(handle))
            state = [f"{memory.used >> 20} of {memory.total >> 20} MiB used"]
            with suppress(nvml.NVMLError):
                state.append(f"{nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)} °C")
            found = read(nvml, handle)
            lines.append(f"GPU {index} ({name}): {', '.join([*state, *found.warnings])}")
            lines += [f"GPU {index} ({name}) is faulty: {fault}" for fault in found.faults]
    return lines


def read(nvml: Any, handle: Any) -> Health:
    """All readings of one GPU. A call that this library or this GPU does not have leaves its reading out."""
    faults: list[str] = []
    warnings: list[str] = []
    for reading in (_ecc, _pages, _rows, _recovery, _throttling, _processes, _pcie, _nvlink):
        with suppress(nvml.NVMLError, AttributeError):
            for fault, text in reading(nvml, handle):
                (faults if fault else warnings).append(text)
    return Health(tuple(faults), tuple(warnings))


def _ecc(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    current, pending = nvml.nvmlDeviceGetEccMode(handle)
    if current != pending:
        yield False, f"its ECC mode changes with the next reset, to {'on' if pending else 'off'}"
    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    errors = nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter)
    if errors:
        yield True, f"{errors} uncorrectable ECC errors since its driver was loaded"


def _pages(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    retired = nvml.nvmlDeviceGetRetiredPages(handle, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    if len(retired):
        yield False, f"{len(retired)} pages retired for double-bit errors"
    if nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle):
        yield True, "pages wait to be retired: it has to be reset"


def _rows(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    _, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    if failed:
        yield True, "the remapping of a row has failed"
    if pending:
        yield True, "rows wait to be remapped: it has to be reset"
    elif uncorrectable:
        yield False, f"{uncorrectable} rows remapped for uncorrectable errors"


def _recovery(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", RECOVERY_ACTION)
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn == 0 and value.value.uiVal:
        yield True, f"its driver asks for {ACTIONS.get(value.value.uiVal, f'recovery action {value.value.uiVal}')}"


def _throttling(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    found = [text for bit, text in THROTTLES.items() if reasons & bit]
    if found:
        yield False, f"it is throttled: {', '.join(found)}"


def _processes(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    """Those of others, or left behind; of a container's own, the pids that NVML gives are not always ours."""
    own = {os.getpid(), *proc.children(os.getppid())}  # a node's check has one process for each device
    strangers = set(proc.pids()) - own
    others = [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid in strangers]
    if others:
        yield False, f"other processes use it: {', '.join(map(str, others[:4]))}"


def _pcie(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    width, most = nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    if width < most:
        yield False, f"PCIe x{width} of x{most}"


def _nvlink(nvml: Any, handle: Any) -> Iterator[tuple[bool, str]]:
    states = []
    for link in range(LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except nvml.NVMLError:
            break  # it has no more of them
    if any(states) and not all(states):
        yield False, f"{states.count(False)} of {len(states)} NVLinks are down"


@contextmanager
def _library() -> Iterator[Any]:
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except (ImportError, OSError):
        nvml = None
    except Exception as error:
        if type(error).__name__ != "NVMLError" and not any(k.__name__ == "NVMLError" for k in type(error).__mro__):
            raise
        nvml = None  # no driver, or not one that it knows
    try:
        yield nvml
    finally:
        if nvml is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()


def _handle(nvml: Any, uuid: str) -> Any:
    """By UUID: indices of NVML and of torch are not the same."""
    if not uuid:
        return None
    with suppress(nvml.NVMLError):
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}".encode())
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    """The process in which GPUs are asked."""
    print("\n".join(states()))
