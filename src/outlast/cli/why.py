"""`outlast why`: the last fault in one paragraph."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.cli import observing
from outlast.ledger.accountant import TimedEvent
from outlast.ledger.summary import LedgerSummary, ledger, summarize
from outlast.observe import FoundJob, PastJob
from outlast.observe.faults import why_fields, why_paragraph, why_stacks
from outlast.observe.past import NO_END
from outlast.observe.screen import Screen


def main(argv: Sequence[str]) -> int:
    """Say what went wrong last: what, where, by which evidence, what was done about it, and what it cost."""
    parser = observing.parser_of_past(
        "why", "Explains the last fault of a job: what happened, where, the evidence, and what it cost."
    )
    parser.add_argument(
        "--json", action="store_true", help="For programs: the fault and its cost; null if there was none."
    )
    parser.add_argument(
        "--stacks", action="store_true", help="After a hang, also print the stacks of the ranks, the culprit first."
    )
    args = parser.parse(argv)

    def tell(name: str, events: Sequence[TimedEvent], books: LedgerSummary, *, past: bool = False) -> int:
        if args.json:
            print(msgspec.json.encode(why_fields(events, books)).decode())
            return 0
        screen = Screen()
        unfinished = "" if books.over or not past else f"; {NO_END}"
        screen.line(why_paragraph(events, books) or f"job {name}: nothing has failed{unfinished}")
        if args.stacks:
            for line in why_stacks(events, books) or ["the last fault was not a hang: there are no stacks"]:
                screen.line(line)
        return 0

    async def ask(job: FoundJob) -> int:
        async with job.observer() as observer:
            view = await observer.view()
            events = await observer.history()
        return tell(view.job, events, summarize(ledger(events, until=view.time)))

    def read(job: PastJob) -> int:
        record = job.read()
        observing.note("why", record)
        return tell(record.job, record.events, record.ledger, past=True)

    return observing.run("why", args, ask, past=read)
