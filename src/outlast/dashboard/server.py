"""The process behind the page: follows the job, serves browsers, and ends without anybody missing it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import uvicorn

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.dashboard.access import Access
from outlast.dashboard.app import Dashboard
from outlast.dashboard.logs import RankLogs
from outlast.dashboard.page_state import PageState
from outlast.dashboard.source import JobSource
from outlast.dashboard.stream import Browsers, PageChange
from outlast.observe import ObserverRefused
from outlast.protocol.observers import Detail

LOOK = 1.0  # seconds between two views while somebody watches
RARELY = 5.0  # and while nobody does, or the job is large
MANY = 20_000  # ranks: from here on a view takes the coordinator long to make
AGAIN = 2.0  # seconds until the job is tried again after it could not be reached
BUFFER = 128 << 10  # bytes that the kernel keeps for a slow browser
UNSENT = 30_000  # ms until a connection whose other end takes nothing is given up


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a page is served."""

    access: Access
    log_dir: Path | None = None
    actions: bool = False


def listen(host: str, port: int) -> socket.socket:
    """A socket for the page. Raises ValueError in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise ValueError(
            f"cannot listen on {host} port {port} ({error.strerror}): give another --port, or 0 for any"
        ) from error
    return listening


async def serve(
    source: JobSource, listening: socket.socket, settings: PageSettings, ready: Callable[[], None] | None = None
) -> None:
    """Serve until told to end. Raises what `Observer.view` does if the job cannot be seen to begin with."""
    state, change = PageState(), PageChange()
    browsers = Browsers(state, change)
    state.seen(await source.view(Detail.RANKS))
    state.contact(True, time.time())
    asked = source if settings.actions else None
    app = Dashboard(browsers, settings.access, logs=RankLogs(source, settings.log_dir), source=asked).app()
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_follow, source, state, change)
        tasks.start_soon(_look, source, state, change, browsers)
        if ready is not None:
            ready()
        await uvicorn.Server(config).serve(sockets=[listening])
        tasks.cancel_scope.cancel()


async def _follow(source: JobSource, state: PageState, change: PageChange) -> None:
    """All events, from the first one; after a break, from the last one on."""
    while not state.over:
        try:
            async for told in source.events(state.last, run=state.run):
                state.told(told, time.time())
                change.announce()
        except (CoordinatorUnreachable, ObserverRefused) as error:
            state.contact(False, time.time(), str(error))
            change.announce()
        await anyio.sleep(AGAIN)


async def _look(source: JobSource, state: PageState, change: PageChange, browsers: Browsers) -> None:
    """What is going on, once a second; less of it and less often while nobody looks, or where that is much."""
    looked = time.monotonic()
    while not state.over:
        await anyio.sleep(LOOK)
        rarely = state.ranks > MANY or not browsers.subscribers
        if rarely and time.monotonic() < looked + RARELY:
            continue
        looked = time.monotonic()
        try:
            state.seen(await source.view(Detail.RANKS if browsers.subscribers else Detail.JOB))
            state.contact(True, time.time())
        except (CoordinatorUnreachable, ObserverRefused) as error:
            state.contact(False, time.time(), str(error))
        change.announce()
