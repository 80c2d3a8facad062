"""The progress line of `outlast run`, on a real terminal."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest

from jobs import WAITS, free_port, job
from processes import PATIENCE, Process, await_exit, python
from terminals import Screen, Terminal

PRINTS = """
import os, sys, time
gate = open(sys.argv[1])
for number in range(60):
    sys.stdout.write(f"line ")
    sys.stdout.flush()
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    time.sleep(0.01)
gate.read(1)
"""


def progress(screen: Screen) -> bool:
    return not screen.whole and screen.cells[-1].startswith("outlast: generation 1")


def test_what_others_print_is_whole_above_the_line_in_windows_of_any_size(tmp_path: Path) -> None:
    script, gate = tmp_path / "prints.py", tmp_path / "gate"
    script.write_text(PRINTS)
    os.mkfifo(gate)
    with Terminal() as terminal:
        with job(script=script, args=[gate], env={"TERM": "xterm"}, **terminal.popen) as process:
            terminal.wait_until(progress)
            with gate.open("w") as opened:
                terminal.wait_until(lambda screen: any(row.startswith("line 59") for row in screen.cells))
                terminal.wait_until(progress)
                terminal.resize(10, 30)
                terminal.wait_until(lambda screen: progress(screen) and screen.bottom == 8)
                assert len(terminal.screen.cells[-1]) < 30
                terminal.resize(3, 30)
                terminal.wait_until(lambda screen: screen.whole and not any("outlast: " in row for row in screen.cells))
                terminal.resize(24, 80)
                terminal.wait_until(progress)
                opened.write("!")
            assert process.wait() == 0
        terminal.wait_until(lambda screen: screen.whole and not screen.cells[-1].startswith("outlast: "))
        shown = [row.strip() for row in terminal.screen.gone + terminal.screen.cells]
        assert [row for row in shown if row.startswith("line ")] == [f"line {number}" for number in range(60)]


def test_ctrl_z_and_a_killed_agent_give_the_terminal_back(tmp_path: Path) -> None:
    command = shlex.join([python(), "-m", "outlast", "run", "--ft-empty-timeout=0.1", str(WAITS)])
    home = {"TERM": "xterm", "HOME": str(tmp_path), "PS1": "$ "}
    with Terminal() as terminal, Process(["bash", "--norc", "-i"], env=home, **terminal.popen) as shell:
        terminal.type(f"{command}\n")
        terminal.wait_until(progress)
        terminal.type("\x1a")
        terminal.wait_until(lambda screen: screen.whole and any("Stopped" in row for row in screen.cells))
        terminal.type("fg\n")
        terminal.wait_until(progress)
        (agent,) = [pid for pid in shell.tree() if _is_agent(pid)]
        os.kill(agent, signal.SIGKILL)
        terminal.wait_until(lambda screen: screen.whole and any("Killed" in row for row in screen.cells))
        # The coordinator takes back what it has left for other processes.
        assert not await_exit([pid for pid in shell.tree() if pid != shell.pid], PATIENCE)


def _is_agent(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[1:4] == [b"-m", b"outlast", b"run"]


@pytest.mark.parametrize(("flags", "term"), [((), "dumb"), (("--ft-progress=false",), "xterm")])
def test_there_is_no_line_where_it_is_not_wanted_or_cannot_be(flags: tuple[str, ...], term: str) -> None:
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    with Terminal() as terminal:
        with job(*meeting, *flags, args=["--fail", "0"], env={"TERM": term}, **terminal.popen) as process:
            assert process.wait() == 1
        assert "\x1b" not in terminal.written
