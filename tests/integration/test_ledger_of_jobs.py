"""The ledger of real jobs: from the files that they leave."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import psutil

from jobs import SCRIPTS, free_port, job, node
from outlast.ledger.accountant import Accountant
from outlast.ledger.states import LedgerState
from outlast.ledger.summary import ledger, summarize
from outlast.reports.sources import recorded
from processes import outlast

STEPS = SCRIPTS / "counts_steps.py"


def _steps_until(folder: Path, enough: Path) -> Path:
    """A script that makes steps until this file is there."""
    script = folder / "train.py"
    script.write_text(
        "import os, time, outlast\n"
        "step = 0\n"
        f"while not os.path.exists({str(enough)!r}):\n"
        "    time.sleep(0.02)\n"
        "    step += 1\n"
        "    outlast.step(step)\n"
        "    if step == 5: print('five steps', flush=True)\n"
    )
    return script


def books_of(path: Path) -> Accountant:
    return ledger(recorded([path])[0].events)


def test_a_crash_is_accounted_for_to_the_nanosecond_and_the_journal_says_the_same(tmp_path: Path) -> None:
    events, journal = tmp_path / "events.jsonl", tmp_path / "journal"
    flags = (f"--ft-events={events}", f"--ft-journal={journal}", "--max-restarts=1")
    with job(*flags, script=STEPS) as process:
        assert process.wait() == 0, process.output
    books = books_of(events)
    told = summarize(books)
    assert books.began is not None
    assert sum(books.book.time().values()) == books.now - books.began
    assert told.known == 1.0
    assert (told.success, told.generations, told.step, told.steps_lost) == (True, 2, 60, 10)
    (cost,) = told.faults
    assert cost.fault.recovered
    assert cost.fault.place.startswith("rank 0 on ")
    assert {"stopping", "starting", "redone"} <= cost.states.keys()
    again = books_of(journal)
    assert [(each.kind, each.place, each.steps_lost) for each in again.faults] == [
        (each.kind, each.place, each.steps_lost) for each in books.faults
    ]
    assert again.book.time().keys() | {LedgerState.FORMING} == books.book.time().keys() | {LedgerState.FORMING}


def test_metrics_follow_a_running_job(tmp_path: Path) -> None:
    port, enough = free_port(), tmp_path / "enough"
    with node("a", port, "--nnodes=1", script=_steps_until(tmp_path, enough)) as process:
        process.wait_for("five steps")
        with outlast("metrics", "--once", f"--endpoint=127.0.0.1:{port}") as metrics:
            assert metrics.wait() == 0, metrics.output
        enough.touch()
        assert process.wait() == 0, process.output
    assert re.search(r"outlast_job_state\{.*training.*\} 1.0", metrics.output)


def test_a_coordinator_that_is_killed_leaves_no_gap(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    script = _steps_until(tmp_path, tmp_path / "enough")
    with job(f"--log-dir={logs}", "--tee=3", "--supervise", script=script) as process:
        process.wait_for("five steps")
        children = psutil.Process(process.pid).children(recursive=True)
        coordinators = [each for each in children if "outlast.coordinator" in " ".join(each.cmdline())]
        os.kill(coordinators[0].pid, signal.SIGKILL)
        process.wait_for("took over")
        (tmp_path / "enough").touch()
        assert process.wait() == 0, process.output
    told = summarize(books_of(logs))
    assert (told.known, told.faults, told.generations) == (1.0, (), 1)
    assert told.time["productive"] > 0
    with outlast("report", logs, "-o", tmp_path / "report.html") as reporting:
        assert reporting.wait() == 0, reporting.output
    assert "succeeded" in (tmp_path / "report.html").read_text()


def test_a_job_that_was_stopped_as_a_whole_was_suspended_and_waited_in_the_queue_before(tmp_path: Path) -> None:
    events, enough = tmp_path / "events.jsonl", tmp_path / "enough"
    flags = (f"--ft-events={events}", "--node-timeout=1", f"--ft-submitted={time.time() - 3600:.0f}")
    with job(*flags, script=_steps_until(tmp_path, enough)) as process:
        process.wait_for("five steps")
        tree = [process.pid, *process.tree()]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in tree:
                os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(5)  # this is what is measured: nobody can be waited for who is stopped
        process.wait_for("the job was suspended for")
        enough.touch()
        assert process.wait() == 0, process.output
    told = summarize(books_of(events))
    assert told.time["suspended"] >= 4.0
    assert 3500 < told.time["queued"] < 4000
    assert told.known == 1.0
