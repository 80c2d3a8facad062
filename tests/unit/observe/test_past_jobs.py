"""`outlast status`, `why`, `events` and `logs` of a job that is over, by what it has left on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from outlast.cli import events as events_command
from outlast.cli import logs, report, status, why
from outlast.events import events
from outlast.events.events import Ending
from outlast.events.numbered import NumberedEvent, json_fields
from outlast.events.reasons import LostNode
from outlast.transport import token

COMMANDS = {"status": status.main, "why": why.main, "events": events_command.main, "logs": logs.main}
STORY = (
    events.JobBegan(generation=0, least=1, most=2),
    events.GenerationFormed(generation=1, nodes=("a", "b"), ranks=2, spares=0, restarts=0),
    events.TrainingBegan(generation=1, step=1),
    events.GenerationEnding(generation=1, reason=LostNode("b", "its connection closed")),
    events.JobOver(
        generation=1,
        success=False,
        ending=Ending.TOO_FEW_NODES,
        reason="too few nodes",
        seconds=5.0,
        generations=1,
        restarts=0,
    ),
)


def left(directory: Path, *, told: int = len(STORY), job: str = "bert", rest: str = "") -> Path:
    """A log directory with so many events of the story."""
    node = directory / f"{job}_12345678"
    (node / "attempt_0" / "0").mkdir(parents=True)
    (node / "attempt_0" / "0" / "stdout.log").write_text("hello\n")
    lines = [
        msgspec.json.encode(json_fields(NumberedEvent(number, 1000.0 + number, 1, event), job=job, run="r")).decode()
        for number, event in enumerate(STORY[:told], 1)
    ]
    (node / "events.jsonl").write_text("\n".join(lines) + "\n" + rest)
    return directory


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.observe.finding.local_jobs", list)
    monkeypatch.setattr("outlast.observe.finding._hosted", list)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setattr(token, "_directory", lambda: runtime)


def shown(capsys: pytest.CaptureFixture[str], name: str, *argv: str, code: int = 0) -> tuple[str, str]:
    assert COMMANDS[name](argv) == code
    said = capsys.readouterr()
    return said.out, said.err


def test_every_command_reads_the_log_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"--log-dir={left(tmp_path / 'logs')}"
    out, err = shown(capsys, "status", where, code=4)
    assert out.splitlines()[0] == "job bert: over (too few nodes); step 1"
    assert "last fault  node b " in out
    assert not err
    assert "generation 1:" in shown(capsys, "why", where)[0]
    assert len(shown(capsys, "events", where, "--after=2")[0].splitlines()) == len(STORY) - 2
    assert shown(capsys, "logs", where)[0].endswith("[rank0] hello\n")


def test_without_flags_the_newest_job_of_this_machine_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token.remember_logs(left(tmp_path / "logs"))
    for name, code in (("status", 4), ("why", 0), ("events", 0), ("logs", 0)):
        out, err = shown(capsys, name, code=code)
        assert out
        assert err == f"outlast {name}: no running job; this one left its logs in {tmp_path / 'logs'}\n"
    assert "bert" in shown(capsys, "status", "--job=bert", code=4)[0]


def test_a_report_is_made_of_the_newest_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--text"]) == 1
    assert capsys.readouterr().err.startswith("outlast report: error: no job has left logs on this machine: give")
    token.remember_logs(left(tmp_path / "logs"))
    assert report.main(["--text"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("job bert\n")
    assert said.err == f"outlast report: reading {tmp_path / 'logs'}\n"


def test_where_nothing_is_left_one_line_says_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = "give --endpoint HOST:PORT of one of its nodes, or --log-dir of a job that is over"
    line = f"no job of yours runs on this machine: {what}"
    assert shown(capsys, "why", code=1) == ("", f"outlast why: error: {line}\n")
    token.remember_logs(tmp_path / "removed")
    assert shown(capsys, "status", code=1) == ("", f"outlast status: error: {line}\n")
    token.remember_logs(left(tmp_path / "logs"))
    assert shown(capsys, "status", "--job=other", code=1) == ("", f"outlast status: error: {line}\n")


def test_a_record_that_was_cut_short_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = left(tmp_path / "logs", told=3, rest='{"version":2,"ti')
    where = f"--log-dir={logs}"
    out, _ = shown(capsys, "status", where, code=1)
    assert out.splitlines()[0] == "job bert: not known; step 1"
    assert "its record has no end: it was killed, or still runs on other machines" in out
    assert "1 line could not be read" in out
    out, err = shown(capsys, "why", where)
    assert out.startswith("job bert: nothing has failed; its record has no end")
    assert err == "outlast why: 1 line could not be read\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [("status", "holds no events.jsonl"), ("events", "holds no events.jsonl"), ("logs", "holds no attempt_0")],
)
def test_a_directory_that_is_no_log_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    out, err = shown(capsys, name, f"--log-dir={tmp_path}", code=1)
    assert not out
    assert said in err


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    assert shown(capsys, "why", f"--log-dir={gone}", code=1)[1] == (
        f"outlast why: error: {gone} cannot be read: No such file or directory\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_settings_of_a_job_are_no_flags_of_who_watches_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        COMMANDS[name](["--ft-node-timeout=3"])
    assert "unknown flag --ft-node-timeout" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        COMMANDS[name](["--help"])
    assert len(capsys.readouterr().out.splitlines()) < 80


def test_a_slurm_job_between_two_starts_is_told_with_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / ".outlast" / "slurm" / "7"
    state.mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    (state / "places").write_text("127.0.0.1:1\n")
    (state / "token").write_text("a token of these tests")
    (state / "token").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("outlast.cli.observing.queue_state", lambda _: "PENDING (BeginTime)")
    _, err = shown(capsys, "status", "--slurm=7", code=1)
    assert err.startswith("outlast status: error: Slurm job 7 is PENDING (BeginTime): no job answers at 127.0.0.1:1")
    (state / "token").unlink()
    _, err = shown(capsys, "status", "--slurm=7", code=1)
    assert err == "outlast status: error: Slurm job 7 does not run: it is PENDING (BeginTime)\n"


def test_a_slurm_job_that_has_failed_is_read_from_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / ".outlast" / "slurm" / "7"
    state.mkdir(parents=True)
    record = left(tmp_path / "logs") / "bert_12345678" / "events.jsonl"
    (state / "events.jsonl").write_bytes(record.read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("outlast.cli.observing.queue_state", lambda _: "")
    out, err = shown(capsys, "status", "--slurm=7", code=4)
    assert out.startswith("job bert: over (too few nodes)")
    assert err == "outlast status: Slurm job 7 is over\n"
