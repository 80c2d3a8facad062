"""`outlast restart`: the whole job starts anew, on the same nodes, with the code that is on disk now."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
from collections.abc import Sequence

from outlast.agent.coordinator_link.ask import ask
from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.agent.coordinator_link.location import client_tls
from outlast.cli.flags import Parser, add_settings, given_settings
from outlast.cli.meeting import with_token
from outlast.cli.request import endpoint_of
from outlast.launch import Endpoint
from outlast.protocol.requests import Ask
from outlast.settings.loading import load
from outlast.settings.settings import Settings
from outlast.transport import token as tokens
from outlast.transport.token import Record


def main(argv: Sequence[str]) -> int:
    """Restart a job; it is found by its endpoint, by its name on this machine, or as the only one here."""
    parser = Parser(prog="outlast restart", description="Restarts a running job with the code that is on disk now.")
    parser.add_argument("--job", default="", help="Its name (--rdzv-id), if its coordinator is on this machine.")
    parser.add_argument("--rdzv-endpoint", "--rdzv_endpoint", default="", help="HOST:PORT of its coordinator.")
    add_settings(parser)
    args = parser.parse(argv)
    try:
        settings = with_token(load(given_settings(args), os.environ, args.ft_cfg_path)).settings
        endpoint, token = _find(args.job, args.rdzv_endpoint, settings)
        question = Ask("restart", f"{_user()} on {socket.gethostname()}", args.job)
        answer = asyncio.run(ask(endpoint, token, client_tls(settings), question))
    except (ValueError, OSError, CoordinatorUnreachable) as error:
        print(f"outlast restart: error: {error}", file=sys.stderr)
        return 1
    if not answer.done:
        print(f"outlast restart: error: {answer.text}", file=sys.stderr)
        return 1
    print(answer.text)
    return 0


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run with a number that has no name
        return f"user {os.getuid()}"


def _find(job: str, where: str, settings: Settings) -> tuple[Endpoint, str | None]:
    given = (settings.token or None) if settings.auth else ""
    if where:
        endpoint = endpoint_of("--rdzv-endpoint", where)
        return endpoint, given if given is not None else tokens.find(endpoint.port)
    here = [record for record in tokens.records() if _answers(record.endpoint)]
    fitting = [record for record in here if record.job == job] if job else here
    if len(fitting) != 1:
        raise ValueError(_which(job, here, fitting))
    record = fitting[0]
    return record.endpoint, given if given is not None else record.token


def _answers(endpoint: Endpoint) -> bool:
    """Whether anybody is there: a coordinator that was killed could not take its record back."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=1.0):
            return True
    except OSError:
        return False


def _which(job: str, here: list[Record], fitting: list[Record]) -> str:
    names = ", ".join(f"{record.job} at {record.endpoint}" for record in here)
    if not here:
        return "no job of yours has its coordinator on this machine: give --rdzv-endpoint"
    if job and not fitting:
        return f"no job {job!r} has its coordinator on this machine, only: {names}"
    return f"which one? Give --job or --rdzv-endpoint: {names}"
