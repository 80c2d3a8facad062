"""What is tried on a device, and how what it says about itself is read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from made_up_plugin import install
from outlast.checks import nvml, phases
from outlast.checks.accelerator import Health, find, reference_of
from outlast.checks.cpu import Cpu


class Small(Cpu):
    size = 48
    memory = 1 << 16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("number", [1, 2, 77])
def test_the_product_of_a_good_device_is_right_to_the_last_bit(dtype: str, number: int) -> None:
    device = Small()
    device.dtype = dtype
    assert phases.compute(device, number) > 0


def test_one_wrong_element_is_found_and_is_certain() -> None:
    class Wrong(Small):
        def product(self, left: Any, right: Any) -> Any:
            result = left @ right
            result[7, 9] += 1
            return result

    with pytest.raises(phases.UnfitNode, match="the matrix product is wrong in 1 of 2304 places") as found:
        phases.compute(Wrong(), 1)
    assert found.value.certain


def test_memory_is_read_back() -> None:
    assert phases.memory(Small()) > 0


def test_time_in_which_others_have_the_cpu_does_not_make_memory_slow() -> None:
    pause = 0.2  # far more than the copy takes the CPU, on a machine however slow

    class Interrupted(Small):
        def synchronize(self) -> None:
            time.sleep(pause)

    by_the_clock = 2 * Small.memory / pause / 1e9
    assert phases.memory(Interrupted()) > 5 * by_the_clock


def test_memory_that_cannot_be_had_is_no_certain_fault() -> None:
    class Huge(Small):
        memory = 1 << 60

    with pytest.raises(phases.UnfitNode, match="MiB of memory cannot be had") as found:
        phases.memory(Huge())
    assert not found.value.certain


def test_the_disk_is_left_as_it_was(tmp_path: Path) -> None:
    rate, _ = phases.disk(str(tmp_path))
    assert rate > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_to_fails(tmp_path: Path) -> None:
    with pytest.raises(phases.UnfitNode, match="cannot be written to: No such file or directory"):
        phases.disk(str(tmp_path / "missing"))


def test_versions_are_told() -> None:
    assert phases.versions(Small())["torch"] == torch.__version__


# -- accelerators


def test_the_built_in_ones_are_found_and_say_whether_they_are_there() -> None:
    assert find("auto").count() >= 1
    assert find("cpu").count() >= 1
    assert [find(name).count() for name in ("cuda", "ascend", "xpu")] == [torch.cuda.device_count(), 0, 0]


def test_a_plug_in_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    device = find("made-up")
    assert (type(device).__name__, device.versions(), device.health(0)) == ("MadeUp", {"made-up": "1"}, Health())
    assert phases.compute(device, 1) > 0


def test_an_unknown_one_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="must be one of auto, cpu, cuda, ascend, xpu, not 'abacus'"):
        reference_of("abacus")


# -- NVML. There is no GPU here: a library that says what it is told to say stands in for it.


class NVMLError(Exception):
    pass


class Library:
    """NVML as a healthy GPU has it, but for what is given; what is not given here, an older one lacks."""

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1

    def __init__(self, **says: Any) -> None:
        self._says = {
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetRetiredPages": [],
            "nvmlDeviceGetRetiredPagesPendingStatus": 0,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            **says,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self._says:
            raise AttributeError(name)
        value = self._says[name]
        if isinstance(value, Exception):

            def fail(*_: Any) -> None:
                raise value

            return fail
        return lambda *_: value


@pytest.mark.parametrize(
    ("says", "faults", "warnings"),
    [
        ({}, (), ()),
        ({"nvmlDeviceGetEccMode": NVMLError("not supported")}, (), ()),
        ({"nvmlDeviceGetTotalEccErrors": 2}, ("2 uncorrectable ECC errors since its driver was loaded",), ()),
        ({"nvmlDeviceGetRetiredPagesPendingStatus": 1}, ("pages wait to be retired: it has to be reset",), ()),
        ({"nvmlDeviceGetRemappedRows": (1, 2, 0, 0)}, (), ("2 rows remapped for uncorrectable errors",)),
        ({"nvmlDeviceGetRemappedRows": (0, 1, 1, 0)}, ("rows wait to be remapped: it has to be reset",), ()),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x40}, (), ("it is throttled: hardware thermal slowdown",)),
        ({"nvmlDeviceGetCurrPcieLinkWidth": 8}, (), ("PCIe x8 of x16",)),
    ],
)
def test_what_nvml_says_is_a_fault_or_a_remark_and_what_it_lacks_is_neither(
    says: dict[str, Any], faults: tuple[str, ...], warnings: tuple[str, ...]
) -> None:
    assert nvml.read(Library(**says), object()) == Health(faults, warnings)


def test_without_nvml_nothing_is_said() -> None:
    assert nvml.health("no such GPU") == Health()
