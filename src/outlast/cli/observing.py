"""What the commands that watch a job have in common: how it is found, and how errors are told."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.cli.endpoints import endpoint_of
from outlast.cli.flags import Parser, add_settings, given_settings
from outlast.cli.meeting import with_token
from outlast.observe import FoundJob, ObserverRefused, locate
from outlast.settings.loading import load
from outlast.settings.settings import Settings
from outlast.transport import token as tokens

FAILED = 1  # no job there, a wrong token, refused: it cannot be told, or was not done


def parser(name: str, description: str) -> Parser:
    """The flags by which a job is found."""
    made = Parser(prog=f"outlast {name}", description=description)
    made.add_argument("--job", default="", help="Its name (--rdzv-id), if several jobs of yours run on this machine.")
    made.add_argument(
        "--endpoint",
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        default="",
        metavar="HOST:PORT",
        help="Any node of the job, with the port of its --rdzv-endpoint; not needed on its own nodes.",
    )
    made.add_argument("--slurm", default="", metavar="JOB", help="The id of a Slurm job that `outlast submit` started.")
    made.add_argument("--k8s", default="", metavar="[NAMESPACE/]JOB", help="An ElasticJob on Kubernetes.")
    add_settings(made)
    return made


def found(args: argparse.Namespace) -> FoundJob:
    """The job that the flags mean. Raises ValueError, in one line."""
    if args.slurm:
        return _in_slurm(args.slurm, settings_of(args))
    if args.k8s:
        from outlast.k8s.finding import found_in_cluster  # Kubernetes is an extra

        return found_in_cluster(args.k8s, settings_of(args))
    endpoint = endpoint_of("--endpoint", args.endpoint) if args.endpoint else None
    return locate(settings_of(args), job=args.job, endpoint=endpoint)


def settings_of(args: argparse.Namespace) -> Settings:
    """The settings that the flags and the environment say."""
    return with_token(load(given_settings(args), os.environ, args.ft_cfg_path)).settings


def slurm_state(job: str) -> Path:
    """Where the batch script of a Slurm job keeps its state, in the home directory; of a relay, its first job's."""
    return (Path.home() / ".outlast" / "slurm" / job).resolve()


def _in_slurm(job: str, settings: Settings) -> FoundJob:
    """A job by what its batch script has left in the home directory, which login and compute nodes share."""
    state = slurm_state(job)
    try:
        lines = (state / "places").read_text().split()
    except OSError:
        raise ValueError(
            f"no running Slurm job {job!r} has its state in {state.parent}; with slurm.directory in its job file, give "
            "--endpoint and --ft-token-file"
        ) from None
    token = settings.token or (tokens.from_file(state / "token", create=False) if settings.auth else "")
    return FoundJob("", tuple(endpoint_of("--slurm", line) for line in lines), token, settings)


def run(
    name: str,
    args: argparse.Namespace,
    work: Callable[[FoundJob], Coroutine[None, None, int]],
    *,
    find: Callable[[Settings], FoundJob] | None = None,
) -> int:
    """Do something with the job; the exit code of that, or `FAILED` and one line. `find`: how, if not by the flags."""
    try:
        return asyncio.run(work(found(args) if find is None else find(settings_of(args))))
    except (ValueError, OSError, CoordinatorUnreachable, ObserverRefused) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"outlast {name}: error: {error}", file=sys.stderr)
        return FAILED
