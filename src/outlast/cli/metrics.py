"""`outlast metrics`: a job's metrics for Prometheus, from a process of its own. When it dies, nobody notices."""

from __future__ import annotations

import argparse
import asyncio
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.cli import observing
from outlast.events.numbered import NumberedEvent
from outlast.ledger.reading import EVENTS, RecordedEvent
from outlast.metrics.export import registry, serve, text, write
from outlast.metrics.meter import Family, Meter
from outlast.metrics.tail import EventTail
from outlast.observe import FoundJob, ObserverRefused

PORT = 9464


def main(argv: Sequence[str]) -> int:
    """Serve, write a file, or print once; 1 for what cannot be done."""
    args = _arguments(argv)
    meter, ended = Meter(), _ended()
    try:
        follower = None if args.source else Follower(observing.found(args), once=args.once, ended=ended)
        news = follower.news if follower is not None else EventTail([_file(Path(each)) for each in args.source]).news
        made = registry(_families(meter, news), lambda: {"job": meter.job, "run": meter.run})
        if args.once:
            print(text(made), end="")
        elif args.textfile:
            _keep_writing(made, Path(args.textfile), args.interval, meter, ended)
        else:
            _keep_serving(made, args.listen, ended)
        if follower is not None and follower.error:
            raise ValueError(follower.error)
    except OSError as error:
        print(f"outlast metrics: error: {error.filename or args.listen}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"outlast metrics: error: {error}", file=sys.stderr)
        return 1
    return 0


class Follower:
    """A running job's events, read by a thread as an observer. `ended` is set when they cannot be read any more."""

    def __init__(self, job: FoundJob, *, once: bool, ended: threading.Event) -> None:
        self.error = ""
        self._job, self._once, self._ended = job, once, ended
        self._events: queue.SimpleQueue[RecordedEvent] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def news(self) -> list[RecordedEvent]:
        """The events since the last call."""
        if self._once:
            self._thread.join()
        found = []
        while not self._events.empty():
            found.append(self._events.get())
        return found

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except (ValueError, OSError, CoordinatorUnreachable, ObserverRefused) as error:
            self.error = str(error)
            self._ended.set()

    async def _follow(self) -> None:
        async with self._job.observer() as observer:
            async for told in observer.events(follow=not self._once):
                if isinstance(told, NumberedEvent):
                    self._events.put(
                        RecordedEvent(told.time, told.event, observer.job, observer.run, told.term, told.number)
                    )


def _families(meter: Meter, news: Callable[[], list[RecordedEvent]]) -> Callable[[float], list[Family]]:
    lock = threading.Lock()  # each scrape has a thread of its own

    def families(now: float) -> list[Family]:
        with lock:
            meter.read(news())
            return meter.families(now)

    return families


def _keep_writing(made: Any, path: Path, interval: float, meter: Meter, ended: threading.Event) -> None:
    while True:
        write(made, path)
        if meter.over or ended.wait(interval):
            return


def _keep_serving(made: Any, listen: str, ended: threading.Event) -> None:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {listen}: give HOST:PORT, as 127.0.0.1:{PORT}")
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
    parser = observing.parser(
        "metrics", "Follows a job and serves its metrics to Prometheus; needs `outlast[metrics]`."
    )
    parser.add_argument(
        "source",
        nargs="*",
        help="An events file (--ft-events) or log directory instead of a running job; several, of several hosts.",
    )
    parser.add_argument("--listen", default=f"127.0.0.1:{PORT}", help=f"Where to serve (127.0.0.1:{PORT}).")
    parser.add_argument("--textfile", default="", help="Write this file instead, for node_exporter; ends with the job.")
    parser.add_argument("--interval", type=float, default=15.0, help="Seconds from one file to the next (15).")
    parser.add_argument("--once", action="store_true", help="Print the metrics once, and end.")
    return parser.parse(argv)
