"""`outlast diagnose`: what the logs of a job say about its end, whoever launched it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.cli.flags import Parser
from outlast.diagnosis.cause import diagnose
from outlast.logdir import NothingFailed, read, verdict_on
from outlast.signatures import catalogue


def main(argv: Sequence[str]) -> int:
    """Print the verdict; 1 if there is none."""
    parser = Parser(
        prog="outlast diagnose",
        description="Says what failed first in a job, and why, from its log directory: torchrun's or Outlast's "
        "(--log-dir with --redirects or --tee). Of several nodes, give a directory that holds the logs of all.",
    )
    parser.add_argument("logdir", help="The directory that was given as --log-dir, or one in it.")
    parser.add_argument("--json", action="store_true", help="The verdict as JSON.")
    parser.add_argument("--signatures", default="", help="YAML file with signatures of your own.")
    args = parser.parse(argv)
    try:
        known = catalogue(args.signatures)
        logs = read(Path(args.logdir))
        verdict = logs.verdict or verdict_on(logs, diagnose(logs.evidence, known))
    except (ValueError, NothingFailed) as error:
        print(f"outlast diagnose: error: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.format(msgspec.json.encode(verdict)).decode() if args.json else verdict.text())
    return 0
