"""Where workers are: seen of real processes that do not cooperate, within a second, and without harm to them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from outlast.agent.monitoring import stacks
from outlast.agent.monitoring.stacks import collect, look
from outlast.diagnosis.stack import Frame, Stack, library, read_faulthandler, read_py_spy, trim
from outlast.worker import dump
from processes import Process, alive, python

READY = "print('ready', flush=True)"
INSTALL = "from outlast.worker import dump; dump.install()"
GENEROUS = 60.0

# As Python 3.11 wrote it, of a worker with a DataLoader.
DUMPED = """\
Thread 0x00007f694ec266c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 231 in _feed
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f696fa91b80 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725 in __next__
  File "/home/user/train.py", line 128 in loads
  File "/home/user/train.py", line 299 in <module>
"""

# Python 3.14 names threads, and adds what lies beneath.
NEWER = """\
Current thread 0x00007f696fa91b80 [python] (most recent call first):
  File "a.py", line 2 in f

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x31 [0x5f]
"""


@pytest.fixture(params=["signal", "py-spy"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which means stacks are seen."""
    if request.param == "signal":
        monkeypatch.setattr(stacks, "find_tool", lambda: "")
    elif not stacks.find_tool():
        pytest.skip("py-spy is not installed")
    else:
        monkeypatch.setattr(stacks, "_dump_of", lambda _: None)  # which comes first, where a worker is prepared for it
    return str(request.param)


@pytest.fixture
def no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_tool", lambda: "")


def script(path: Path, *lines: str) -> Process:
    """A process that runs these lines and has come to the one after READY."""
    file = path / "train.py"
    file.write_text("\n".join(lines) + "\n")
    process = Process([python(), file])
    process.wait_for("^ready")
    return process


def see(process: Process, timeout: float = GENEROUS, *, interrupt: bool = True) -> Stack:
    return asyncio.run(collect({3: process.pid}, timeout, interrupt=interrupt))[3]


def at(stack: Stack) -> tuple[str, int]:
    return Path(stack.frames[0].file).name, stack.frames[0].line


def await_state(process: Process, state: str) -> None:
    deadline = time.monotonic() + GENEROUS
    while look(process.pid).state != state:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_that_holds_the_interpreter_is_seen(tmp_path: Path, tool: str) -> None:
    with script(tmp_path, INSTALL, "import ctypes", READY, "ctypes.PyDLL(None).sleep(1000)") as process:
        await_state(process, "S")
        stack = see(process)
    assert at(stack) == ("train.py", 4)
    assert stack.frames[0].source == "ctypes.PyDLL(None).sleep(1000)"
    assert stack.how == tool


def test_a_worker_in_an_endless_loop_is_seen_and_goes_on(tmp_path: Path, tool: str) -> None:
    with script(tmp_path, INSTALL, READY, "while True:", "    pass") as process:
        while at(see(process))[1] == 2:  # where it says that it is ready
            pass
        assert at(see(process))[1] in (3, 4)
        assert process.running
    assert tool


def test_threads_of_the_user_are_seen_beside_the_main_one(tmp_path: Path, tool: str) -> None:
    lines = [
        INSTALL,
        "import threading, time",
        "def other():",
        "    has_it.set(); time.sleep(1000)",
        "has_it = threading.Event()",
        "threading.Thread(target=other, daemon=True).start()",
        "has_it.wait()",
        READY,
        "threading.Lock().acquire() and threading.Event().wait()",
    ]
    with script(tmp_path, *lines) as process:
        await_state(process, "S")
        stack = see(process)
    assert stack.frames[-1].function == "<module>"
    assert [[frame.function for frame in frames if frame.file.endswith("train.py")] for frames in stack.others] == [
        ["other"]
    ]
    assert tool


@pytest.mark.usefixtures("no_tool")
def test_a_stopped_worker_is_known_at_once_and_not_waited_for(tmp_path: Path) -> None:
    with script(tmp_path, INSTALL, "import time", READY, "time.sleep(1000)") as process:
        process.signal(signal.SIGSTOP)
        await_state(process, "T")
        began = time.monotonic()
        stack = see(process, timeout=60)
        assert time.monotonic() - began < 30
        process.signal(signal.SIGCONT)  # the signal that was not sent does not come now
        await_state(process, "S")
    assert (stack.state, stack.frames) == ("T", ())
    assert "py-spy is not installed" in stack.trouble


@pytest.mark.usefixtures("no_tool")
def test_a_worker_in_uninterruptible_sleep_is_known_and_not_waited_for(tmp_path: Path) -> None:
    """The kernel lets a process wait so for its child, until that has become a program; this one never does."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    actions = f"[(os.POSIX_SPAWN_OPEN, 0, {str(fifo)!r}, os.O_RDONLY, 0)]"
    spawn = f"os.posix_spawn('/bin/true', ['true'], {{}}, file_actions={actions})"
    with script(tmp_path, INSTALL, "import os", READY, spawn) as process:
        await_state(process, "D")
        stack = see(process, timeout=60)
        os.close(os.open(fifo, os.O_WRONLY))  # the way out
        process.wait()
    assert (stack.state, stack.frames, stack.how) == ("D", (), "")
    assert stack.wchan or stack.kernel


@pytest.mark.usefixtures("no_tool")
def test_a_worker_that_is_not_prepared_for_the_signal_is_not_killed_by_it(tmp_path: Path) -> None:
    with script(tmp_path, "import time", READY, "time.sleep(1000)") as process:
        await_state(process, "S")
        stack = see(process, timeout=0.2)
        assert alive(process.pid)
    assert (stack.state, stack.frames) == ("S", ())
    assert stack.wchan or stack.syscall is not None
    assert "does not answer the signal" in stack.trouble


@pytest.mark.usefixtures("no_tool")
def test_a_worker_that_took_the_signal_for_itself_gets_none(tmp_path: Path) -> None:
    """Its handler is there, but not the file: it is another one's."""
    lines = [
        "import signal, time",
        f"signal.signal({dump.SIGNAL}, lambda *_: print('mine'))",
        READY,
        "time.sleep(1000)",
    ]
    with script(tmp_path, *lines) as process:
        await_state(process, "S")
        assert see(process, timeout=0.2).frames == ()
        assert process.lines == ["ready"]


@pytest.mark.usefixtures("no_tool")
def test_without_interrupting_nothing_is_sent(tmp_path: Path) -> None:
    with script(tmp_path, INSTALL, "import time", READY, "time.sleep(1000)") as process:
        await_state(process, "S")
        stack = see(process, interrupt=False)
    assert (stack.state, stack.frames, stack.how) == ("S", (), "")


@pytest.mark.usefixtures("no_tool")
def test_a_worker_that_blocks_the_signal_costs_no_more_than_the_time_out(tmp_path: Path) -> None:
    block = f"import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [{dump.SIGNAL}])"
    with script(tmp_path, INSTALL, block, READY, "time.sleep(1000)") as process:
        await_state(process, "S")
        began = time.monotonic()
        stack = see(process, timeout=0.3)
        assert time.monotonic() - began < GENEROUS
    assert stack.frames == ()


@pytest.mark.usefixtures("no_tool")
def test_a_system_call_goes_on_after_the_look(tmp_path: Path) -> None:
    with script(tmp_path, INSTALL, "import os", "ends = os.pipe()", READY, "os.read(ends[0], 1)") as process:
        await_state(process, "S")
        assert at(see(process)) == ("train.py", 5)
        assert at(see(process)) == ("train.py", 5)
        assert process.running


def test_a_process_that_is_gone_has_no_stack(tool: str) -> None:
    with Process(["true"]) as process:
        process.wait()
    stack = see(process)
    assert (stack.state, stack.frames, stack.trouble) == ("", (), "the process has ended")
    assert tool


def test_a_tool_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "find_tool", lambda: str(slow))
    with script(tmp_path, "import time", READY, "time.sleep(1000)") as process:
        stack = see(process, timeout=0.5)
    assert stack.frames == ()
    assert "does not answer the signal" in stack.trouble


def test_who_answers_the_signal_is_not_looked_at_with_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unwanted = tmp_path / "py-spy"
    unwanted.write_text(f"#!/bin/sh\ntouch {tmp_path}/used\n")
    unwanted.chmod(0o755)
    monkeypatch.setattr(stacks, "find_tool", lambda: str(unwanted))
    with script(tmp_path, INSTALL, "import time", READY, "time.sleep(1000)") as process:
        assert see(process).how == "signal"
    assert not (tmp_path / "used").exists()


def test_who_does_not_answer_the_signal_is_looked_at_with_the_tool(tmp_path: Path) -> None:
    if not stacks.find_tool():
        pytest.skip("py-spy is not installed")
    with script(tmp_path, "import time", READY, "time.sleep(1000)") as process:
        stack = see(process)
    assert (stack.how, at(stack)) == ("py-spy", ("train.py", 3))


def test_children_that_are_stopped_are_told(tmp_path: Path, tool: str) -> None:
    lines = [INSTALL, "import subprocess", "child = subprocess.Popen(['sleep', '1000'])", READY, "child.wait()"]
    with script(tmp_path, *lines) as process:
        (child,) = look(process.pid).children
        os.kill(child.pid, signal.SIGSTOP)
        deadline = time.monotonic() + GENEROUS
        while (seen := [(each.name, each.state) for each in see(process).children]) != [("sleep", "T")]:
            assert time.monotonic() < deadline, seen
            os.kill(child.pid, signal.SIGCONT)  # it may not have become `sleep` yet
            os.kill(child.pid, signal.SIGSTOP)
    assert tool


def test_agent_and_worker_mean_the_same_signal_and_file() -> None:
    assert stacks.SIGNAL == dump.SIGNAL == signal.SIGRTMAX - 2
    assert f"memfd:{dump.NAME}" == stacks.DUMP


def test_the_main_thread_is_the_last_that_faulthandler_lists() -> None:
    feeder, main = read_faulthandler(DUMPED)
    assert (feeder.main, main.main) == (False, True)
    assert main.frames[0] == Frame("select", "/usr/lib/python3.11/selectors.py", 415)
    assert main.frames[-1].function == "<module>"


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("", []),
        ("\0\0\0garbage\n  File nothing\n", []),
        ('Thread 0x01 [Thread-1 (f)] (most recent call first):\n  File "a b.py", line 1 in <lambda>\n', ["<lambda>"]),
        ("Current thread 0x01 (most recent call first):\n  File ???, line ??? in ???\n  ...\n", ["???"]),
        ("Current thread 0x01 (most recent call first):\n  <no Python frame>\n", []),
        ('Thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n  File "a.py", li', ["f"]),
        ('  File "early.py", line 1 in f\nThread 0x01 (most recent call first):\n  File "a.py", line 1 in g\n', ["g"]),
        (NEWER, ["f"]),
    ],
)
def test_what_cannot_be_read_of_a_dump_is_left_out(text: str, frames: list[str]) -> None:
    threads = read_faulthandler(text)
    assert [frame.function for frame in (threads[-1].frames if threads else ())] == frames


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"frames": 3}]', '[{"frames": [{}]}]', "null"])
def test_what_py_spy_writes_instead_of_stacks_gives_none(text: str) -> None:
    assert read_py_spy(text, 1) == []


@pytest.mark.parametrize(
    ("file", "within"),
    [
        ("/home/user/train.py", ""),
        ("train.py", ""),
        ("<string>", ""),
        ("/usr/lib/python3.11/threading.py", "-"),
        ("/opt/conda/lib/python311.zip/os.py", "-"),
        ("<frozen importlib._bootstrap>", "-"),
        ("/opt/venv/lib/python3.12/site-packages/torch/_tensor.py", "torch/_tensor.py"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", "yaml/loader.py"),
        ("/src/pytorch/torch/distributed/rendezvous.py", "torch/distributed/rendezvous.py"),
        ("/src/outlast/src/outlast/worker/store.py", "outlast/worker/store.py"),
    ],
)
def test_the_users_own_code_is_told_from_libraries(file: str, within: str) -> None:
    assert library(file) == within


def test_a_deep_recursion_keeps_both_ends() -> None:
    frames = [Frame("f", "a.py", line) for line in range(500)]
    kept = trim(frames)
    assert (kept[0].line, kept[-1].line) == (0, 499)
    assert len(kept) < 50


@pytest.mark.usefixtures("no_tool")
def test_a_fork_that_prepares_itself_shows_its_own_stack_and_not_its_parents(tmp_path: Path) -> None:
    lines = [
        INSTALL,
        "import os, time",
        READY,  # before there are two, whose lines would mix
        "if os.fork() == 0:",
        "    dump.install()",
        "    print('child', os.getpid(), flush=True)",
        "    time.sleep(1000)",
        "time.sleep(1000)",
    ]
    with script(tmp_path, *lines) as process:
        child = int(process.wait_for(r"^child (\d+)", anywhere=True)[1])
        found = asyncio.run(collect({0: process.pid, 1: child}, GENEROUS))
    assert {rank: at(stack)[1] in ((6, 7), (4, 8))[rank == 0] for rank, stack in found.items()} == {0: True, 1: True}


@pytest.mark.usefixtures("no_tool")
def test_where_few_descriptors_are_allowed_it_works_as_well(tmp_path: Path) -> None:
    limit = "import resource, time; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    with script(tmp_path, limit, INSTALL, READY, "time.sleep(1000)") as process:
        await_state(process, "S")
        assert at(see(process)) == ("train.py", 4)
