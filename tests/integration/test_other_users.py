"""Another user of the machine takes names that a job used before: the next run of the job does not touch them."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from hosts import SHM
from jobs import free_port, job
from processes import await_exit
from strangers import NOBODY, as_nobody

TRAIN = Path(__file__).parent / "checkpoints" / "train.py"

SQUAT = """
mkdir "$1"; cd "$1"
for name in stride agreed since kept door 0.told 0.0; do ln -s "$2" $name; done
mkfifo 0.1 0.2
"""


@pytest.mark.thorough
def test_an_arena_that_another_user_makes_between_two_runs_is_left_alone(tmp_path: Path) -> None:
    command = (f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=same", "--ft-snapshot-linger=0")
    with job(*command, script=TRAIN, args=[tmp_path / "ck", "--steps=2", "--wait"]) as first:
        first.wait_for("done")
        (arena,) = SHM.glob(f"outlast-{os.getuid()}-*")
        first.signal(signal.SIGKILL)
        assert await_exit(first.tree(), 120) == []
    assert not arena.exists()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    as_nobody(SQUAT, arena, victim)
    try:
        with job(*command, script=TRAIN, args=[tmp_path / "ck", "--steps=4", "--durable=4"]) as second:
            second.wait_for("restored 2")
            second.wait_for("step 4 is on disk")
            assert second.wait() == 0, second.output
        assert victim.read_text() == "precious"
        assert {path.lstat().st_uid for path in arena.iterdir()} == {NOBODY}
        assert list(SHM.glob(f"outlast-{os.getuid()}-*")) == [arena]
    finally:
        shutil.rmtree(arena)
