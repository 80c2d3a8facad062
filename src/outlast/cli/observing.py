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
from outlast.ledger.reading import EVENTS
from outlast.observe import FoundJob, NoJobHere, ObserverRefused, PastJob, locate
from outlast.observe.past import JobRecord
from outlast.providers.slurm_queue import queue_state
from outlast.settings.loading import load
from outlast.settings.settings import Settings
from outlast.transport import token as tokens

FAILED = 1  # no job there, a wrong token, refused: it cannot be told, or was not done
# Settings that it takes to connect: of all others, only the job needs to know.
CONNECTION = ("auth", "token", "token_file", "tls", "tls_cert", "tls_key", "tls_ca")
INTERRUPTED = 130  # as a shell has it: Ctrl-C is how one stops to follow


def parser(name: str, description: str) -> Parser:
    """The flags by which a job is found."""
    made = Parser(prog=f"outlast {name}", description=description)
    made.add_argument("--job", default="", help="Name of the job (--rdzv-id), if several of yours run on this machine.")
    made.add_argument(
        "--endpoint",
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        default="",
        metavar="HOST:PORT",
        help="Any node of the job, with the port of its --rdzv-endpoint. Not needed on the job's nodes.",
    )
    made.add_argument("--slurm", default="", metavar="JOB", help="ID of a Slurm job that `outlast submit` started.")
    made.add_argument("--k8s", default="", metavar="[NAMESPACE/]JOB", help="An ElasticJob on Kubernetes.")
    add_settings(made, CONNECTION)
    return made


def parser_of_past(name: str, description: str) -> Parser:
    """The same for commands that can also read what a job has left."""
    made = parser(name, description)
    made.add_argument(
        "--log-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="Read the --log-dir of a job that is over. By default, the newest one of this machine.",
    )
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
        token = settings.token or (_token_in(state) if settings.auth else "")
    except OSError:
        queued = queue_state(job)
        if queued:
            raise ValueError(f"Slurm job {job} does not run: it is {queued}") from None
        raise NoJobHere(
            f"no running Slurm job {job!r} has its state in {state.parent}; with slurm.directory in its job file, give "
            "--endpoint and --ft-token-file"
        ) from None
    return FoundJob("", tuple(endpoint_of("--slurm", line) for line in lines), token, settings)


def _token_in(state: Path) -> str:
    """The token of a Slurm job. Raises FileNotFoundError when the job is over."""
    (state / "token").stat()
    return tokens.from_file(state / "token", create=False)


def run(
    name: str,
    args: argparse.Namespace,
    work: Callable[[FoundJob], Coroutine[None, None, int]],
    *,
    find: Callable[[Settings], FoundJob] | None = None,
    past: Callable[[PastJob], int] | None = None,
) -> int:
    """Do something with the job; the exit code of that, or `FAILED` and one line.

    `find`: how it is found, if not by the flags. `past`: what to do with a job that is over.
    """
    try:
        if past is not None and args.log_dir:
            return past(PastJob(tuple(map(Path, args.log_dir)), args.job))
        try:
            job = found(args) if find is None else find(settings_of(args))
        except NoJobHere as error:
            if past is None:
                raise
            return past(_newest(name, args, str(error)))
        return asyncio.run(work(job))
    except (ValueError, OSError, CoordinatorUnreachable, ObserverRefused) as error:
        if isinstance(error, BrokenPipeError):
            raise
        queued = queue_state(args.slurm) if args.slurm and isinstance(error, CoordinatorUnreachable) else ""
        which = f"Slurm job {args.slurm} is {queued}: " if queued else ""
        print(f"outlast {name}: error: {which}{error}", file=sys.stderr)
        return FAILED


def note(name: str, record: JobRecord) -> None:
    """Say what is wrong with the record of a job that is over."""
    for each in record.notes:
        print(f"outlast {name}: {each}", file=sys.stderr)


def _newest(name: str, args: argparse.Namespace, why_not: str) -> PastJob:
    """The newest job that has left something on this machine; of Slurm, the job with that id."""
    if args.slurm:
        left = slurm_state(args.slurm) / EVENTS
        if not left.exists():
            raise ValueError(why_not)
        print(f"outlast {name}: Slurm job {args.slurm} is over", file=sys.stderr)
        return PastJob((left,))
    logs = tokens.last_logs()
    if logs is None or (args.job and not PastJob((logs,)).has(args.job)):
        raise ValueError(f"{why_not}, or --log-dir of a job that is over")
    print(f"outlast {name}: no running job; this one left its logs in {logs}", file=sys.stderr)
    return PastJob((logs,), args.job)
