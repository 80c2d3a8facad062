"""Training loops of others with our checkpoints: killed, they go on as if nothing had been.

Needs Lightning and transformers, which the tests do not install: else it is skipped.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from jobs import job
from processes import Process, python

SCRIPTS = Path(__file__).parent / "checkpoints"
LONG = 170.0


def losses(process: Process) -> dict[int, str]:
    """The loss of each step of rank 0, to the last bit."""
    assert process.wait(LONG) == 0, process.output
    return {int(step): loss for step, loss in re.findall(r"step (\d+) loss (\S+)", process.output)}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        pytest.param("transformers", "huggingface_trainer.py", marks=pytest.mark.thorough),
        ("lightning", "lightning_module.py"),
    ],
)
def test_a_killed_training_goes_on_exactly(tmp_path: Path, framework: str, name: str) -> None:
    """With shuffled data and dropout, in the middle of its second epoch, from memory alone."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    script = SCRIPTS / name
    truth = losses(Process([python(), script, tmp_path / "truth", "--steps=9"]))
    assert list(truth) == list(range(1, 10))
    assert len(set(truth.values())) == 9
    flags = ("--nproc-per-node=1", "--max-restarts=1", "--ft-snapshot-linger=1")
    run = job(*flags, script=script, args=[tmp_path / "killed", "--steps=9", "--kill-at=6"])
    assert losses(run) == truth
    assert len(re.findall("step 6 loss", run.output)) == 1
    assert len(re.findall("step 7 loss", run.output)) == 1
