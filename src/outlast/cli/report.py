"""`outlast report`: what a run's time went into, as one HTML file or as text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from outlast.cli.flags import Parser
from outlast.ledger.summary import ledger, summarize
from outlast.reports.page import html_report
from outlast.reports.sources import recorded
from outlast.reports.text import text_report
from outlast.transport.token import last_logs


def main(argv: Sequence[str]) -> int:
    """Write the report; 1 if there is nothing to report on."""
    args = _arguments(argv)
    try:
        recording, notes = recorded([Path(each) for each in args.source] or [_newest()], job=args.job)
        books = ledger(recording.events)
        told = summarize(books, price=args.price)
        name = recording.job or "unnamed"
        if args.text:
            for note in notes:
                print(f"outlast report: {note}", file=sys.stderr)
            print(text_report(told, job=name), end="")
            return 0
        target = Path(args.output)
        target.write_text(html_report(books, told, recording.events, job=name, notes=notes), encoding="utf-8")
    except OSError as error:
        print(f"outlast report: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"outlast report: error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target}")
    return 0


def _newest() -> Path:
    """The log directory of the newest job on this machine."""
    logs = last_logs()
    if logs is None:
        raise ValueError("no job has left logs on this machine: give a log directory, or a file of events")
    print(f"outlast report: reading {logs}", file=sys.stderr)
    return logs


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="outlast report",
        description="Makes one self-contained HTML file of a run: where its time went, what interrupted it, and what "
        "that cost. Works for a run that failed, was cut short, or is still running.",
    )
    parser.add_argument(
        "source",
        nargs="*",
        help="The job's log directory, its events file (--ft-events) or its journal (--ft-journal); several, if the "
        "coordinator moved between hosts. By default, the log directory of the newest job on this machine.",
    )
    parser.add_argument("--job", default="", help="Which job, if the files tell of several; default: the newest run.")
    parser.add_argument("-o", "--output", default="report.html", help="The file to write (report.html).")
    parser.add_argument("--text", action="store_true", help="Print plain text instead.")
    parser.add_argument("--price", type=_price, default=None, help="The price of a node-hour, to show costs in money.")
    return parser.parse(argv)


def _price(text: str) -> float:
    price = float(text)
    if not 0 <= price < float("inf"):
        raise ValueError(text)
    return price
