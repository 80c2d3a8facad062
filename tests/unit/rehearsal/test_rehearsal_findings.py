"""What the records of runs say about a script: made-up records, no processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.rehearsal.comparison import compare
from outlast.rehearsal.findings import Flaw, findings_of, not_repeatable, setup_notes, unique
from outlast.rehearsal.history import RunHistory, history_of
from outlast.rehearsal.page import html_rehearsal
from outlast.rehearsal.records import (
    BornRecord,
    FaultRecord,
    LoaderRecord,
    LoadRecord,
    RankLife,
    SaveRecord,
    SetupRecord,
    StepRecord,
    read_lives,
)
from outlast.rehearsal.rehearsal import RehearsalReport, RehearsedRun
from outlast.rehearsal.results import RunEnd, RunResult, recoveries
from outlast.rehearsal.runner import RehearsalJob
from outlast.rehearsal.scenarios import TITLES, BaselineFacts, Scenario, facts_of, plan
from outlast.rehearsal.text import text_of

STEPS = 10
SAVED = 4


def step(number: int, at: int, **changes: Any) -> StepRecord:
    """Step `number` of a process that trains what an exact script trains at step `at`."""
    first: dict[str, Any] = {"before": f"w{at - 1}", "optimizer_before": f"o{at - 1}", "optimizer_empty": at == 1}
    fields: dict[str, Any] = {
        "made": float(at),
        "loss": 1 / at,
        "after": f"w{at}",
        "norm": 1.0 + at,
        "optimizer": f"o{at}",
        "optimizer_stateful": True,
        "rates": [0.1],
        "batches": [[str(at)]],
        "rng": f"r{at}",
        **(first if number == 1 else {}),
    }
    return StepRecord(number=number, **{**fields, **changes})


def life(generation: int, steps: Sequence[StepRecord], *, rank: int = 0, world: int = 1) -> RankLife:
    made = RankLife(BornRecord(0.0, rank, world, generation), steps=list(steps))
    made.setup = SetupRecord(0.0, [("train.py:3", 0.2)], "default")
    return made


def first_life(until: int = STEPS, generation: int = 1) -> RankLife:
    made = life(generation, [step(number, number) for number in range(1, until + 1)])
    made.saves = [SaveRecord(1.0, 0.9, "c.pt", "train.py:9", ["model"], at) for at in (2, SAVED)]
    made.loaders = [LoaderRecord("train.py:5", "RandomSampler", False)]
    return made


def killed(second: Sequence[StepRecord], *, at: int = 6) -> RunHistory:
    """A run that is killed after step 6 and goes on with these steps."""
    first = first_life(at)
    first.faults = [FaultRecord(6.5, "kill-1", "kill", at)]
    return history_of([first, life(2, second)])


def resumed(start: int = SAVED, **changes: Any) -> list[StepRecord]:
    return [step(number, start + number, **changes) for number in range(1, STEPS - start + 1)]


UNDISTURBED = history_of([first_life()])


def found(history: RunHistory, *, name: str = "kill", end: RunEnd = RunEnd.FINISHED, **options: Any) -> list[Flaw]:
    faults = plan(facts_of(UNDISTURBED, 2), 0, [name])[0].faults
    result = RunResult(scenario=Scenario(name=name, faults=faults), history=history, end=end, **options)
    compared = compare(UNDISTURBED, history, tolerance=1e-4)
    return findings_of(result, UNDISTURBED, compared, shutdown=5, cut=False)


def test_a_script_that_goes_on_exactly_has_no_finding() -> None:
    history = killed(resumed())
    assert [job.start for job in history.lives] == [0, SAVED]
    assert history.last == STEPS
    assert compare(UNDISTURBED, history, tolerance=0).same == "bits"
    assert found(history) == []
    [recovery] = recoveries(history)
    assert (recovery.at, recovery.start, recovery.lost) == (6, SAVED, 2)


def test_batches_that_are_skipped_on_the_way_to_the_old_place_are_not_trained() -> None:
    steps = resumed()
    skipped = [[str(number)] for number in range(1, SAVED + 2)]
    steps[0] = msgspec.structs.replace(steps[0], batches=skipped)
    assert found(killed(steps)) == []


def test_an_optimizer_that_comes_back_empty_is_named_with_the_line_that_saves() -> None:
    steps = resumed()
    steps[0] = msgspec.structs.replace(steps[0], optimizer_empty=True)
    steps[1:] = [msgspec.structs.replace(each, after="x" + each.after, loss=each.loss or 0 + 0.1) for each in steps[1:]]
    [finding] = found(killed(steps))
    assert (finding.kind, finding.line) == ("optimizer-not-restored", "train.py:9")
    assert "what is saved: model" in finding.seen


def test_training_that_starts_over_is_named() -> None:
    [finding] = found(killed([step(number, number) for number in range(1, STEPS + 1)]))
    assert finding.kind == "starts-over"
    assert "6 steps are lost" in finding.seen


def test_samples_that_are_skipped_and_repeated_are_counted_and_named() -> None:
    steps = resumed()
    steps[0] = msgspec.structs.replace(steps[0], batches=[["1"]], loss=0.9, after="x")
    [finding] = found(killed(steps))
    assert (finding.kind, finding.line) == ("samples", "train.py:5")
    assert finding.seen.startswith("1 samples are never trained (5) and 1 are trained once too often (1)")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"rates": [0.2], "after": "x", "loss": 3.0}, "schedule-not-restored"),
        ({"rng": "x", "after": "x", "loss": 3.0}, "random-numbers"),
        ({"after": "x", "loss": 3.0}, "numbers-differ"),
    ],
)
def test_what_else_is_not_restored_is_told_from_where_the_runs_part(changes: dict[str, Any], kind: str) -> None:
    steps = resumed()
    steps[1:] = [msgspec.structs.replace(each, **changes) for each in steps[1:]]
    [finding] = found(killed(steps))
    assert (finding.kind, finding.problem) == (kind, True)


def test_two_undisturbed_runs_that_differ_are_not_blamed_on_a_restart() -> None:
    other = first_life()
    other.steps = [msgspec.structs.replace(each, batches=[["9"]], after="x") for each in other.steps]
    history = history_of([other])
    finding = not_repeatable(compare(UNDISTURBED, history, tolerance=1e-4), UNDISTURBED, history)
    assert finding is not None
    assert (finding.kind, finding.line) == ("unseeded-shuffle", "train.py:5")


def test_ranks_that_go_on_from_different_steps_are_named() -> None:
    first = [first_life(6), first_life(6)]
    first[1].born = BornRecord(0.0, 1, 2, 1)
    first[0].born = BornRecord(0.0, 0, 2, 1)
    again = [life(2, resumed(), world=2), life(2, [step(1, 1)], rank=1, world=2)]
    [finding] = [each for each in found(history_of([*first, *again])) if each.kind == "ranks-differ"]
    assert "rank 0 from 4, rank 1 from 0" in finding.seen


def test_a_file_that_is_read_while_it_is_written_is_named() -> None:
    writer, reader = first_life(), first_life()
    writer.born, reader.born = BornRecord(0.0, 0, 2, 1), BornRecord(0.0, 1, 2, 1)
    reader.loads = [LoadRecord(0.97, 0.95, "c.pt", "train.py:12", "EOFError", 4)]
    [finding] = found(history_of([writer, reader]), name="slow-save", end=RunEnd.FAILED)
    assert finding.kind == "read-while-written"
    assert "(line 9)" in finding.change
    assert "(line 12)" in finding.change


@pytest.mark.parametrize(
    ("name", "kind"), [("kill-in-save", "save-not-atomic"), ("damage", "damaged-checkpoint"), ("hang", None)]
)
def test_a_job_that_does_not_come_back_is_told_by_what_it_could_not_read(name: str, kind: str | None) -> None:
    dead = life(2, [])
    if kind:
        dead.loads = [LoadRecord(9.0, 8.9, "c.pt", "train.py:12", "EOFError: x", 0)]
    history = history_of([first_life(6), dead])
    facts = BaselineFacts(steps=STEPS, world=1, saved_at=(4, 8), plain_saves=True)
    [scenario] = plan(facts, 0, [name])
    result = RunResult(scenario=scenario, history=history, end=RunEnd.FAILED, reason="exit code 1")
    [finding] = findings_of(result, UNDISTURBED, None, shutdown=5, cut=False)
    assert finding.kind == (kind or "does-not-come-back")


@pytest.mark.parametrize(
    ("handler", "seconds", "problem"), [("ignored", 1.0, True), ("handled", 4.9, True), ("default", 0.2, False)]
)
def test_a_script_that_takes_no_notice_of_sigterm_is_named(handler: str, seconds: float, problem: bool) -> None:
    first = first_life(6)
    first.setup = SetupRecord(0.0, [], handler)
    first.faults = [FaultRecord(3.5, "fewer-nodes", "preempt", 3)]
    history = history_of([first, life(2, resumed())])
    kinds = [each.kind for each in found(history, name="fewer-nodes", drain_seconds=seconds)]
    assert kinds == (["ignores-sigterm"] if problem else [])


def test_only_lines_that_slow_down_every_restart_are_noted() -> None:
    def run(*seconds: float) -> list[Flaw]:
        results = []
        for each in seconds:
            history = killed(resumed())
            history.lives[1].ranks[0].setup = SetupRecord(0.0, [("train.py:3", each)], "default")
            results.append(RunResult(scenario=Scenario(name="kill"), history=history, end=RunEnd.FINISHED))
        return setup_notes(results)

    assert [finding.line for finding in run(2.0, 3.0)] == ["train.py:3"]
    assert run(2.0, 0.1) == []


def test_a_plan_depends_on_the_seed_and_hits_after_the_first_save() -> None:
    facts = BaselineFacts(steps=100, world=4, saved_at=(10, 20, 30), plain_saves=True)
    plans = [plan(facts, seed, TITLES) for seed in range(20)]
    assert plans[3] == plan(facts, 3, TITLES)
    assert len({each[1].faults for each in plans}) > 10
    for scenarios in plans:
        assert [each.name for each in scenarios] == [name for name in TITLES if name != "undisturbed"]
        for fault in (scenario.faults[0] for scenario in scenarios if scenario.faults):
            assert 10 < fault.step < 100
            assert 0 <= fault.rank < 4
    assert plan(facts, 3, ["kill"]) == [each for each in plans[3] if each.name == "kill"]


def test_records_are_read_as_they_are_written_and_half_a_line_is_left(tmp_path: Path) -> None:
    lines = [msgspec.json.encode(each) for each in (BornRecord(1.0, 0, 1, 3), step(1, 1))]
    (tmp_path / "rank-0-generation-3-77.jsonl").write_bytes(b"\n".join(lines) + b'\n{"kind": "st')
    [read] = read_lives(tmp_path)
    assert (read.born.generation, [each.number for each in read.steps]) == (3, [1])


def test_a_report_says_it_all_and_the_page_escapes_it() -> None:
    finding = Flaw(kind="samples", problem=True, seen="<b>2</b> twice", change="save it", line="x.py:1")
    result = RunResult(scenario=Scenario(name="kill"), history=killed(resumed()), end=RunEnd.FINISHED)
    run = RehearsedRun(result=result, compared=compare(UNDISTURBED, result.history, tolerance=0))
    job = RehearsalJob(script="train.py", arguments=(), nodes=2, nproc=1, shutdown=5)
    report = RehearsalReport(
        job=job, seed=0, steps=10, runs=[run], findings=unique([finding, finding]), samples_seen=True
    )
    text, page = text_of(report), html_rehearsal(report)
    assert "1 problem found" in text
    assert "hit at 6, on from 4  to the bit" in text
    assert "&lt;b&gt;2&lt;/b&gt; twice" in page
    assert not report.survives
