"""`outlast events`: what was decided in a job, and why, from its beginning or as it happens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.cli import observing
from outlast.events.events import Level, level_of
from outlast.events.numbered import NumberedEvent, json_fields
from outlast.events.sentences import sentence
from outlast.observe import EventGap, FoundJob, PastJob
from outlast.observe.screen import Screen
from outlast.observe.words import moment

STYLES = {Level.WARNING: "yellow", Level.ERROR: "bold red"}


def main(argv: Sequence[str]) -> int:
    """Print the events; with -f until the job is over."""
    parser = observing.parser_of_past("events", "Prints what happened in a job: every event, with time and number.")
    parser.add_argument("-f", "--follow", action="store_true", help="Wait for new events until the job is over.")
    parser.add_argument("--json", action="store_true", help="One JSON object per line, as in --ft-events.")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="Only events after this number.")
    args = parser.parse(argv)
    if args.after < 0:
        parser.error("--after is the number of an event: 0 or more")
    if args.follow and args.log_dir:
        parser.error("--follow is for a running job: remove --log-dir")
    screen = Screen()

    def line(told: NumberedEvent | EventGap, job: str, run: str) -> None:
        if args.json:
            print(_json(told, job, run), flush=args.follow)
        elif isinstance(told, EventGap):
            screen.line(f"… events after {told.after} are lost", "dim")
        elif text := sentence(told.event):
            screen.line(f"{moment(told.time)} {told.number:>8} {text}", STYLES.get(level_of(told.event), ""))

    async def show(job: FoundJob) -> int:
        async with job.observer() as observer:
            async for told in observer.events(after=args.after, follow=args.follow):
                line(told, observer.job, observer.run)
        return 0

    def show_past(job: PastJob) -> int:
        record = job.read()
        observing.note("events", record)
        for told in record.events:
            if told.number > args.after:
                line(told, record.job, record.run)
        return 0

    try:
        return observing.run("events", args, show, past=show_past)
    except KeyboardInterrupt:
        return observing.INTERRUPTED


def _json(told: NumberedEvent | EventGap, job: str, run: str) -> str:
    fields = {"gap": told.after, "run": told.run} if isinstance(told, EventGap) else json_fields(told, job=job, run=run)
    return msgspec.json.encode(fields).decode()
