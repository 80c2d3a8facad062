"""Logs on a disk that hangs, as a dead file server does: the node stays in the job, and no line is lost.

The disk is a frozen file system: whoever writes to it sleeps in the kernel, where no signal reaches them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from jobs import free_port, job
from processes import Process

NODE_TIMEOUT = 1.0
FROZEN = 4.0  # seconds: several times the node timeout
LATEST = 60.0  # a test that fails leaves nothing frozen behind

PRINTS = """
import os, sys, time
print("worker", os.getpid(), file=sys.stderr, flush=True)
number = 0
while not os.path.exists(sys.argv[1]):
    print(f"{number}-{'x' * 100}", flush=True)
    number += 1
    time.sleep(0.001)
print(f"printed {number} lines", flush=True)
"""


class Disk:
    """A file system of its own that can be frozen."""

    def __init__(self, place: Path) -> None:
        self.root = place / "disk"
        self.root.mkdir()
        image = place / "image"
        with image.open("wb") as file:
            file.truncate(32 << 20)
        _tool("mkfs.ext4", "-q", str(image))
        _tool("mount", "-o", "loop", str(image), str(self.root))

    def freeze(self) -> None:
        _tool("fsfreeze", "--freeze", str(self.root))

    def thaw(self) -> None:
        _tool("fsfreeze", "--unfreeze", str(self.root))

    def close(self) -> None:
        for command in (["fsfreeze", "--unfreeze"], ["umount", "--lazy"]):
            subprocess.run([*command, self.root], capture_output=True, check=False)


def _tool(*command: str) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": path})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk(tmp_path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root, a loop device and e2fsprogs: {error}")
    too_late = Timer(LATEST, made.close)
    too_late.start()
    yield made
    too_late.cancel()
    made.close()


def start(tmp_path: Path, disk: Disk, *flags: str) -> Process:
    """A job whose node would be given up for silence."""
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--node-timeout={NODE_TIMEOUT}")
    return job(*meeting, f"--log-dir={disk.root / 'logs'}", *flags, script=script, args=[tmp_path / "stop"])


def was_heard(process: Process) -> bool:
    """Whether the node's heart has beaten all along."""
    return not re.search("lost|silent|lease|cut off", process.output)


def test_a_node_whose_logs_hang_stays_in_the_job_and_loses_no_line(tmp_path: Path, disk: Disk) -> None:
    with start(tmp_path, disk, "--tee=3") as process:
        process.wait_for("500-x", anywhere=True)
        disk.freeze()
        time.sleep(FROZEN)
        disk.thaw()
        (tmp_path / "stop").touch()
        assert process.wait() == 0, process.output
    assert was_heard(process), process.output
    assert "generation 2" not in process.output
    (log,) = disk.root.glob("logs/*/attempt_0/0/stdout.log")
    *lines, last = log.read_text().splitlines()
    assert [int(line.partition("-")[0]) for line in lines] == list(range(len(lines)))
    assert last == f"printed {len(lines)} lines"


def test_a_worker_that_fails_while_its_logs_hang_is_restarted_when_the_disk_answers(tmp_path: Path, disk: Disk) -> None:
    with start(tmp_path, disk, "--tee=1", "--max-restarts=1") as process:
        pid = int(process.wait_for(r"worker (\d+)", anywhere=True)[1])
        disk.freeze()
        os.kill(pid, signal.SIGKILL)
        process.wait_for("judged without its log and error file", anywhere=True)
        process.wait_for("restarting|restart 1", anywhere=True)
        time.sleep(FROZEN)
        assert was_heard(process), process.output
        disk.thaw()
        process.wait_for("generation 2: started", anywhere=True)
        (tmp_path / "stop").touch()
        assert process.wait() == 0, process.output
    assert was_heard(process), process.output


def test_a_job_can_be_stopped_while_its_logs_hang(tmp_path: Path, disk: Disk) -> None:
    with start(tmp_path, disk, "--tee=3", "--max-restarts=1") as process:
        pid = int(process.wait_for(r"worker (\d+)", anywhere=True)[1])
        disk.freeze()
        os.kill(pid, signal.SIGKILL)
        process.wait_for("generation 2: 1 node", anywhere=True)
        process.signal(signal.SIGTERM)
        process.wait_for("job failed: it was told to stop", anywhere=True)
        disk.thaw()  # not even the end of a process comes before that of a call into such a kernel
        assert process.wait() == 1, process.output
    assert "started rank 0 of 1" in process.output
    assert "generation 2: started" not in process.output
