"""Workers that live, and cannot be watched: they count as not started, and are gone before others are started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The first worker waits for ever; the second one wants to be alone.
WORKER = """
import os, signal, sys
from pathlib import Path
first = Path(sys.argv[1])
if not first.exists():
    first.with_suffix(".draft").write_text(str(os.getpid()))
    first.with_suffix(".draft").rename(first)
    signal.pause()
sys.exit(7 if Path(f"/proc/{first.read_text()}").exists() else 0)
"""
# Out of descriptors for a moment: once the worker is there, and before the guard knows of it.
RUN = """
import errno, os, sys, time
from outlast.agent.processes import guard
from outlast.cli import main
real = guard.identity
def identity(pid):
    guard.identity = real
    while not os.path.exists(sys.argv[-1]):
        time.sleep(0.01)
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
guard.identity = identity
sys.exit(main(["run", "--max-restarts=1", *sys.argv[1:]]))
"""


def test_workers_that_cannot_be_watched_are_gone_before_others_start(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-c", RUN, str(script), str(tmp_path / "first")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "Too many open files" in ended.stderr
