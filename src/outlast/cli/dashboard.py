"""`outlast dashboard`: a running job in a browser."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.cli import observing
from outlast.cli.flags import Parser
from outlast.launch import Endpoint
from outlast.observe import FoundJob, Observer
from outlast.observe.finding import of_agent
from outlast.system import prctl, private
from outlast.transport.token import link_of

if TYPE_CHECKING:
    from outlast.dashboard.access import Access

PORT = 8380
TRIES, PAUSE = 300, 0.2  # for a job that is just starting, and seconds between them


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted; 1 if there is no job to show, or no way to show it."""
    args = _parser().parse(sys.argv[1:] if argv is None else argv)
    if args.agent:
        prctl.die_with(args.agent)
    if (wrong := _wrong(args)) is not None:
        print(f"outlast dashboard: error: {wrong}", file=sys.stderr)
        return observing.FAILED

    async def show(job: FoundJob) -> int:
        async with job.observer() as observer:
            if args.agent:
                await _until_there(observer)
            await _serve(args, job, observer)
        return 0

    try:
        if args.agent:
            return observing.run("dashboard", args, show, find=lambda settings: of_agent(settings, args.agent))
        return observing.run("dashboard", args, show)
    except KeyboardInterrupt:
        return 0


def _parser() -> Parser:
    parser = observing.parser("dashboard", "Shows a running job in a browser. The job does not depend on this process.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on; this machine alone if not given.")
    parser.add_argument("--port", type=int, default=PORT, help=f"Port to listen on; {PORT} if not given, 0: any.")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="Another name of this page.")
    parser.add_argument("--allow-actions", action="store_true", help="Let the page drain nodes, restart and stop.")
    parser.add_argument("--no-token", action="store_true", help="Let everybody on this machine read the page.")
    parser.add_argument(
        "--log-dir", default="", help="The job's --log-dir, for logs when the job is over; found on the job's nodes."
    )
    parser.add_argument("--agent", type=int, default=0, help=argparse.SUPPRESS)  # the `outlast run` that started it
    return parser


def _wrong(args: argparse.Namespace) -> str | None:
    """What is asked for and cannot be."""
    if not 0 <= args.port <= 65535:
        return f"--port must be 0 to 65535, not {args.port}"
    if args.no_token and not Endpoint(args.host, 1).loopback:
        return f"--no-token is for this machine alone, and {args.host} can be reached from others"
    if args.no_token and args.allow_actions:
        return "--allow-actions needs the token: remove --no-token"
    if args.log_dir and not Path(args.log_dir).is_dir():
        return f"--log-dir: there is no directory {args.log_dir}"
    try:
        import outlast.dashboard.server  # noqa: F401
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed: pip install 'outlast[dashboard]'"
    return None


async def _until_there(observer: Observer) -> None:
    for _ in range(TRIES):
        try:
            await observer.view()
            return
        except CoordinatorUnreachable:
            await asyncio.sleep(PAUSE)


async def _serve(args: argparse.Namespace, job: FoundJob, observer: Observer) -> None:
    from outlast.dashboard.access import Access
    from outlast.dashboard.server import PageSettings, listen, serve

    names = {socket.gethostname(), socket.getfqdn(), args.host, *args.allow_host}
    access = Access("" if args.no_token else _page_token(job.token), frozenset(name.lower() for name in names))
    logs = args.log_dir or next(iter(job.logs), "")
    settings = PageSettings(access=access, log_dir=Path(logs) if logs else None, actions=args.allow_actions)
    await observer.view()  # before the port is taken: no job, or a wrong token, is what to tell first
    with ExitStack() as cleanup:
        listening = cleanup.enter_context(listen(args.host, args.port))
        place = Endpoint(args.host, listening.getsockname()[1])
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn ends by them and then raises them once more: by then there is nothing left to end.
            signal.signal(number, lambda *_: None)
        await serve(observer, listening, settings, lambda: _tell(place, observer.job, access, cleanup))


def _page_token(token: str | None) -> str:
    """The page's own token: the same for each page of a job, so that links and open pages outlive its process."""
    if not token:
        return secrets.token_hex(16)
    return hmac.new(token.encode(), b"outlast dashboard", hashlib.sha256).hexdigest()[:32]


def _tell(place: Endpoint, job: str, access: Access, cleanup: ExitStack) -> None:
    """Where the page is. Its token goes to a terminal, never into a log: else it is left in a file."""
    link = f"http://{place}/"
    secret = f"{link}#token={access.token}"
    if not access.token:
        line = link
    elif os.isatty(sys.stdout.fileno()):
        line = secret
    else:
        file = link_of(place.port)
        private.write(file, f"{secret}\n".encode())
        cleanup.callback(file.unlink, missing_ok=True)
        line = f"{link} (the link with its token is in {file})"
    print(f"outlast dashboard: job {job} at {line}", flush=True)
    if not place.loopback:
        print("outlast dashboard: HTTP is not encrypted; from elsewhere, prefer `ssh -L`", file=sys.stderr)
