"""`outlast metrics`: a job's metrics for Prometheus, from a process of its own. When it dies, nobody notices."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlast.cli.flags import Parser
from outlast.metrics.export import registry, serve, text, write
from outlast.metrics.meter import Family, Meter
from outlast.metrics.tail import EventTail
from outlast.reports.sources import EVENTS

PORT = 9464


def main(argv: Sequence[str]) -> int:
    """Serve, write a file, or print once; 1 for what cannot be done."""
    args = _arguments(argv)
    tail, meter = EventTail([_file(Path(each)) for each in args.source]), Meter()

    def families(now: float) -> list[Family]:
        meter.read(tail.news())
        return meter.families(now)

    try:
        made = registry(families, lambda: {"job": meter.job, "run": meter.run})
        if args.once:
            print(text(made), end="")
        elif args.textfile:
            _keep_writing(made, Path(args.textfile), args.interval, meter)
        else:
            _keep_serving(made, args.listen)
    except OSError as error:
        print(f"outlast metrics: error: {error.filename or args.listen}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"outlast metrics: error: {error}", file=sys.stderr)
        return 1
    return 0


def _keep_writing(made: Any, path: Path, interval: float, meter: Meter) -> None:
    ended = _ended()
    while True:
        write(made, path)
        if meter.over or ended.wait(interval):
            return


def _keep_serving(made: Any, listen: str) -> None:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {listen}: give HOST:PORT, as 127.0.0.1:{PORT}")
    ended = _ended()
    server, bound = serve(made, host.strip("[]"), int(port))
    print(f"serving metrics at http://{host}:{bound}/metrics", flush=True)
    ended.wait()
    server.shutdown()
    server.server_close()


def _ended() -> threading.Event:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


def _file(path: Path) -> Path:
    """The events file, also of a log directory."""
    if not path.is_dir():
        return path
    found = sorted([*path.glob(EVENTS), *path.glob(f"*/{EVENTS}")], key=lambda each: each.stat().st_mtime)
    return found[-1] if found else path / EVENTS


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="outlast metrics",
        description="Follows a job's events and serves them as metrics for Prometheus; needs `outlast[metrics]`.",
    )
    parser.add_argument(
        "source", nargs="+", help="The events file (--ft-events) or log directory; several, of several hosts."
    )
    parser.add_argument("--listen", default=f"127.0.0.1:{PORT}", help=f"Where to serve (127.0.0.1:{PORT}).")
    parser.add_argument("--textfile", default="", help="Write this file instead, for node_exporter; ends with the job.")
    parser.add_argument("--interval", type=float, default=15.0, help="Seconds from one file to the next (15).")
    parser.add_argument("--once", action="store_true", help="Print the metrics once, and end.")
    return parser.parse(argv)
