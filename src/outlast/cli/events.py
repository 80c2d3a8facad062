"""`outlast events`: what was decided in a job, and why, from its beginning or as it happens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.cli import observing
from outlast.events.events import Level, level_of
from outlast.events.numbered import NumberedEvent, json_fields
from outlast.events.sentences import sentence
from outlast.observe import EventGap, FoundJob
from outlast.observe.screen import Screen
from outlast.observe.words import moment

INTERRUPTED = 130  # as a shell has it: Ctrl-C is how one stops to follow
STYLES = {Level.WARNING: "yellow", Level.ERROR: "bold red"}


def main(argv: Sequence[str]) -> int:
    """Print the events; with -f until the job is over."""
    parser = observing.parser("events", "Prints the events of a job.")
    parser.add_argument("-f", "--follow", action="store_true", help="Go on as they come, until the job is over.")
    parser.add_argument("--json", action="store_true", help="A line of JSON for each, as --ft-events has it.")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="Only events after this number.")
    args = parser.parse(argv)
    if args.after < 0:
        parser.error("--after is the number of an event: 0 or more")

    async def show(job: FoundJob) -> int:
        screen = Screen()
        async with job.observer() as observer:
            async for told in observer.events(after=args.after, follow=args.follow):
                if args.json:
                    print(_json(told, observer.job, observer.run), flush=args.follow)
                elif isinstance(told, EventGap):
                    screen.line(f"… events after {told.after} are lost", "dim")
                elif text := sentence(told.event):
                    screen.line(f"{moment(told.time)} {told.number:>8} {text}", STYLES.get(level_of(told.event), ""))
        return 0

    try:
        return observing.run("events", args, show)
    except KeyboardInterrupt:
        return INTERRUPTED


def _json(told: NumberedEvent | EventGap, job: str, run: str) -> str:
    fields = {"gap": told.after, "run": told.run} if isinstance(told, EventGap) else json_fields(told, job=job, run=run)
    return msgspec.json.encode(fields).decode()
