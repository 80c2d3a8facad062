"""The supervisor, around agents that are a few lines of Python: what it starts again, and what it does not."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from outlast.agent import supervisor
from outlast.agent.supervisor import DEATHS, patience
from processes import Process, alive, await_exit, python

SOON = 120.0  # seconds, on a machine however busy

# What `outlast run --supervise` does, with another agent than Outlast's.
BECOME = """
import os, sys
from outlast.agent import supervisor
supervisor.become([sys.executable, "-c", sys.argv[1], str(os.getpid()), *sys.argv[2:]])
"""
# An agent that says when it has begun; `life` counts from 1.
AGENT = """
import os, signal, sys, time
from pathlib import Path
from outlast.agent import supervisor
supervisor.bind(int(sys.argv[1]))
counter = Path(sys.argv[2])
life = len(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text("x" * life)
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
def say(text):
    os.write(1, f"{text}\\n".encode())
say(f"life {life} is process {os.getpid()} of {os.getppid()}")
"""
ENDS_ON_SIGNAL = """
say(f"got {signal.Signals(signal.sigwait(SIGNALS)).name}")
again = signal.sigtimedwait(SIGNALS, 0.3)
say("once" if again is None else "twice")
sys.exit(1)
"""


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    return tmp_path / "lives"


def supervise(then: str, *args: object, **options: object) -> Process:
    return Process([python(), "-c", BECOME, AGENT + then, *map(str, args)], title="supervisor", **options)


def life(process: Process, number: int) -> int:
    """Await an agent's start; its pid."""
    return int(process.wait_for(rf"life {number} is process (\d+) of {process.pid}$")[1])


@pytest.mark.parametrize("code", [0, 1, 2, 3, 127])
def test_an_agent_that_ends_of_itself_is_not_started_again_and_its_exit_code_is_ours(counter: Path, code: int) -> None:
    with supervise(f"sys.exit({code})", counter) as process:
        assert process.wait() == code
        assert counter.read_text() == "x"
        assert len(process.lines) == 1


def test_an_agent_that_was_killed_is_started_again(counter: Path) -> None:
    with supervise("if life == 1: signal.pause()\nsys.exit(0)", counter) as process:
        first = life(process, 1)
        os.kill(first, signal.SIGKILL)
        process.wait_for(rf"outlast supervisor: the agent \(pid {first}\) was killed by SIGKILL: starting it again now")
        life(process, 2)
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("death", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("raise RuntimeError('a bug of ours')", "crashed"),
    ],
)
def test_an_agent_that_crashed_is_started_again(counter: Path, death: str, words: str) -> None:
    then = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nif life == 1: {death}\nsys.exit(0)"
    with supervise(then, counter) as process:
        process.wait_for(f"outlast supervisor: the agent .*{words}.*: starting it again")
        assert process.wait() == 0
        assert counter.read_text() == "xx"
        if words == "crashed":
            process.wait_for("RuntimeError: a bug of ours", anywhere=True)


def test_an_agent_that_dies_again_and_again_is_given_up_with_the_reason(counter: Path) -> None:
    with supervise("os.kill(os.getpid(), signal.SIGKILL)", counter) as process:
        assert process.wait() == 1
        assert counter.read_text() == "x" * DEATHS
        assert re.fullmatch(
            r"outlast run: error: the agent has died 5 times within 60 s, and is not started again: "
            r"at last it \(pid \d+\) was killed by SIGKILL",
            process.lines[-1],
        )


def test_an_agent_that_cannot_be_started_is_given_up_with_the_reason(tmp_path: Path) -> None:
    become = "import sys; from outlast.agent import supervisor; supervisor.become(sys.argv[1:])"
    with Process([python(), "-c", become, tmp_path / "absent"]) as process:
        assert process.wait() == 1
        process.wait_for(f"cannot start {tmp_path}/absent: No such file or directory")
        assert process.lines[-1].startswith("outlast run: error: the agent has died 5 times")


def test_starts_in_a_row_are_further_and_further_apart_and_the_first_is_at_once() -> None:
    deaths = [100.0 + number for number in range(DEATHS)]
    delays = [patience(deaths[: count + 1], deaths[count]) for count in range(DEATHS)]
    assert delays[0] == 0.0
    assert delays[-1] is None
    waited = [delay for delay in delays if delay is not None]
    assert waited == sorted(set(waited))


def test_deaths_that_are_long_ago_do_not_count() -> None:
    assert patience([0.0, 100.0, 200.0, 300.0, 400.0, 500.0], 500.0) == 0.0
    assert patience([0.0, 61.0, 62.0], 62.0) == patience([61.0, 62.0], 62.0)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"])
def test_a_signal_is_passed_on_once_and_the_agent_is_not_started_again(counter: Path, name: str) -> None:
    with supervise(ENDS_ON_SIGNAL, counter) as process:
        life(process, 1)
        process.signal(signal.Signals[name])
        process.wait_for(f"got {name}")
        process.wait_for("once")
        assert process.wait() == 1
        assert counter.read_text() == "x"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_the_whole_process_group_reaches_the_agent_once(counter: Path, name: str) -> None:
    with supervise(ENDS_ON_SIGNAL, counter) as process:
        life(process, 1)
        os.killpg(process.pid, signal.Signals[name])
        process.wait_for(f"got {name}")
        process.wait_for("once")
        assert process.wait() == 1


def test_ctrl_c_at_a_terminal_reaches_the_agent_once(counter: Path) -> None:
    keyboard, terminal = pty.openpty()
    try:
        with supervise(ENDS_ON_SIGNAL, counter, stdin=terminal, preexec_fn=lambda: take(terminal)) as process:
            life(process, 1)
            os.write(keyboard, b"\x03")
            process.wait_for("got SIGINT")
            process.wait_for("once")
            assert process.wait() == 1
    finally:
        os.close(keyboard)
        os.close(terminal)


def take(terminal: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def test_a_second_signal_reaches_the_agent_too(counter: Path) -> None:
    then = "say('got'); signal.sigwait(SIGNALS)\nsay('first')\nsignal.sigwait(SIGNALS)\nsay('second')\nsys.exit(1)"
    with supervise(then, counter) as process:
        process.wait_for("got")
        process.signal(signal.SIGTERM)
        process.wait_for("first")
        process.signal(signal.SIGTERM)
        process.wait_for("second")
        assert process.wait() == 1


def test_an_agent_that_dies_when_it_was_asked_to_end_is_not_started_again(counter: Path) -> None:
    with supervise("signal.sigwait(SIGNALS)\nos.kill(os.getpid(), signal.SIGKILL)", counter) as process:
        life(process, 1)
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        assert re.fullmatch(
            r"outlast run: error: the agent \(pid \d+\) was killed by SIGKILL, after SIGTERM", process.lines[-1]
        )
        assert counter.read_text() == "x"


def test_an_agent_that_dies_of_a_request_is_not_started_again(counter: Path) -> None:
    """As one that gets SIGTERM from a scheduler before it can handle it."""
    with supervise("signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)\nsignal.pause()", counter) as process:
        os.kill(life(process, 1), signal.SIGTERM)
        assert process.wait() == 1
        assert process.lines[-1].startswith("outlast run: error: the agent (pid ")
        assert counter.read_text() == "x"


def test_a_signal_between_two_lives_is_the_end(counter: Path) -> None:
    with supervise("os.kill(os.getpid(), signal.SIGKILL)", counter) as process:
        process.wait_for("starting it again in 1 s")
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        assert process.lines[-1] == "outlast run: error: SIGTERM, while no agent was running"


def test_the_agent_dies_with_its_supervisor(counter: Path) -> None:
    with supervise("signal.sigwait([signal.SIGALRM])", counter) as process:
        agent = life(process, 1)
        process.signal(signal.SIGKILL)
        process.wait()
        assert not await_exit([agent], SOON)


def test_an_agent_whose_supervisor_is_gone_before_it_can_bind_itself_ends() -> None:
    code = "from outlast.agent import supervisor; supervisor.bind(1); print('bound')"
    ended = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")


LEAVES_BEHIND = """
import subprocess
if life == 1:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    hide = f"import subprocess, time; subprocess.Popen({sleep!r}, start_new_session=True)"
    work = [sys.executable, "-c", f"{hide}; print('up', flush=True); time.sleep(600)"]
    marked = {**os.environ, "OUTLAST_WORKER_GROUP": f"{os.getpid()}-0"}
    worker = subprocess.Popen(work, env=marked, start_new_session=True, stdout=subprocess.PIPE)
    worker.stdout.readline()
    other = subprocess.Popen(sleep, start_new_session=True)
    say(f"worker {worker.pid} other {other.pid}")
    signal.sigwait(SIGNALS)
sys.exit(0)
"""


def test_what_workers_left_behind_is_gone_before_the_next_life(counter: Path) -> None:
    """Also children that hid in sessions of their own; but not what is no worker's, as the coordinator."""
    with supervise(LEAVES_BEHIND, counter) as process:
        agent = life(process, 1)
        worker, other = map(int, process.wait_for(r"worker (\d+) other (\d+)").groups())
        (hidden,) = set(process.tree()) - {process.pid, agent, worker, other}
        os.kill(agent, signal.SIGKILL)
        life(process, 2)
        assert [alive(pid) for pid in (worker, hidden, other)] == [False, False, True]
        os.kill(other, signal.SIGKILL)
        assert process.wait() == 0


def test_it_loads_next_to_nothing() -> None:
    """It is there for weeks, beside every agent."""
    command = [python(), "-I", "-S", "-X", "importtime", supervisor.__file__, "/bin/true"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in lines}
    ours = {name for name in loaded if name.startswith("outlast")}
    assert ours == {"outlast", "outlast.system", "outlast.system.proc"}
    assert not {"ctypes", "subprocess", "asyncio", "logging", "threading", "pathlib", "typing"} & loaded
