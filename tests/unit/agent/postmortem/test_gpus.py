"""What GPUs say when a worker has failed. There is none here: their library is a stand-in, the process is real."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from outlast.agent.postmortem import gpus
from outlast.diagnosis.evidence import Evidence

# As much of nvidia-ml-py as is asked, of a machine with two GPUs of which the second has fallen off the bus.
LIBRARY = """
import os, time
from types import SimpleNamespace
class NVMLError(Exception): pass
NVML_TEMPERATURE_GPU = 0
def nvmlInit():
    time.sleep(float(os.environ.get("STUCK", "0")))
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index):
    if index == 1:
        raise NVMLError("GPU is lost")
    return index
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(used=512 << 20, total=1024 << 20)
def nvmlDeviceGetName(handle): return b"Tesla X"
def nvmlDeviceGetTemperature(handle, kind): return 41
def nvmlDeviceGetRemappedRows(handle): return 0, 1, 1, 0
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "pynvml.py")


@pytest.mark.usefixtures("library")
def test_each_gpu_has_a_line_and_each_fault_another() -> None:
    assert asyncio.run(gpus.states(60)) == (
        "GPU 0 (Tesla X): 512 of 1024 MiB used, 41 °C",
        "GPU 0 (Tesla X) is faulty: rows wait to be remapped: it has to be reset",
        "GPU 1: it cannot be reached (GPU is lost)",
    )


@pytest.mark.usefixtures("library")
def test_what_lies_in_the_current_directory_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pynvml.py").write_text("raise SystemExit")
    monkeypatch.chdir(project)
    assert len(asyncio.run(gpus.states(60))) == 3


@pytest.mark.usefixtures("library")
def test_where_nothing_can_be_started_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert asyncio.run(gpus.states(60)) == ("the GPUs cannot be asked: No such file or directory",)


@pytest.mark.usefixtures("library")
def test_a_driver_that_is_stuck_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUCK", "600")
    assert asyncio.run(gpus.states(0.5)) == ("the driver of the GPUs does not answer within 0.5 s",)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("evidence", "concerned"),
    [
        (
            Evidence(rank=0, exit_code=1, exception="RuntimeError", message="CUDA error: unspecified launch failure"),
            True,
        ),
        (Evidence(rank=0, exit_code=-signal.SIGABRT), True),
        (Evidence(rank=0, exit_code=1, log=("NCCL WARN something",)), True),
        (Evidence(rank=0, exit_code=1, exception="KeyError", message="'x'"), False),
        (Evidence(rank=0, exit_code=-signal.SIGKILL), False),
    ],
    ids=["CUDA's own word", "a crash", "in the log", "the script's", "killed"],
)
def test_they_are_asked_only_if_it_may_have_to_do_with_them(evidence: Evidence, concerned: bool) -> None:
    assert gpus.concerned(evidence) is concerned


def test_nobody_is_asked_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "none")
    assert not gpus.concerned(Evidence(rank=0, exit_code=1, message="CUDA error"))
