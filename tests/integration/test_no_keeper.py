"""A node on which no keeper lives: a job that saves, never waits and ends well has not succeeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from processes import Process, python

LAUNCHES = """
import sys
import outlast.run
from outlast.agent.snapshots.keeper import Keeper

class Dead(Keeper):
    def _start(self):
        self._command = ["/bin/false"]
        return super()._start()

outlast.agent.agent.Keeper = Dead
sys.exit(outlast.run.main(["--standalone", "--ft-snapshot-linger=0", *sys.argv[1:]]))
"""
SAVES = """
import sys
import torch
from outlast import Checkpointer
Checkpointer(sys.argv[1]).save(7, {"w": torch.ones(3)}, durable=True)
print("done")
"""


@pytest.mark.thorough
def test_a_job_whose_last_durable_save_was_not_written_fails_although_its_workers_do_not(tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    with Process([python(), "-c", LAUNCHES, script, tmp_path / "ck"]) as process:
        assert process.wait() == 1, process.output
    assert "done" in process.output
    assert "JobFailed: step 7, a durable save, is not on disk: no keeper lived on this node" in process.output
    assert not list((tmp_path / "ck").glob("step-*"))
