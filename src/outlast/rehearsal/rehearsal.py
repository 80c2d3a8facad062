"""A whole rehearsal: the undisturbed run, the plan that follows from it, the disturbed ones, and what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path

import msgspec

from outlast.rehearsal.comparison import Comparison, compare
from outlast.rehearsal.findings import Flaw, findings_of, not_repeatable, reads_too_early, setup_notes, unique
from outlast.rehearsal.history import RunHistory
from outlast.rehearsal.results import RunEnd, RunResult
from outlast.rehearsal.runner import RehearsalJob, RehearsalRunner
from outlast.rehearsal.scenarios import Scenario, facts_of, plan

BASE = Scenario(name="undisturbed")
SHARE = 0.25  # of the time, for the undisturbed run
LEAST_STEPS = 4
QUIET_STEPS = 5.0  # a rank hangs that makes no step for so many times the longest wait of the undisturbed run,
QUIET_SECONDS = 4.0  # and so many seconds


class UnfitForRehearsal(Exception):
    """This script cannot be rehearsed like this; the text says what to do."""


class RehearsedRun(msgspec.Struct, kw_only=True):
    """One run, beside the undisturbed one."""

    result: RunResult
    compared: Comparison | None = None
    findings: list[Flaw] = []


class RehearsalReport(msgspec.Struct, kw_only=True):
    """All of it."""

    job: RehearsalJob
    seed: int
    steps: int
    runs: list[RehearsedRun]
    findings: list[Flaw]  # of all runs, each once
    skipped: list[str] = []  # scenarios that there was no time for
    repeatable: bool = True
    samples_seen: bool = False
    seconds: float = 0.0

    @property
    def survives(self) -> bool:
        """Whether nothing is wrong."""
        return not any(finding.problem for finding in self.findings)


class Rehearsal:
    """`say` is told a line whenever something begins or ends."""

    def __init__(
        self,
        job: RehearsalJob,
        place: Path,
        *,
        seed: int,
        limit: float,
        tolerance: float,
        chosen: Collection[str],
        steps: int | None,
        say: Callable[[str], None],
    ) -> None:
        self._runner = RehearsalRunner(job, place)
        self._place = place
        self._seed = seed
        self._tolerance = tolerance
        self._chosen = chosen
        self._steps = steps
        self._say = say
        self._limit = limit
        self._deadline = time.monotonic() + limit

    def perform(self) -> RehearsalReport:
        """Run everything. Raises UnfitForRehearsal if the undisturbed run is no basis for more."""
        began = time.monotonic()
        base = self._undisturbed()
        history = base.history
        report = RehearsalReport(
            job=self._runner.job,
            seed=self._seed,
            steps=history.last,
            runs=[RehearsedRun(result=base)],
            findings=[],
            samples_seen=bool(history.samples(history.last)),
        )
        patience = max(30.0, 6 * base.seconds)
        for scenario in plan(facts_of(history, self._runner.job.nodes), self._seed, self._chosen):
            left = self._deadline - time.monotonic()
            if left < 1.5 * base.seconds:
                report.skipped.append(scenario.name)
                continue
            self._say(f"{scenario.name}: {scenario.title} …")
            result = self._runner.run(scenario, limit=min(left, patience), steps=self._steps)
            self._judge(report, history, result)
        report.findings = unique(
            [finding for run in report.runs for finding in run.findings]
            + setup_notes(run.result for run in report.runs)
        )
        report.seconds = time.monotonic() - began
        return report

    def _judge(self, report: RehearsalReport, base: RunHistory, result: RunResult) -> None:
        run = RehearsedRun(result=result)
        run.compared = compare(base, result.history, tolerance=self._tolerance)
        if result.scenario.name == "again":
            finding = not_repeatable(run.compared, base, result.history)
            report.repeatable = finding is None
            run.findings = [finding] if finding else []
        else:
            usable = run.compared if report.repeatable else None
            run.findings = findings_of(
                result, base, usable, shutdown=self._runner.job.shutdown, cut=self._steps is not None
            )
        report.runs.append(run)
        for finding in run.findings:
            self._say(f"  {finding.kind}: {finding.seen}")

    def _undisturbed(self) -> RunResult:
        self._say(f"{BASE.name}: {BASE.title} …")
        result = self._runner.run(BASE, limit=SHARE * self._limit, steps=self._steps)
        history = result.history
        if result.end is RunEnd.FAILED:
            why = f": {result.reason}" if result.reason else ""
            for finding in reads_too_early(history):
                raise UnfitForRehearsal(f"the undisturbed run failed: {finding.seen}; {finding.change}")
            raise UnfitForRehearsal(
                f"the undisturbed run failed{why}; its output is in {self._place / BASE.name / 'logs'}. "
                "It runs in an empty directory: --link PATH puts what it needs there"
            )
        if history.last < LEAST_STEPS:
            raise UnfitForRehearsal(
                f"only {history.last} steps of torch's optimizers were seen in {result.seconds:.0f} s, and "
                f"{LEAST_STEPS} are needed: give it more steps, or more time (--time-limit)"
            )
        if result.end is RunEnd.TIMED_OUT:
            self._steps = max(LEAST_STEPS, round(0.8 * history.last))
            self._say(f"  it would take long: every run is cut off after {self._steps} steps")
            result.end = RunEnd.FINISHED
        self._refuse_others_checkpoints(history)
        heartbeat = max(QUIET_SECONDS, QUIET_STEPS * _longest_wait(history))
        self._runner.job = msgspec.structs.replace(self._runner.job, heartbeat=heartbeat)
        return result

    def _refuse_others_checkpoints(self, history: RunHistory) -> None:
        """Runs must not find each other's checkpoints, nor harm those of the user."""
        scratch = str((self._place / BASE.name).resolve())
        for job in history.lives:
            for life in job.ranks.values():
                used = [(save.path, save.line) for save in life.saves]
                used += [(load.path, load.line) for load in life.loads if load.step == 0 and not load.error]
                for path, line in used:
                    if path and not path.startswith(scratch):
                        raise UnfitForRehearsal(
                            f"the script uses the checkpoint {path} (line {line.rpartition(':')[2]}), "
                            "which all runs would share: give it a path in {scratch}, as in --checkpoint={scratch}/c.pt"
                        )


def _longest_wait(history: RunHistory) -> float:
    waits = [
        later.made - earlier.made
        for job in history.lives
        for life in job.ranks.values()
        for earlier, later in pairwise(life.steps)
    ]
    return max(waits, default=1.0)
