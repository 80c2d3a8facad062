"""The verdict for people, of a job of ours and of the logs of others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from outlast.cli.diagnose import main
from outlast.cli.request import parse
from outlast.protocol.failures import Account, Failure, ReportedCause, Tried
from outlast.protocol.membership import Over
from outlast.verdict import Verdict, verdict_of

FULL = ReportedCause(
    "disk-full", "the disk is full", domain="storage", outlook="may help", explain="No space.", advice="Free it."
)
FULL = msgspec.structs.replace(FULL, seen="OSError: [Errno 28] No space left on device")
LOST = ReportedCause("gloo-error", "gloo lost its peers", role="cascade")


def failure(rank: int, cause: ReportedCause, at: float, **facts: object) -> Failure:
    account = Account(exception="OSError", said="[Errno 28]\x1b[2J", traceback="Traceback\n  here\nOSError", log="/l/1")
    known = {"node": "b", "host": "h", "rank": rank, "local_rank": 0, "pid": 7, "exit_code": 1, "message": ""}
    account = msgspec.structs.replace(account, ran=12.25, step=40)
    return Failure(**{**known, "at": at, "clock": at, "cause": cause, "account": account, **facts})  # type: ignore[arg-type]


def test_it_says_what_failed_first_and_all_that_a_person_needs() -> None:
    tried = Tried(1, "b", 3, 90.0, "disk-full", "the disk is full", "", "restart 1 of 1", 20)
    over = Over(False, "it is over", (failure(3, FULL, 100.0), failure(0, LOST, 101.5)), tried=(tried,))
    verdict = verdict_of(over)
    assert verdict is not None
    text = verdict.text()
    assert "failed first: rank 3 on node b (host h): OSError: [Errno 28]\\x1b[2J" in text
    assert "12.2 s after its start, after step 40" in text
    assert "cause:        the disk is full (disk-full; storage; a retry may help)" in text
    assert "after it:     rank 0 on node b, 1.5 s later: gloo lost its peers" in text
    assert "tried:        generation 1: rank 3 on node b at step 20: the disk is full; restart 1 of 1" in text
    assert "stopped:      it is over" in text
    assert "what to do:   Free it." in text
    assert "log:          /l/1" in text
    assert "\x1b" not in text
    assert len(text.splitlines()) < 30


def test_a_rank_that_hung_is_not_said_to_have_died_of_a_signal_and_its_sentence_stands_there_once() -> None:
    clock = "it made no step for 30 s"
    cause = msgspec.structs.replace(FULL, name="hang", title="the rank hung", seen=clock)
    message = (
        f'Hung: {clock}; ended with SIGKILL\n  It was at (most recent call last):\n    File "train.py", line 7, in f'
    )
    hung = failure(3, cause, 1.0, hung=clock, exit_code=-9, message=message, account=Account())
    verdict = verdict_of(Over(False, "rank 3 on node b hung, and no restart is allowed", (hung,)))
    assert verdict is not None
    text = verdict.text()
    assert "failed first: rank 3 on node b (host h): hung, and was killed" in text
    assert text.count(clock) == 1
    assert "SIGKILL" not in text
    assert 'File "train.py", line 7' in text


def test_without_a_traceback_the_last_lines_of_the_log_are_shown() -> None:
    lines = tuple(f"line {number}" for number in range(20))
    account = Account(log="/l/1", tail=lines)
    verdict = verdict_of(Over(False, "over", (failure(3, FULL, 1.0, account=account),)))
    assert verdict is not None
    text = verdict.text()
    assert "last lines:   line 12\n" in text
    assert "line 19\nlog:          /l/1" in text
    assert "line 11" not in text


def test_the_users_own_frames_stay_in_a_long_traceback() -> None:
    library = '  File "/v/lib/python3.11/site-packages/torch/x.py", line 1, in forward\n    y\n'
    trace = "Traceback (most recent call last):\n" + '  File "/home/me/train.py", line 3, in main\n    model(x)\n'
    account = Account(exception="ValueError", said="bad", traceback=trace + 30 * library + "ValueError: bad\n")
    verdict = verdict_of(Over(False, "over", (failure(3, FULL, 1.0, account=account),)))
    assert verdict is not None
    assert '  File "/home/me/train.py", line 3, in main' in verdict.text()
    assert "29 frames of libraries" in verdict.text()


def test_as_json_it_is_the_same() -> None:
    verdict = verdict_of(Over(False, "over", (failure(3, FULL, 1.0),)))
    assert verdict is not None
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_where_nothing_failed_there_is_none() -> None:
    assert verdict_of(Over(True, "done")) is None
    assert verdict_of(Over(False, "interrupted")) is None


def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(ValueError, match=r"--ft-verdict: there is no directory .*/none; make it, or give another path"):
        parse([f"--ft-verdict={tmp_path}/none/v.json", str(tmp_path / "train.py")], {"PATH": "/usr/bin"})


# -- logs of others


def worker(place: Path, stderr: str = "", error: object = None, at: float = 1000.0) -> None:
    place.mkdir(parents=True)
    (place / "stdout.log").write_text("step 1 loss 2.0\n")
    (place / "stderr.log").write_text(stderr)
    if error is not None:
        (place / "error.json").write_text(json.dumps(error))
    for file in place.iterdir():
        os.utime(file, (at, at))


def diagnosed(path: Path, capsys: pytest.CaptureFixture[str]) -> Verdict:
    assert main(["--json", str(path)]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=Verdict)


def test_the_logs_of_several_nodes_by_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n"
    trace = (
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'x'\n[rank1]: OSError: [Errno 28] No space left\n"
    )
    worker(tmp_path / "job_abcdefgh" / "attempt_0" / "0", "an attempt before\nMemoryError: then")
    worker(tmp_path / "job_abcdefgh" / "attempt_1" / "0", lost, at=1001.0)
    worker(tmp_path / "job_abcdefgh" / "attempt_1" / "1")
    worker(tmp_path / "job_12__5678" / "attempt_1" / "0", lost, at=1002.0)
    worker(tmp_path / "job_12__5678" / "attempt_1" / "1", trace, at=1003.0)
    verdict = diagnosed(tmp_path, capsys)
    assert (verdict.first.node, verdict.first.rank, verdict.cause.name) == ("job_12__5678", 1, "disk-full")
    assert verdict.first.traceback.splitlines() == [
        "Traceback (most recent call last):",
        "  File 'x'",
        "OSError: [Errno 28] No space left",
    ]
    assert [(each.node, each.cause) for each in verdict.followed] == [
        ("job_abcdefgh", "gloo-error"),
        ("job_12__5678", "gloo-error"),
    ]
    assert main([str(tmp_path)]) == 0
    assert "failed first: rank 1 on node job_12__5678: OSError: [Errno 28] No space left" in capsys.readouterr().out


def test_an_error_file_tells_what_a_log_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"py_callstack": "Traceback …\nKeyError: 'x'", "timestamp": "1000"}
    worker(tmp_path / "attempt_0" / "0", error={"message": {"message": "KeyError: 'x'", "extraInfo": extra}})
    verdict = diagnosed(tmp_path, capsys)
    assert (verdict.first.exception, verdict.first.message, verdict.cause.name) == ("KeyError", "'x'", "exception")


def test_our_own_logs_hold_the_verdict_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker(tmp_path / "job_abcdefgh" / "attempt_0" / "0")
    left = verdict_of(Over(False, "over", (failure(3, FULL, 1.0),)))
    (tmp_path / "job_abcdefgh" / "verdict.json").write_bytes(msgspec.json.encode(left))
    assert diagnosed(tmp_path, capsys) == left


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("", "is not a directory: give the --log-dir of the job"),
        ("x", "holds no attempt_0 or the like"),
        ("x/attempt_0/0", "says that a worker failed"),
    ],
)
def test_what_cannot_be_diagnosed_is_said_in_one_line(
    made: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if made.endswith("0"):
        worker(tmp_path / made, "all is well\n")
    elif made:
        (tmp_path / made).mkdir()
    assert main([str(tmp_path / "x")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("outlast diagnose: error: ")
    assert says in line
