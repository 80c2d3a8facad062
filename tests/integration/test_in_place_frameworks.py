"""Lightning and Hugging Face's Trainer inside a restartable function: the model stays, the trainer is made anew.

Needs Lightning and transformers, which the tests do not install: else it is skipped.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from jobs import SCRIPTS, job
from processes import Process

FLAGS = ("--nproc-per-node=2", "--max-restarts=1", "--ft-in-place-timeout=60")


def last(process: Process) -> set[str]:
    """What the ranks ended with."""
    assert process.wait() == 0, process.output
    return set(re.findall(r"rank \d ends with (\[[^r]*\])", process.output))


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_trainer_goes_on_in_place_and_ends_as_if_nothing_had_happened(tmp_path: Path, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    name = {"lightning": "in_place_lightning.py", "transformers": "in_place_huggingface.py"}[framework]
    with (
        job(*FLAGS, script=SCRIPTS / name, args=[tmp_path / "disturbed", "1"]) as disturbed,
        job(*FLAGS, script=SCRIPTS / name, args=[tmp_path / "calm", "0"]) as calm,
    ):
        (end,) = last(disturbed)
        assert {end} == last(calm)
    steps = re.findall(r"rank (\d) pid (\d+) makes step (\d+)", disturbed.output)
    assert "ValueError: an error of the test's" in disturbed.output
    assert len({pid for _, pid, _ in steps}) == 2
    assert [int(step) for rank, _, step in steps if rank == "1"] == [1, 2, 3, 4, 5, 6]
