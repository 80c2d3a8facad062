"""A rehearsal as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from linecache import getline
from pathlib import Path

from outlast.rehearsal.findings import Flaw
from outlast.rehearsal.rehearsal import RehearsalReport, RehearsedRun
from outlast.rehearsal.results import RehearsedRecovery, RunEnd, recoveries

SHOWN = 5  # lines of set-up


def text_of(report: RehearsalReport) -> str:
    """The whole."""
    return "\n".join([*_head(report), "", *_table(report), "", *_findings(report), *_setup(report)]) + "\n"


def verdict(report: RehearsalReport) -> str:
    """One line."""
    problems = [finding for finding in report.findings if finding.problem]
    if problems:
        return f"{len(problems)} problem{'s' if len(problems) > 1 else ''} found"
    return "survives, and trains exactly what it would have trained undisturbed"


def figures(report: RehearsalReport) -> str:
    """How much was tried."""
    job, runs = report.job, len(report.runs)
    size = f"{report.steps} steps on {job.nodes} nodes of {job.nproc}"
    return f"{size}, {runs} runs, seed {report.seed}, {report.seconds:.0f} s"


def came_back(run: RehearsedRun) -> str:
    """Whether training went on."""
    if run.result.end is not RunEnd.FINISHED:
        return f"no: {run.result.end.value}"
    return "yes"


def went_on(run: RehearsedRun) -> str:
    """From where, after each fault."""
    return ", ".join(_went_on(each) for each in recoveries(run.result.history)) or "-"


def _went_on(each: RehearsedRecovery) -> str:
    if each.total is None:
        return f"hit at {each.at}, never again"
    if each.start is None:
        return f"hit at {each.at}, on from an unknown step"
    return f"hit at {each.at}, on from {each.start}"


def sameness(run: RehearsedRun) -> str:
    """How this run compares with the undisturbed one."""
    compared = run.compared
    if compared is None or run.result.end is not RunEnd.FINISHED:
        return "-"
    if compared.same == "unknown":
        return "cannot be compared"
    if compared.same == "bits":
        return "to the bit"
    parting = compared.parting
    assert parting is not None
    if compared.worlds_differ:
        return f"other world size; losses within {compared.loss_difference:.1%}"
    if compared.same == "tolerance":
        return f"within {max(compared.loss_difference, compared.weight_difference):.1g}, from step {parting.step} on"
    return f"no: {parting.what} parts at step {parting.step}"


def sample_words(run: RehearsedRun, seen: bool) -> str:
    """Samples that count too often, or never."""
    if run.compared is None or run.result.end is not RunEnd.FINISHED:
        return "-"
    if not seen:
        return "not seen"
    samples = run.compared.samples
    return f"{samples.more} twice, {samples.fewer} never" if samples.more or samples.fewer else "exact"


def times(run: RehearsedRun) -> str:
    """Seconds from each fault to the next step, and the script's part of them."""
    found = [each for each in recoveries(run.result.history) if each.total is not None]
    return ", ".join(f"{each.total:.1f} s ({each.setup:.1f} script)" for each in found) or "-"


def place_of(line: str) -> str:
    """`train.py:12: the text of the line`."""
    path, _, number = line.rpartition(":")
    if not number.isdecimal():
        return line
    text = getline(path, int(number)).strip()
    return f"{Path(path).name}:{number}" + (f": {text}" if text else "")


def _head(report: RehearsalReport) -> Iterator[str]:
    script = Path(report.job.script).name
    yield f"rehearsal of {script}: {verdict(report)}"
    yield f"  {figures(report)}"
    for name in report.skipped:
        yield f"  not run, out of time: {name}"


def _table(report: RehearsalReport) -> Iterator[str]:
    rows = [("run", "came back", "went on", "same as undisturbed", "samples", "to the next step")]
    for run in report.runs:
        name = run.result.scenario.name
        if name == "undisturbed":
            rows.append((name, came_back(run), "-", "-", "-", "-"))
        else:
            seen = sample_words(run, report.samples_seen)
            rows.append((name, came_back(run), went_on(run), sameness(run), seen, times(run)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _findings(report: RehearsalReport) -> Iterator[str]:
    for number, finding in enumerate(report.findings, 1):
        yield from finding_lines(finding, number)
        yield ""


def finding_lines(finding: Flaw, number: int) -> Iterator[str]:
    """One finding."""
    yield f"{number}. {'problem' if finding.problem else 'note'}: {finding.kind}"
    yield f"   {finding.seen}"
    if finding.line:
        yield f"   at {place_of(finding.line)}"
    yield f"   change: {finding.change}"


def setup_lines(report: RehearsalReport) -> list[tuple[str, float]]:
    """Where the script's own part of the last restart went, line by line."""
    all_of = [each for run in report.runs for each in recoveries(run.result.history) if each.lines]
    return list(all_of[-1].lines[:SHOWN]) if all_of else []


def _setup(report: RehearsalReport) -> Iterator[str]:
    lines = setup_lines(report)
    if lines:
        yield "the script's set-up in the last restart, by line:"
    for line, seconds in lines:
        yield f"  {seconds:6.2f} s  {place_of(line) if line else 'Python itself'}"
