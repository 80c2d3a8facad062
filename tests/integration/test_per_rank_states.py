"""State that is another one on each rank, under the launcher: killed, it goes on exactly."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from jobs import job
from outlast.checkpoint.storage import format as disk
from processes import Process

SCRIPT = Path(__file__).parent / "checkpoints" / "split_model.py"
EXAMPLES = Path(__file__).parents[2] / "examples"
DEEPSPEED, MEGATRON = EXAMPLES / "deepspeed_zero.py", EXAMPLES / "megatron_tensor_parallel.py"
LONG = 120.0  # torch is imported, on machines with little to spare
BUILD = 500.0  # DeepSpeed compiles an extension when it is first used


def train(directory: Path, *args: str, script: Path = SCRIPT) -> Process:
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--ft-snapshot-linger=1")
    return job(*flags, script=script, args=[directory, *args])


def losses(process: Process, within: float = LONG) -> dict[tuple[int, int], str]:
    """By step and rank, to the last bit."""
    assert process.wait(within) == 0, process.output
    # Lines of two ranks may run into each other.
    found = re.findall(r"step (\d+) rank (\d+) (loss \S+ \w+ (?:-?0x[0-9a-f.]+p[-+]\d+|[\d.]+))", process.output)
    return {(int(step), int(rank)): loss for step, rank, loss in found}


@pytest.mark.timeout(400)
def test_a_split_model_goes_on_exactly_from_memory_and_from_disk(tmp_path: Path) -> None:
    truth = losses(train(tmp_path / "truth"))
    assert len(set(truth.values())) == 12
    killed = train(tmp_path / "killed", "--kill-at=3", "--steps=4")
    assert losses(killed) == {key: loss for key, loss in truth.items() if key[0] <= 4}
    assert "rank 1 restored 3 count 30" in killed.output
    assert disk.verify(tmp_path / "killed" / "step-00000004") == []
    later = losses(train(tmp_path / "killed"))
    assert later == {key: loss for key, loss in truth.items() if key[0] > 4}


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed and Megatron-core are beside the other libraries, which act differently where they find them."""
    path = Path(sysconfig.get_path("purelib", vars={"base": str(Path(sys.prefix) / "frameworks")}))
    if not (path / "deepspeed").is_dir():
        pytest.skip("DeepSpeed and Megatron-core are not there: make setup installs them, where it can")
    monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeeds_zero_goes_on_exactly(
    tmp_path: Path, stage: int, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    # Not the user's cache: a build that was killed there leaves a lock, which the next one waits for in vain.
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.getbasetemp() / "torch_extensions"))
    truth = losses(train(tmp_path / "truth", f"--stage={stage}", script=DEEPSPEED), BUILD)
    assert len(set(truth.values())) == 18
    killed = train(tmp_path / "killed", f"--stage={stage}", "--kill-at=4", script=DEEPSPEED)
    assert losses(killed) == truth
    assert "rank 1 goes on after step 4" in killed.output


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("frameworks")
def test_layers_that_megatron_has_split_go_on_exactly(tmp_path: Path) -> None:
    truth = losses(train(tmp_path / "truth", script=MEGATRON))
    assert len(set(truth.values())) == 18
    killed = train(tmp_path / "killed", "--kill-at=4", script=MEGATRON)
    assert losses(killed) == truth
    assert "rank 1 goes on after step 4" in killed.output
