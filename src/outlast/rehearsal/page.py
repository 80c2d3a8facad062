"""A rehearsal as one HTML file: no script, no request to anywhere, everything escaped."""

from __future__ import annotations

from html import escape
from pathlib import Path

from outlast.rehearsal.rehearsal import RehearsalReport
from outlast.rehearsal.text import (
    came_back,
    figures,
    place_of,
    sameness,
    sample_words,
    setup_lines,
    times,
    verdict,
    went_on,
)
from outlast.reports.page import STYLE, html_table

EXTRA = """.good{color:#009e73}.bad{color:#d55e00}
article{border-left:.3rem solid var(--line);padding:.1rem 1rem;margin:1rem 0}article.problem{border-color:#d55e00}
code{font-size:.9em}
"""


def html_rehearsal(report: RehearsalReport) -> str:
    """The whole file."""
    job, name = report.job, escape(Path(report.job.script).name)
    mood = "good" if report.survives else "bad"
    command = escape(" ".join([Path(job.script).name, *job.arguments]))
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{name}: rehearsal</title><style>{STYLE}{EXTRA}</style></head><body>",
        f'<h1>Rehearsal of {name}: <span class="{mood}">{escape(verdict(report))}</span></h1>',
        f'<p class="soft"><code>{command}</code>: {escape(figures(report))}</p>',
        *(f'<p class="soft">Not run, out of time: {escape(each)}</p>' for each in report.skipped),
        "<h2>Runs</h2>",
        _runs(report),
        "<h2>What to change</h2>",
        _findings(report),
        "<h2>The script's set-up in the last restart</h2>",
        _setup(report),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _runs(report: RehearsalReport) -> str:
    rows = []
    for run in report.runs:
        scenario = run.result.scenario
        cells = [came_back(run), went_on(run), sameness(run), sample_words(run, report.samples_seen), times(run)]
        title = f"{escape(scenario.name)}<br><span class='soft'>{escape(scenario.title)}</span>"
        rows.append([title, *map(escape, cells), f"{run.result.seconds:.1f} s"])
    columns = ["run", "came back", "went on", "same as undisturbed", "samples", "to the next step", "*took"]
    return html_table(columns, rows)


def _findings(report: RehearsalReport) -> str:
    if not report.findings:
        return "<p>Nothing.</p>"
    return "\n".join(
        f'<article class="{"problem" if each.problem else "note"}"><h3>{escape(each.kind)}</h3>'
        f"<p>{escape(each.seen)}</p>"
        + (f"<pre>{escape(place_of(each.line))}</pre>" if each.line else "")
        + f"<p><b>Change:</b> {escape(each.change)}</p></article>"
        for each in report.findings
    )


def _setup(report: RehearsalReport) -> str:
    rows = [
        [f"{seconds:.2f} s", f"<code>{escape(place_of(line) if line else 'Python itself')}</code>"]
        for line, seconds in setup_lines(report)
    ]
    return html_table(["*seconds", "line"], rows) if rows else '<p class="soft">No restart was seen.</p>'
