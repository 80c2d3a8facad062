"""The failure summary: torch's own text for the same failures, whatever the workers left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.agent.output.summary import (
    ERROR_LIMIT,
    failure_summary,
    forward_error_file,
    read_error_file,
    root_failure,
    seen_failure,
)
from outlast.protocol.failures import Failure

NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no\n'


def recorded(path: Path, *, timestamp: int = 1700000000, callstack: str = TRACEBACK) -> str:
    extra = {"py_callstack": callstack, "timestamp": str(timestamp)}
    path.write_text(json.dumps({"message": {"message": "ValueError: no", "extraInfo": extra}}))
    os.utime(path, (timestamp + 0.5, timestamp + 0.5))
    return str(path)


def read(error_file: str, **changes: Any) -> Failure:
    seen: dict[str, Any] = {
        "node": "node-0",
        "host": socket.getfqdn(),
        "rank": 0,
        "local_rank": 0,
        "pid": 1234,
        "exit_code": 1,
        "at": 1700000100.25,
    }
    return read_error_file(seen_failure(**{**seen, **changes}), error_file)


def torch_summary(failures: list[Failure], files: list[str]) -> str:
    """What torchrun would print. Failures without a file have the time at which torch was told."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    theirs = {}
    for failure, file in zip(failures, files, strict=True):
        theirs[failure.rank] = ProcessFailure(failure.local_rank, failure.pid, failure.exit_code, file)
        if not Path(file).is_file():
            theirs[failure.rank].timestamp = int(failure.at)
    return str(ChildFailedError("train.py", theirs))


def test_the_summary_is_torchs_to_the_letter(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"message": "two\nlines", "timestamp": 1700000300}))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"message": {"message": "only\nthis", "extraInfo": {"timestamp": 1700000400}}}))
    files = [
        recorded(tmp_path / "first.json", timestamp=1700000050),
        str(tmp_path / "none.json"),
        recorded(tmp_path / "root.json", timestamp=1700000020, callstack="x" * 100),
        str(plain),
        str(bare),
        str(tmp_path / "none.json"),
        str(tmp_path / "none.json"),
    ]
    codes = [1, -9, 1, 3, 1, 17, -63]
    failures = [
        read(file, rank=rank + 8, local_rank=rank, exit_code=code, pid=4000 + rank)
        for rank, (file, code) in enumerate(zip(files, codes, strict=True))
    ]
    assert failure_summary("train.py", failures) == torch_summary(failures, files)
    assert failure_summary("train.py", failures[:1]) == torch_summary(failures[:1], files[:1])
    assert failure_summary("train.py", failures[1:2]) == torch_summary(failures[1:2], files[1:2])
    assert root_failure(failures) is failures[2]


def test_a_signal_is_named() -> None:
    failure = read("", exit_code=-9, pid=77)
    assert failure.message == "Signal 9 (SIGKILL) received by PID 77"
    assert failure.error_file == "<N/A>"
    assert failure.error == ""
    assert failure.at == 1700000100.25


def test_an_exit_without_an_error_file_says_how_to_get_one() -> None:
    assert read("/dev/null", exit_code=2).message == NO_TRACEBACK


def test_within_a_second_the_error_files_own_time_decides_which_came_first(tmp_path: Path) -> None:
    early, late = recorded(tmp_path / "early.json"), recorded(tmp_path / "late.json")
    os.utime(early, (1700000000.2, 1700000000.2))
    os.utime(late, (1700000000.7, 1700000000.7))
    failures = [read(late, rank=0), read(early, rank=1)]
    assert root_failure(failures).rank == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"message": {"mess',
        b"\x00\xff\xfe garbage",
        b"[1, 2]",
        b'"text"',
        b'{"message": 5}',
        b"{}",
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize(("code", "message"), [(1, NO_TRACEBACK), (-11, "Signal 11 (SIGSEGV) received by PID 5")])
def test_a_damaged_error_file_takes_nothing_away(tmp_path: Path, content: bytes, code: int, message: str) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content)
    failure = read(str(path), exit_code=code, pid=5)
    assert failure.message == message
    assert failure.error_file == str(path)
    assert failure.error == ""
    assert failure.at == 1700000100.25


@pytest.mark.parametrize("timestamp", ["soon", None, [], 10**30, "-1e99"])
def test_a_timestamp_that_is_none_leaves_the_time_of_the_exit(tmp_path: Path, timestamp: object) -> None:
    path = tmp_path / "error.json"
    message = {"message": "boom", "extraInfo": {"py_callstack": "trace", "timestamp": timestamp}}
    path.write_text(json.dumps({"message": message}))
    failure = read(str(path))
    assert failure.message == "trace"
    assert failure.at == 1700000100.25


@pytest.mark.parametrize("unit", ["line of a traceback\n", "\x01", "漢", "\udc80"])
def test_a_huge_error_is_cut_but_keeps_its_end_and_can_be_sent(tmp_path: Path, unit: str) -> None:
    path = recorded(tmp_path / "error.json", callstack=unit * 200_000 + "ValueError: the end")
    failure = read(path)
    assert len(failure.message) <= ERROR_LIMIT
    assert failure.message.endswith("ValueError: the end")
    assert len(failure.error) <= ERROR_LIMIT
    assert json.loads(failure.error)["message"]["extraInfo"]["py_callstack"].endswith("ValueError: the end")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=Failure) == failure


def test_the_root_error_goes_on_to_the_launchers_own_error_file(tmp_path: Path) -> None:
    """As torch's own handler forwards it."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    source = recorded(tmp_path / "error.json")
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    ours.write_text("what an earlier run left")
    forward_error_file(read(source, exit_code=-6), {"TORCHELASTIC_ERROR_FILE": str(ours)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ERROR_FILE", str(theirs))
        get_error_handler().dump_error_file(source, -6)
    assert json.loads(ours.read_text()) == json.loads(theirs.read_text())
    assert json.loads(ours.read_text())["message"]["errorCode"] == -6


def test_nothing_is_forwarded_where_nobody_asked_or_nothing_was_recorded(tmp_path: Path) -> None:
    target = tmp_path / "launcher.json"
    forward_error_file(read(recorded(tmp_path / "error.json")), {})
    forward_error_file(read("missing"), {"TORCHELASTIC_ERROR_FILE": str(target)})
    assert not target.exists()


def test_a_launchers_error_file_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failure = read(recorded(tmp_path / "error.json"))
    forward_error_file(failure, {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "no" / "such" / "directory")})
    assert "cannot write the launcher's error file" in caplog.text


def run_path(tmp_path: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "outlast.worker.run_path", str(path), *arguments],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_run_path_runs_the_script_as_main_with_its_arguments(tmp_path: Path) -> None:
    done = run_path(tmp_path, "import sys; print(__name__, sys.argv[1:]); assert 'torch' not in sys.modules", "a", "b")
    assert done.stdout == "__main__ ['a', 'b']\n"
    assert done.returncode == 0


def test_run_path_records_an_exception_as_torch_does(tmp_path: Path) -> None:
    done = run_path(tmp_path, "raise ValueError('no')")
    assert done.returncode == 1
    failure = read(str(tmp_path / "error.json"))
    assert "ValueError: no" in done.stderr
    assert failure.message.endswith("ValueError: no\n  ")
    assert failure.at > 1700000100.25
    assert json.loads(failure.error)["message"]["message"] == "ValueError: no"


@pytest.mark.parametrize("code", [0, 3])
def test_run_path_hands_an_exit_code_on_and_records_nothing(tmp_path: Path, code: int) -> None:
    assert run_path(tmp_path, f"raise SystemExit({code})").returncode == code
    assert not (tmp_path / "error.json").exists()


@pytest.mark.parametrize(("first_hung", "root"), [("it is late", 1), ("", 0)])
def test_of_ranks_that_hang_the_root_is_the_one_that_the_others_waited_for(first_hung: str, root: int) -> None:
    first = msgspec.structs.replace(read("", rank=0, at=1.0), hung=first_hung)
    culprit = msgspec.structs.replace(read("", rank=1, at=2.0), hung="it sleeps", culprit=True)
    assert root_failure([first, culprit]).rank == root
