"""What /proc tells of this process, of its children, and of those that are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from outlast.system import proc

ODD_NAME = b") S 1 (odd"  # a process may call itself anything


@pytest.fixture
def child() -> Iterator[int]:
    """A child that waits, in a session of its own, with a name that looks like fields."""
    code = f"import os, signal; open('/proc/self/comm', 'wb').write({ODD_NAME!r}); os.write(1, b'!'); signal.pause()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={"ODD": "a=b"}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"!"
    yield process.pid
    process.stdout.close()
    process.kill()
    process.wait()


@pytest.fixture
def gone() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def end_as_zombie(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_stat_is_read_whatever_the_name_of_the_process(child: int) -> None:
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED)
    stat = proc.stat(child)
    assert stat is not None
    assert proc.read(child, "comm").strip() == ODD_NAME
    assert (stat.state, stat.parent, stat.session, stat.ended) == ("T", os.getpid(), child, False)
    born = psutil.boot_time() + stat.started / os.sysconf("SC_CLK_TCK")
    assert born == pytest.approx(psutil.Process(child).create_time(), abs=1)


def test_the_areas_hold_arguments_and_environment() -> None:
    stat = proc.stat(proc.SELF)
    assert stat is not None
    start, end, environment_start, environment_end = stat.areas
    assert 0 < start < end <= environment_start <= environment_end


@pytest.mark.parametrize("children", [proc.children, proc.find_children])
def test_children_are_found_also_as_zombies(children: Callable[[int], list[int]], child: int) -> None:
    assert child in children(os.getpid())
    assert children(child) == []
    end_as_zombie(child)
    assert child in children(os.getpid())


def test_children_of_other_threads_are_found() -> None:
    started: list[subprocess.Popen[bytes]] = []
    done = threading.Event()

    def start() -> None:
        started.append(subprocess.Popen(["sleep", "1000"]))
        ready.set()
        done.wait()

    ready = threading.Event()
    thread = threading.Thread(target=start)
    thread.start()
    ready.wait()
    try:
        assert started[0].pid in proc.children(os.getpid())
    finally:
        done.set()
        thread.join()
        started[0].kill()
        started[0].wait()


def test_where_the_kernel_keeps_no_list_children_are_looked_for(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    assert child in proc.children(os.getpid())


def test_command_and_environment_are_those_it_was_started_with(child: int) -> None:
    assert b"ODD=a=b" in proc.environment(child)
    assert proc.command(child).startswith(f"{sys.executable} -c import os, signal;")


def test_a_zombie_has_ended_and_has_no_environment(child: int) -> None:
    end_as_zombie(child)
    stat = proc.stat(child)
    assert stat is not None
    assert stat.ended
    assert child in proc.pids()
    assert proc.environment(child) == [b""]


def test_a_process_that_is_gone_tells_nothing(gone: int) -> None:
    assert gone not in proc.pids()
    assert proc.stat(gone) is None
    assert proc.read(gone, "status") == b""
    assert proc.children(gone) == []
    assert proc.tasks(gone) == []
    assert proc.environment(gone) == [b""]
    assert proc.command(gone) == ""
    assert list(proc.open_files(gone)) == []


def test_every_thread_is_a_task() -> None:
    assert set(proc.tasks(proc.SELF)) == {str(thread.id) for thread in psutil.Process().threads()}


def test_an_open_file_can_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    with path.open():
        (found,) = [again for again, name in proc.open_files(proc.SELF) if name == str(path)]
        assert proc.is_descriptor_path(found)
        assert Path(found).read_text() == "content"


def test_a_descriptor_of_another_process_is_no_path_of_ours() -> None:
    assert proc.is_descriptor_path(proc.descriptor_path(5))
    assert not proc.is_descriptor_path(proc.descriptor_path(5, 1))
    assert not proc.is_descriptor_path("/dev/shm/5")


def test_the_machine_is_described() -> None:
    assert proc.namespace("net") == Path("/proc/self/ns/net").stat().st_ino
    assert len(proc.boot_id()) == 36
    assert 0 < proc.available_memory() <= psutil.virtual_memory().total


def test_it_loads_nothing_that_a_file_of_the_user_could_stand_for() -> None:
    code = "import os, sys; before = set(sys.modules); import outlast.system.proc; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) <= {"__future__", "outlast", "outlast.system", "outlast.system.proc"}
