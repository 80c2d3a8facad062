"""`outlast logs`: what the ranks of a job have printed, on all nodes, merged by time."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

import msgspec

from outlast.cli import observing
from outlast.cli.flags import Parser
from outlast.ledger.accountant import TimedEvent
from outlast.ledger.summary import ledger, summarize
from outlast.logs.directory import logs_below
from outlast.observe import FoundJob, PastJob
from outlast.observe.log_sources import DirectoryLogSource, JobLogSource
from outlast.observe.logs import LogMerger, LogSource, MergedLine
from outlast.observe.screen import Screen
from outlast.protocol.logs import FindStreams

LINES = 100  # of each stream, unless more is asked for
BEFORE = 10.0  # seconds before a fault from which on lines are shown: what a rank printed last, it printed before it
NS = 1e9


def main(argv: Sequence[str]) -> int:
    """Print the lines; with -f until the job is over."""
    parser = _parser()
    args = parser.parse(argv)
    args.log_dir += args.directory
    if args.log_dir and args.follow:
        parser.error("--follow is for a running job: remove the log directory")
    if args.lines < 1 or (args.rank is not None and args.rank < 0):
        parser.error("--lines is 1 or more, --rank is 0 or more")
    try:
        return observing.run("logs", args, lambda job: _ask(job, args), past=lambda job: _read(job, args))
    except KeyboardInterrupt:
        return observing.INTERRUPTED


def _parser() -> Parser:
    parser = observing.parser_of_past("logs", "Prints the logs of a job's ranks, merged by time.")
    parser.add_argument("directory", nargs="*", help="The same as --log-dir.")
    parser.add_argument("-f", "--follow", action="store_true", help="Wait for new lines until the job is over.")
    parser.add_argument("--rank", type=int, default=None, metavar="R", help="Only this rank.")
    parser.add_argument("--node", default="", metavar="N", help="Only this node.")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "-n", "--lines", type=int, default=LINES, metavar="N", help=f"The last N lines of each stream ({LINES})."
    )
    start.add_argument("--all", action="store_true", help="All lines, from the first generation on.")
    start.add_argument("--since-fault", action="store_true", help="Lines from 10 s before the last fault.")
    parser.add_argument("--json", action="store_true", help="One JSON object per line.")
    return parser


async def _ask(job: FoundJob, args: argparse.Namespace) -> int:
    async with job.observer() as observer:
        source = JobLogSource(observer, only=args.node, rank=args.rank, follow=args.follow)
        since = _fault_of(await observer.history()) if args.since_fault else 0.0
        code = await _show(source, args, since)
    if source.left_out:
        what = f"{source.left_out:,} more nodes were not read, as the job is large: see --rank and --node"
        print(f"outlast logs: {what}", file=sys.stderr)
    return code


def _read(job: PastJob, args: argparse.Namespace) -> int:
    args.follow = False  # nothing more will come
    source = DirectoryLogSource([logs for path in job.paths for logs in logs_below(path, job.job)], only=args.node)
    since = _fault_of(job.read().events) if args.since_fault else 0.0
    return asyncio.run(_show(source, args, since))


async def _show(source: LogSource, args: argparse.Namespace, since: float) -> int:
    wanted = FindStreams(args.rank, since=since, lines=None if args.all or since else args.lines)
    merger = LogMerger(source, wanted)
    screen, shown = Screen(), 0
    async for line in merger.lines(follow=args.follow):
        shown += 1
        if args.json:
            print(_json(line), flush=args.follow)
        else:
            screen.line(_text(line), "yellow" if line.error else "")
    if not shown and merger.problems:
        name, problem = min(merger.problems.items())
        print(f"outlast logs: error: node {name} has no logs: {problem}", file=sys.stderr)
        return observing.FAILED
    if not shown:
        print("outlast logs: there are no lines", file=sys.stderr)
    return 0


def _fault_of(events: Sequence[TimedEvent]) -> float:
    faults = [each.fault for each in summarize(ledger(events)).faults if not each.fault.planned] if events else []
    if not faults:
        raise ValueError("nothing has failed: remove --since-fault")
    return faults[-1].at / NS - BEFORE


def _text(line: MergedLine) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(line.time))
    hundredths = int(line.time * 100) % 100
    who = f"rank{line.rank} err" if line.error else f"rank{line.rank}"
    return f"{when}.{hundredths:02} [{who}] {line.text.expandtabs()}{' …' if line.cut else ''}"


def _json(line: MergedLine) -> str:
    return msgspec.json.encode(
        {
            "time": line.time,
            "node": line.node,
            "rank": line.rank,
            "generation": line.generation,
            "stream": "stderr" if line.error else "stdout",
            "text": line.text,
            "cut": line.cut,
        }
    ).decode()
