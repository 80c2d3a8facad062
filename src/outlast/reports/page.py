"""A run as one HTML file: no script, no request to anywhere, everything escaped; light, dark and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from outlast.events.events import HangNamed, JobEvent
from outlast.events.sentences import sentence
from outlast.events.stacks import stack_lines
from outlast.ledger.accountant import Accountant
from outlast.ledger.reading import RecordedEvent
from outlast.ledger.states import SECOND, LedgerState
from outlast.ledger.summary import LedgerSummary, cause_of
from outlast.reports.figures import duration, moment, money, percent
from outlast.reports.text import facts

# Okabe and Ito's palette, which the colour-blind can tell apart; where it ends, patterns by lightness.
COLOURS = {
    LedgerState.PRODUCTIVE: "#009e73",
    LedgerState.REDONE: "#d55e00",
    LedgerState.HUNG: "#cc79a7",
    LedgerState.DETECTING: "#e69f00",
    LedgerState.STOPPING: "#b07d12",
    LedgerState.FORMING: "#56b4e9",
    LedgerState.STARTING: "#0072b2",
    LedgerState.RESTORING: "#004c77",
    LedgerState.CHECKPOINT: "#f0e442",
    LedgerState.DATA_WAIT: "#a89f1e",
    LedgerState.SLOWED: "#8c4b76",
    LedgerState.DRAINING: "#7fd1b9",
    LedgerState.CHECKING: "#9ad4f5",
    LedgerState.PROVISIONING: "#7a7a7a",
    LedgerState.QUEUED: "#a5a5a5",
    LedgerState.SUSPENDED: "#c9c9c9",
    LedgerState.REDUCED: "#4d4d4d",
    LedgerState.SPARE: "#8f8fbf",
    LedgerState.UNKNOWN: "#262626",
}
MOST_SPANS = 2000  # that are drawn: the shortest are left out, and said
MOST_EVENTS = 2000
QUIET = frozenset({"progress", "node joined", "training began", "workers gone"})

STYLE = """
:root{color-scheme:light dark;--ink:#1a1a1a;--soft:#666;--line:#ddd;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8e8;--soft:#a0a0a0;--line:#3a3a3a;--paper:#161616}}
@media print{:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff}details{display:block}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:72rem;margin:2rem auto;
padding:0 1rem;-webkit-print-color-adjust:exact;print-color-adjust:exact}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:anywhere}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
pre{white-space:pre-wrap;font-size:.85em;margin:.3rem 0}
svg{width:100%;display:block}.soft{color:var(--soft)}tr{break-inside:avoid}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border:1px solid var(--line)}
"""


def html_report(
    books: Accountant, told: LedgerSummary, events: Sequence[RecordedEvent], *, job: str, notes: Iterable[str] = ()
) -> str:
    """The whole file."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(job)}: run report</title><style>{STYLE}</style></head><body>",
        f"<h1>Job {escape(job)}</h1>",
        *(f'<p class="soft">{escape(note)}</p>' for note in notes),
        html_table([], [[escape(name), escape(value)] for name, value in facts(told)]),
        "<h2>Where the time went</h2>",
        _bar(told.time, "job"),
        _ledger(told),
        "<h2>Timeline</h2>",
        _timeline(books),
        "<h2>Faults and planned changes</h2>",
        _faults(told),
        _repairs(told),
        "<h2>Events</h2>",
        _events(events),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _key(state: str) -> str:
    return f'<span class="key" style="background:{COLOURS[LedgerState(state)]}"></span>{escape(state)}'


def _bar(time: dict[str, float], label: str) -> str:
    """All states as one stacked bar."""
    whole = sum(time.values())
    if not whole:
        return '<p class="soft">No time has passed.</p>'
    at, rects = 0.0, []
    for state, seconds in time.items():
        width = 1000 * seconds / whole
        title = escape(f"{state}: {duration(seconds)}, {percent(seconds / whole)}")
        colour = COLOURS[LedgerState(state)]
        rects.append(
            f'<rect x="{at:.3f}" width="{width:.3f}" height="30" fill="{colour}"><title>{title}</title></rect>'
        )
        at += width
    name = escape(f"states of the {label}, as shares of its time")
    shape = 'viewBox="0 0 1000 30" preserveAspectRatio="none" height="30" role="img"'
    return f'<svg {shape} aria-label="{name}">{"".join(rects)}</svg>'


def _ledger(told: LedgerSummary) -> str:
    rows = []
    for state in dict.fromkeys([*told.time, *told.node_time]):
        seconds = told.time.get(state, 0.0)
        share = percent(seconds / told.wall) if told.wall else ""
        rows.append([_key(state), duration(seconds), share, duration(told.node_time.get(state, 0.0))])
    rows.append(["sum", duration(told.wall), "", duration(sum(told.node_time.values()))])
    return html_table(["state", "*job", "*share", "*node-time"], rows)


def _timeline(books: Accountant) -> str:
    spans = list(books.book.timeline())
    if not spans:
        return '<p class="soft">Nothing happened.</p>'
    begin, end = spans[0].begin, spans[-1].end
    scale = 1000 / (end - begin)
    drawn = sorted(spans, key=lambda span: -span.length)[:MOST_SPANS]
    rects = []
    for span in sorted(drawn, key=lambda each: each.begin):
        cause, place = cause_of(span, books.faults)
        why = f", {cause}" if cause else ""
        where = f", {place}" if place else ""
        title = escape(f"{span.state.value}{why}{where}: {duration(span.length / SECOND)}")
        x, width = (span.begin - begin) * scale, max(0.4, span.length * scale)
        colour = COLOURS[span.state]
        rects.append(
            f'<rect x="{x:.3f}" y="12" width="{width:.3f}" height="30" fill="{colour}"><title>{title}</title></rect>'
        )
    for fault in books.faults[:MOST_SPANS]:
        x, title = (fault.at - begin) * scale, escape(f"{fault.number}: {fault.text}")
        rects.append(f'<path d="M{x:.3f} 12l-4 -10h8z" fill="currentColor"><title>{title}</title></path>')
    hidden = len(spans) - len(drawn)
    note = f'<p class="soft">{hidden} shorter spans are not drawn.</p>' if hidden else ""
    ends = f'<p class="soft">{moment(begin / SECOND)} to {moment(end / SECOND)}; triangles are faults and changes.</p>'
    return (
        '<svg viewBox="0 0 1000 44" preserveAspectRatio="none" height="44" role="img" aria-label="states over time">'
        f"{''.join(rects)}</svg>{ends}{note}"
    )


def _faults(told: LedgerSummary) -> str:
    if not told.faults:
        return '<p class="soft">None.</p>'
    priced = told.price is not None
    rows = []
    for each in told.faults:
        fault = each.fault
        spent = ", ".join(f"{state} {duration(seconds)}" for state, seconds in each.states.items())
        end = "planned" if fault.planned else "recovered" if fault.recovered else "not recovered"
        row = [
            str(fault.number),
            moment(fault.at / SECOND),
            f"{escape(fault.kind)}<br><span class='soft'>{escape(fault.cause)}</span>",
            escape(fault.place),
            f"{escape(fault.text)}<br><span class='soft'>{escape(spent)}; {end}</span>",
            str(fault.steps_lost or ""),
            duration(each.seconds),
            *([money(each.cost)] if priced else []),
        ]
        rows.append(row)
    columns = ["*no.", "when", "kind, cause", "place", "what", "*steps lost", "*cost in time"]
    return html_table([*columns, *(["*cost"] if priced else [])], rows)


def _repairs(told: LedgerSummary) -> str:
    if not told.mttr:
        return ""
    rows = [
        [
            escape(cause),
            str(each.count),
            duration(each.mean_seconds),
            escape(", ".join(f"{phase} {duration(seconds)}" for phase, seconds in each.phases.items())),
        ]
        for cause, each in told.mttr.items()
    ]
    return "<h2>Mean time to repair</h2>" + html_table(["cause", "*recoveries", "*mean", "phases"], rows)


def _events(events: Sequence[RecordedEvent]) -> str:
    shown = [each for each in events if each.event.__struct_config__.tag not in QUIET]
    rows = [
        [moment(each.time), str(each.event.generation), escape(sentence(each.event)) + _stacks(each.event)]
        for each in shown[-MOST_EVENTS:]
    ]
    hidden = len(shown) - len(rows)
    note = f'<p class="soft">{hidden} earlier events are not shown.</p>' if hidden else ""
    return note + html_table(["when", "*generation", "what"], rows)


def _stacks(event: JobEvent) -> str:
    lines = stack_lines(event) if isinstance(event, HangNamed) else []
    return f"<details open><summary>stacks</summary><pre>{escape(chr(10).join(lines))}</pre></details>" if lines else ""


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """`*` before a column: numbers. Cells are HTML."""
    kinds = [' class="n"' if each.startswith("*") else "" for each in columns] or [""] * 99
    head = "".join(f"<th{kind}>{name.lstrip('*')}</th>" for kind, name in zip(kinds, columns, strict=False))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=False)) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if columns else ''}<tbody>{body}</tbody></table>"
