"""Who dies with whom, and who inherits orphans: asked of the kernel, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from outlast.system import prctl

DEADLINE = 60.0
DIES_WITH = """
import os, signal
from outlast.system.prctl import die_with
parent = os.getpid()
child = os.fork()
if child == 0:
    die_with(parent)
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""
INHERITS = """
import os, signal
from outlast.system.prctl import inherit_orphans
for on in (True, False):
    inherit_orphans(on)
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        orphan = os.fork()
        if orphan == 0:
            signal.pause()
        os.write(writing, str(orphan).encode())
        os._exit(0)
    os.waitpid(between, 0)
    orphan = int(os.read(reading, 20))
    os.kill(orphan, signal.SIGKILL)
    try:
        print(os.waitpid(orphan, 0)[0] == orphan)
    except ChildProcessError:
        print("not mine")
"""


def test_a_process_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", DIES_WITH], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=DEADLINE)
    assert gone


def test_a_process_whose_parent_has_died_already_ends_at_once() -> None:
    code = "from outlast.system.prctl import die_with; die_with(1 << 22); print('alive')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_orphans_are_inherited_until_that_is_switched_off() -> None:
    done = subprocess.run([sys.executable, "-c", INHERITS], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["True", "not mine", ""]


def test_what_the_kernel_refuses_is_raised() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        prctl._set(1, 1000)  # no such signal
