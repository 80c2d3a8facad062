"""`outlast rehearse`: will this script survive? Runs it on this machine with faults, and says what to change."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.cli.flags import Parser
from outlast.rehearsal.page import html_rehearsal
from outlast.rehearsal.rehearsal import Rehearsal, RehearsalReport, UnfitForRehearsal
from outlast.rehearsal.runner import RehearsalJob
from outlast.rehearsal.scenarios import QUICK, TITLES
from outlast.rehearsal.text import text_of

PROBLEMS, USAGE = 1, 2


def main(argv: Sequence[str]) -> int:
    """0: survives exactly; 1: problems; 2: it cannot be rehearsed like this."""
    parser = _parser()
    args = parser.read(argv, argparse.Namespace())
    chosen = _chosen(parser, args)
    script = Path(args.training_script)
    if not script.is_file():
        parser.error(f"there is no script {script}")
    links = tuple(Path(each).resolve() for each in args.link)
    for link in links:
        if not link.exists():
            parser.error(f"--link: there is no {link}")
    if args.keep and Path(args.keep).exists():
        parser.error(f"--keep: {args.keep} exists already; give a new directory")
    job = RehearsalJob(
        script=str(script.resolve()),
        arguments=tuple(args.training_script_args),
        nodes=args.nodes,
        nproc=args.nproc_per_node,
        shutdown=args.grace,
        links=links,
    )
    place = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="outlast-rehearsal-"))
    place.mkdir(exist_ok=True, parents=True)
    kept = bool(args.keep)
    try:
        rehearsal = Rehearsal(
            job,
            place.resolve(),
            seed=args.seed,
            limit=args.time_limit,
            tolerance=args.tolerance,
            chosen=chosen,
            steps=args.steps,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        report = rehearsal.perform()
    except UnfitForRehearsal as error:
        kept = True  # the logs say why
        print(f"outlast rehearse: error: {error}", file=sys.stderr)
        return USAGE
    finally:
        if not kept:
            shutil.rmtree(place, ignore_errors=True)
    return _tell(report, args)


def _tell(report: RehearsalReport, args: argparse.Namespace) -> int:
    try:
        Path(args.output).write_text(html_rehearsal(report), encoding="utf-8")
    except OSError as error:
        print(f"outlast rehearse: error: {args.output}: {error.strerror}", file=sys.stderr)
        return USAGE
    if args.json:
        fields = {
            "script": report.job.script,
            "survives": report.survives,
            "steps": report.steps,
            "seed": report.seed,
            "findings": report.findings,
            "runs": {run.result.scenario.name: run.result.end.value for run in report.runs},
            "skipped": report.skipped,
        }
        print(msgspec.json.encode(fields).decode())
    else:
        print(text_of(report), end="")
        print(f"wrote {args.output}")
    return 0 if report.survives else PROBLEMS


def _chosen(parser: Parser, args: argparse.Namespace) -> tuple[str, ...]:
    if args.quick:
        return QUICK
    if not args.only:
        return tuple(TITLES)
    names = tuple(name.strip() for name in args.only.split(","))
    for name in names:
        if name not in TITLES:
            parser.error(f"--only: there is no run {name!r}; there are: {', '.join(TITLES)}")
    return names


def _parser() -> Parser:
    parser = Parser(
        prog="outlast rehearse",
        description="Runs your script on this machine, undisturbed and with faults, and says whether it survives: "
        "whether it comes back, goes on where it was, and trains exactly what it would have trained. Exit code 0: it "
        "does; 1: problems were found; 2: it cannot be rehearsed like this.",
        epilog="Each run has an empty working directory of its own. {scratch} in the script's arguments becomes its "
        "path. Runs: " + "; ".join(f"{name}: {title}" for name, title in TITLES.items()) + ".",
    )
    parser.add_argument("--nodes", type=_positive, default=2, help="Nodes, all on this machine (2).")
    parser.add_argument("--nproc-per-node", type=_positive, default=1, help="Workers on each (1).")
    parser.add_argument("--seed", type=int, default=0, help="Decides who is hit and when (0).")
    parser.add_argument("--time-limit", type=float, default=600.0, help="Seconds for the whole rehearsal (600).")
    parser.add_argument("--steps", type=_positive, help="End every run after so many steps; else as time allows.")
    parser.add_argument("--quick", action="store_true", help=f"Only: {', '.join(QUICK)}.")
    parser.add_argument("--only", default="", metavar="RUN,…", help="Only these runs, after the undisturbed one.")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="Relative difference that is no problem (1e-4).")
    parser.add_argument("--grace", type=_positive, default=5, help="Seconds that a preempted node has to leave (5).")
    parser.add_argument(
        "--link", action="append", default=[], metavar="PATH", help="Link this into each run's directory."
    )
    parser.add_argument(
        "--keep", default="", metavar="DIR", help="Keep logs and records of all runs in this new directory."
    )
    parser.add_argument("--output", "-o", default="rehearsal.html", help="The page (rehearsal.html).")
    parser.add_argument("--json", action="store_true", help="For programs: findings as JSON instead of text.")
    parser.add_argument("training_script", help="The script.")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Its own arguments.")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return number
