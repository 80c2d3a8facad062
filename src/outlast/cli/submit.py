"""`outlast submit`: runs what a job file describes, here or on a platform."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from outlast.cli.flags import Parser
from outlast.jobs.loading import BadJobFile, read
from outlast.jobs.spec import PLATFORMS, JobSpec
from outlast.providers.local import LocalProvider, free_port
from outlast.providers.provider import JobProvider
from outlast.providers.ray import RayProvider
from outlast.providers.slurm import SlurmProvider
from outlast.settings.values import nearest


def main(argv: Sequence[str]) -> int:
    """Submit a job file; with --dry-run, print exactly what would be submitted."""
    parser = Parser(prog="outlast submit", description="Runs the job that a file describes.")
    parser.add_argument("file", help="The job file, as job.yaml.")
    parser.add_argument("--on", default=None, help=f"Where: {', '.join(PLATFORMS)}. By default what the file says.")
    parser.add_argument(
        "--dry-run", "--dry_run", action="store_true", help="Print what would be submitted, and submit nothing."
    )
    parser.add_argument(
        "--relay", action="store_true", help="Slurm: submit a successor that takes over before the time limit."
    )
    parser.add_argument("--join", default="", metavar="JOB", help="Slurm: add nodes to this running job.")
    parser.add_argument("--nodes", type=int, default=None, help="With --join: how many nodes; 1.")
    args = parser.parse(argv)
    try:
        if args.on is not None and args.on not in PLATFORMS:
            hint = nearest(args.on, PLATFORMS, otherwise=f"; there are: {', '.join(PLATFORMS)}")
            raise ValueError(f"--on={args.on}: no such platform{hint}")
        spec = _with_relay(args, read(args.file))
        provider = _provider(args.on or spec.on, *_joining(args, args.on or spec.on))
        request = provider.plan(spec)
        if args.dry_run:
            print(request.text())
            return 0
        return provider.submit(request)
    except BadJobFile as bad:
        for mistake in bad.mistakes:
            print(f"outlast submit: error: {mistake}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"outlast submit: error: {error}", file=sys.stderr)
        return 1


def _with_relay(args: argparse.Namespace, spec: JobSpec) -> JobSpec:
    if not args.relay:
        return spec
    if (args.on or spec.on) != "slurm" or args.join:
        raise ValueError("--relay is for jobs on Slurm, and not for nodes that join one")
    return replace(spec, slurm=replace(spec.slurm, relay=True))


def _joining(args: argparse.Namespace, platform: str) -> tuple[str, int]:
    """Which running job the nodes join, and how many they are."""
    if args.join and platform != "slurm":
        raise ValueError(f"--join is for Slurm jobs, not for {platform}")
    if args.join and not re.fullmatch(r"[0-9]+(_[0-9]+)?", args.join):
        raise ValueError(f"--join={args.join}: give the id of a Slurm job, as 123 or 123_4")
    if args.nodes is not None and (not args.join or args.nodes < 1):
        raise ValueError("--nodes is how many nodes --join adds, 1 or more; else the job file says it")
    return args.join, args.nodes or 1


def _program() -> str:
    """The `outlast` of this environment, by its path: nodes of a cluster see the same files."""
    beside = Path(sys.executable).with_name("outlast")
    return shlex.quote(str(beside)) if beside.exists() else "outlast"


def _provider(platform: str, join: str, more: int) -> JobProvider[Any]:
    if platform == "local":
        return LocalProvider(free_port())
    if platform == "slurm":
        return SlurmProvider(_program(), join=join, more=more)
    if platform == "ray":
        return RayProvider()
    raise ValueError("on Kubernetes a job is an ElasticJob: outlast k8s submit (docs/kubernetes.md)")
