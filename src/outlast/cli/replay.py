"""`outlast replay`: a journal run through the core once more, with what it decided and why."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from outlast.cli.flags import Parser
from outlast.core.job.decisions import digest_of, lines
from outlast.core.job.inputs import Asked, Event, Joined, Lost, Reported, Saw, Straggled
from outlast.core.job.job import Job
from outlast.journal import Began, Happened, JournalCut, JournalDamaged, Record, read
from outlast.log import one_line


def main(argv: Sequence[str]) -> int:
    """Print the decisions; 1 if they are not those of the coordinator that wrote the journal."""
    parser = Parser(
        prog="outlast replay",
        description="Runs the events of a coordinator's journal through this version's decisions, and says where they "
        "differ from what was decided then. The output of two versions can be compared with diff.",
    )
    parser.add_argument("journal", help="The file (see --ft-journal of outlast run).")
    parser.add_argument("--differences", action="store_true", help="Show only what is decided differently now.")
    args = parser.parse(argv)
    try:
        data = Path(args.journal).read_bytes()
    except OSError as error:
        print(f"outlast replay: error: {args.journal}: {error.strerror}", file=sys.stderr)
        return 1
    replay = Replay()
    try:
        for line in replay.lines(read(data)):
            if not args.differences or line.startswith("!"):
                print(one_line(line))
    except JournalDamaged as damaged:
        print(f"outlast replay: {args.journal} is {damaged}; the rest is not shown", file=sys.stderr)
    if not replay.events:
        print(f"outlast replay: error: {args.journal} holds no event: is it a journal?", file=sys.stderr)
        return 1
    print(f"{replay.events} events, {replay.different} decided differently than then", file=sys.stderr)
    return 1 if replay.different else 0


class Replay:
    """Counts while it goes."""

    def __init__(self) -> None:
        self.events = 0
        self.different = 0

    def lines(self, records: Iterable[Record]) -> Iterator[str]:
        """What happened, and indented below it what was decided. A line with ! in front: not what was decided then."""
        job, began = None, 0.0
        for record in records:
            if isinstance(record, Began):
                r, began = record, record.at
                job = Job(r.rules, r.at, term=r.term, run=r.run, memory=r.memory, charter=r.charter)
                after = "an earlier life" if record.memory is not None else "nothing"
                yield f"coordinator of term {record.term.number} ({record.term.by}) began, after {after}"
            elif isinstance(record, JournalCut):
                job = None
                yield "what follows is not recorded from its beginning, and cannot be replayed"
            elif isinstance(record, Happened) and job is not None:
                self.events += 1
                job.foretell(record.acts)
                made = job.handle(record.event, record.at)
                same = digest_of(made) == record.digest
                self.different += not same
                mark = " " if same else "!"
                yield f"{mark}{record.at - began:+10.3f} {_told(record.event)}"
                yield from (f"{mark}           {line}" for line in lines(made))


def _told(event: Event) -> str:
    if isinstance(event, Joined):
        join = event.join
        return f"{join.node} joined, with {join.nproc} workers" + (
            f", of term {join.term.number}" if join.charter else ""
        )
    if isinstance(event, Reported):
        report = event.report
        alive = "" if report.clear else ", workers alive"
        leaving = f", leaving ({report.leaving.value})" if report.leaving.value else ""
        failed = f", {len(report.failures)} failed" if report.failures else ""
        return f"{event.node} reports generation {report.generation} {report.state.value}{alive}{failed}{leaving}"
    if isinstance(event, Saw):
        return f"{event.node} says where {sum(len(each.ranks) for each in event.seen.observations)} ranks are"
    if isinstance(event, Straggled):
        return f"found: {event.straggler.sentence(event.node)}"
    if isinstance(event, Lost):
        return f"{event.node} lost: {event.why}"
    if isinstance(event, Asked):
        return f"{event.ask.who} asks: {event.ask.what}"
    return "time passed"
