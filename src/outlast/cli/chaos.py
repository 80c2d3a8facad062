"""`outlast chaos`: hurts a running job on purpose, and says how it answered."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.chaos.conductor import ChaosConductor
from outlast.chaos.faults import KINDS, ChaosAnswer, ChaosRequest
from outlast.chaos.outcome import ChaosOutcome
from outlast.chaos.plans import ChaosPlan, PlannedChaos, read_plan
from outlast.cli import observing
from outlast.cli.flags import Parser
from outlast.observe import FoundJob

PLAN = "--plan"


def main(argv: Sequence[str]) -> int:
    """0: the job answered every fault as it should; 1: it did not, or a fault could not be done."""
    parser = _parser()
    args = parser.parse(argv)
    plan = _plan(parser, args)
    return observing.run("chaos", args, lambda job: _perform(job, plan, args))


def _plan(parser: Parser, args: argparse.Namespace) -> ChaosPlan:
    try:
        if args.plan:
            if args.fault:
                parser.error("give a fault, or --plan, not both")
            return read_plan(Path(args.plan), args.seed)
        if not args.fault:
            parser.error(f"no fault; there are: {', '.join(KINDS)}")
        request = ChaosRequest(
            fault=args.fault,
            rank=args.rank,
            node=args.node,
            kind=args.kind,
            value=args.value,
            seconds=args.seconds,
            path=args.path,
        ).checked()
    except ValueError as error:
        parser.error(str(error))
    return ChaosPlan(args.seed or 0, (PlannedChaos(0.0, request),))


async def _perform(job: FoundJob, plan: ChaosPlan, args: argparse.Namespace) -> int:
    draw = random.Random(plan.seed)

    def say(line: str) -> None:
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)

    conductor = ChaosConductor(job, right=args.chaos_token, wait=args.wait, say=say)
    well = True
    for planned in plan.faults:
        await asyncio.sleep(planned.after)
        outcome = await conductor.perform(planned.request, draw)
        if args.json:
            print(msgspec.json.encode(outcome).decode(), flush=True)
        else:
            print("\n".join(outcome.lines), flush=True)
        well = well and answered(planned.request, outcome)
        if outcome.over:
            break
    return 0 if well else observing.FAILED


def answered(request: ChaosRequest, outcome: ChaosOutcome) -> bool:
    """Whether the job did what it should have done about it."""
    kind = request.about.answer
    if kind is ChaosAnswer.TRAINS_AGAIN:
        return outcome.training is not None
    if kind is ChaosAnswer.TAKES_OVER:
        return outcome.noticed is not None
    return not outcome.over


def _parser() -> Parser:
    faults = "; ".join(f"{name}: {kind.does}{f' ({kind.needs})' if kind.needs else ''}" for name, kind in KINDS.items())
    parser = observing.parser(
        "chaos",
        "Makes a fault happen in a running job that was started with --allow-chaos, waits for the job's answer, and "
        f"prints it. Faults: {faults}.",
    )
    parser.add_argument("fault", nargs="?", default="", help="One of these.")
    parser.add_argument("--rank", type=int, help="The rank to hit; else one by --seed.")
    parser.add_argument("--node", default="", help="The node to hit, by its name; else one by --seed.")
    parser.add_argument(
        "--kind", default="", help="Of hang: sleep, lock, collective, stopped; cut-network: both, in, out."
    )
    parser.add_argument("--value", type=float, help="An exit code, a share from 0 to 1, seconds of delay: see docs.")
    parser.add_argument("--seconds", type=float, help="For how long, where it ends by itself.")
    parser.add_argument("--path", default="", help="A directory on the node, of checkpoints or of the disk to fill.")
    parser.add_argument("--wait", type=float, default=120.0, help="Seconds to wait for the job's answer (120).")
    parser.add_argument("--seed", type=int, help="Decides whom it hits, and when (0, or the plan's).")
    parser.add_argument(PLAN, default="", metavar="FILE", help="A YAML file with several faults, in order.")
    parser.add_argument("--chaos-token", default="", help="The job's chaos token, for who has not the job's own.")
    parser.add_argument("--json", action="store_true", help="For programs: one JSON line per fault.")
    return parser
