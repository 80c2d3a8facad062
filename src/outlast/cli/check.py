"""`outlast check`: is this node fit, or are these, together? Nothing is run on them, and nothing is left behind."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from outlast import log
from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.agent.launcher import launch_node
from outlast.cli.endpoints import endpoint_of
from outlast.cli.flags import Parser, add_settings, given_settings
from outlast.cli.meeting import with_token
from outlast.cli.request import check_checks, nnodes_of, nproc_of
from outlast.launch import Endpoint, Launch
from outlast.settings.loading import load
from outlast.settings.settings import Settings

ENTRYPOINT = "outlast check"  # what nodes of the same check have in common, as others have their script


def main(argv: Sequence[str]) -> int:
    """Check this node, alone or with others at an endpoint; 0 if all are good, 1 if not, with a table that says why."""
    parser = Parser(prog="outlast check", description="Checks this node, or several that meet at an endpoint.")
    parser.add_argument("--nnodes", default="1", help="Number of nodes, or MIN:MAX.")
    parser.add_argument(
        "--nproc-per-node", "--nproc_per_node", default="", help="Processes per node; as many as there are GPUs, or 1."
    )
    parser.add_argument("--rdzv-endpoint", "--rdzv_endpoint", default="", help="HOST:PORT of one of the nodes.")
    parser.add_argument("--rdzv-id", "--rdzv_id", default="check", help="Name of this check.")
    add_settings(parser)
    args = parser.parse(argv)
    try:
        loaded = with_token(load(given_settings(args), os.environ, args.ft_cfg_path))
        check_checks(loaded)
        return _check(_launch(args), loaded.settings)
    except (ValueError, OSError, CoordinatorUnreachable) as error:
        print(f"outlast check: error: {error}", file=sys.stderr)
        return 1


def _launch(args: argparse.Namespace) -> Launch:
    low, high = nnodes_of(args.nnodes)
    if high > 1 and not args.rdzv_endpoint:
        raise ValueError(f"--nnodes={args.nnodes} needs --rdzv-endpoint host:port of one of your nodes")
    alone = Endpoint("127.0.0.1", 0)
    return Launch(
        job=args.rdzv_id,
        min_nodes=low,
        max_nodes=high,
        nproc=nproc_of(args.nproc_per_node or ("gpu" if _has_gpus() else "1"), os.environ),
        role="check",
        command=(sys.executable, "-u", "-c", "pass"),
        entrypoint=ENTRYPOINT,
        endpoint=endpoint_of("--rdzv-endpoint", args.rdzv_endpoint) if args.rdzv_endpoint else alone,
        host=None if args.rdzv_endpoint else True,
        check_only=True,
    )


def _has_gpus() -> bool:
    """Whether it is worth to ask torch, which takes seconds."""
    return any(re.fullmatch(r"nvidia\d+", entry.name) for entry in Path("/dev").iterdir())


def _check(launch: Launch, settings: Settings) -> int:
    log.configure(settings.log_level, "agent")
    over = asyncio.run(launch_node(launch, settings))
    if over.table:
        print(over.table)
    if not over.success:
        print(f"outlast check: error: {over.reason}", file=sys.stderr)
    return 0 if over.success else 1
