"""`outlast restart`, and SIGHUP to the coordinator: the same nodes, new code, and nothing counted as a failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobs import free_port, job, node
from processes import Process, outlast

CODE = "import os, signal\nprint('this is {}', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\nsignal.pause()\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(CODE.format("old"))
    return path


@pytest.fixture
def running(script: Path) -> Iterator[Process]:
    with job(script=script) as process:
        process.wait_for("this is old 0")
        yield process
        process.signal(signal.SIGINT)
        process.wait()


def test_the_only_job_here_is_restarted_with_the_code_on_disk(running: Process, script: Path) -> None:
    script.write_text(CODE.format("new"))
    command = outlast("restart")
    assert command.wait() == 0, command.output
    running.wait_for("generation 1 ends: .* on .* asked for a restart", anywhere=True)
    running.wait_for("this is new 0", anywhere=True)


def test_sighup_to_the_coordinator_does_the_same(running: Process, script: Path) -> None:
    script.write_text(CODE.format("new"))
    (coordinator,) = [p for p in psutil.Process(running.pid).children() if is_coordinator(p)]
    coordinator.send_signal(signal.SIGHUP)
    running.wait_for("SIGHUP asked for a restart", anywhere=True)
    running.wait_for("this is new 0", anywhere=True)


def is_coordinator(process: psutil.Process) -> bool:
    return any("outlast.coordinator" in word for word in process.cmdline())


def test_it_is_found_by_its_endpoint_or_its_name(script: Path) -> None:
    port = free_port()
    with node("node-1", port, "--nnodes=1:1", "--rdzv-id=mine", script=script) as process:
        for generation, how in enumerate([f"--rdzv-endpoint=127.0.0.1:{port}", "--job=mine"], start=1):
            process.wait_for("this is old 0")
            command = outlast("restart", how)
            assert command.wait() == 0, command.output
            process.wait_for(f"generation {generation} ends: .* asked for a restart", anywhere=True)
        process.wait_for("this is old 0")
        wrong = outlast("restart", f"--rdzv-endpoint=127.0.0.1:{port}", "--job=yours")
        assert wrong.wait() == 1
        assert "serves job 'mine', not 'yours'" in wrong.output
        process.signal(signal.SIGINT)
        process.wait()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "no job of yours runs on this machine"),
        (["--job=nobody"], "no job of yours runs on this machine"),
        (["--rdzv-endpoint=127.0.0.1:1"], "no job answers at 127.0.0.1:1"),
        (["--rdzv-endpoint=here:there"], "must be host:port"),
    ],
)
def test_a_job_that_is_not_there_is_one_clear_line(flags: list[str], why: str) -> None:
    command = outlast("restart", *flags, env={"OUTLAST_TOKEN": "a token that nobody has"})
    assert command.wait() == 1
    (line,) = command.lines
    assert line.startswith("outlast restart: error: ")
    assert why in line


def test_whoever_has_another_token_restarts_nothing(running: Process) -> None:
    (record,) = (Path(os.environ["TMPDIR"]) / f"outlast-{os.getuid()}").glob("*.job")
    port = record.stem.partition("-")[2]
    command = outlast("restart", f"--rdzv-endpoint=127.0.0.1:{port}", env={"OUTLAST_TOKEN": "quite another token"})
    assert command.wait() == 1
    assert "has another token" in command.output
    assert not any("asked for a restart" in line for line in running.lines)
