"""Memory limits by cgroups: what is written where, for both versions; and a real one, where this machine has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgroups import can_limit_memory
from outlast.system.cgroups import MemoryCgroups

MIB = 1 << 20
EAT = "import time; time.sleep(0.5); eaten = bytearray(300 << 20); eaten[::4096] = b'x' * len(eaten[::4096])"


def unified(root: Path, controllers: str = "memory") -> MemoryCgroups:
    (root / "job").mkdir()
    (root / "job" / "cgroup.subtree_control").write_text(controllers)
    return MemoryCgroups.here("1", root=root, own="0::/job\n")


def test_version_2_limits_memory_forbids_swap_and_kills_a_task_as_a_whole(tmp_path: Path) -> None:
    made = unified(tmp_path)
    task = tmp_path / "job" / "outlast-1" / "worker-0"
    task.mkdir()
    (task / "memory.swap.max").touch()
    made.limit("worker-0", 64 * MIB)
    assert (task / "memory.max").read_text() == str(64 * MIB)
    assert (task / "memory.swap.max").read_text() == "0"
    assert (task / "memory.oom.group").read_text() == "1"
    made.put("worker-0", 77)
    assert (task / "cgroup.procs").read_text() == "77"
    (task / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n")
    assert (made.kills("worker-0"), made.kills("other")) == (1, 0)
    assert (tmp_path / "job" / "outlast-1" / "cgroup.subtree_control").read_text() == "+memory"


def test_version_2_hands_the_memory_controller_down(tmp_path: Path) -> None:
    unified(tmp_path, "cpu")
    assert (tmp_path / "job" / "cgroup.subtree_control").read_text() == "+memory"


def test_version_1_limits_the_sum_with_swap_as_well(tmp_path: Path) -> None:
    (tmp_path / "memory" / "job").mkdir(parents=True)
    made = MemoryCgroups.here("1", root=tmp_path, own="4:memory:/job\n0::/\n")
    task = tmp_path / "memory" / "job" / "outlast-1" / "worker-0"
    task.mkdir()
    (task / "memory.memsw.limit_in_bytes").touch()
    made.limit("worker-0", 64 * MIB)
    assert (task / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert (task / "memory.memsw.limit_in_bytes").read_text() == str(64 * MIB)
    (task / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert made.kills("worker-0") == 3


def test_where_there_is_none_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"there is no memory cgroup in .*; drop memory"):
        MemoryCgroups.here("1", root=tmp_path, own="3:cpu:/job\n")
    with pytest.raises(OSError, match=r"no memory limits: cannot make a cgroup in .*; run with the rights to"):
        MemoryCgroups.here("1", root=tmp_path / "nowhere", own="4:memory:/job\n")


@pytest.mark.skipif(not can_limit_memory(), reason="this machine lets nobody make memory cgroups")
def test_the_kernel_kills_a_process_at_its_limit_and_counts_it() -> None:
    made = MemoryCgroups.here(f"test-{os.getpid()}")
    try:
        assert (ate(made, 100), made.kills("worker-0")) == (-9, 1)
        assert (ate(made, 500), made.kills("worker-0")) == (0, 1)
    finally:
        made.close()


def ate(made: MemoryCgroups, most: int) -> int:
    made.limit("worker-0", most * MIB)
    process = subprocess.Popen([sys.executable, "-c", EAT])
    made.put("worker-0", process.pid)
    return process.wait()
