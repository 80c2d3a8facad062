"""`outlast status`: does it train, on one screen; and for scripts, by the exit code."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.cli import observing
from outlast.ledger.summary import ledger, summarize
from outlast.observe import FoundJob, PastJob
from outlast.observe.health import EXIT_CODES, JobHealth, health_of
from outlast.observe.screen import Screen
from outlast.observe.status import past_fields, past_lines, status_fields, status_lines
from outlast.protocol.observers import Detail

STYLES = {JobHealth.HEALTHY: "bold green", JobHealth.DEGRADED: "bold yellow", JobHealth.OVER: "bold"}


def main(argv: Sequence[str]) -> int:
    """Print the status; 0: healthy, 3: degraded, 4: over, 1: it cannot be told, 2: wrong flags."""
    parser = observing.parser_of_past(
        "status", "Shows whether a job is training, and how fast. Exit code: 0 healthy, 3 degraded, 4 over."
    )
    parser.add_argument("--json", action="store_true", help="For programs: the view, the ledger and the health.")
    args = parser.parse(argv)

    async def show(job: FoundJob) -> int:
        async with job.observer() as observer:
            view = await observer.view(Detail.NODES if args.json else Detail.JOB)
            if view.here < view.members and not args.json:
                view = await observer.view(Detail.NODES)
            events = await observer.history()
        books = summarize(ledger(events, until=view.time)) if events else None
        if args.json:
            print(msgspec.json.encode(status_fields(view, books)).decode())
        else:
            _print(status_lines(view, books), health_of(view))
        return EXIT_CODES[health_of(view)]

    def show_past(job: PastJob) -> int:
        record = job.read()
        if args.json:
            print(msgspec.json.encode(past_fields(record)).decode())
        else:
            _print(past_lines(record), JobHealth.OVER)
        return EXIT_CODES[JobHealth.OVER] if record.ledger.over else observing.FAILED

    return observing.run("status", args, show, past=show_past)


def _print(lines: Sequence[str], health: JobHealth) -> None:
    screen = Screen()
    for number, line in enumerate(lines):
        screen.line(line, STYLES[health] if number == 0 else "")
