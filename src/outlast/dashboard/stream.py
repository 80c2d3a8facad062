"""Server-sent events: each browser is sent what it lacks, as fast as it reads and no faster. Nothing is queued."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from outlast.dashboard.page_state import PageState

HEARTBEAT = 15.0  # seconds: proxies cut what is silent for longer
STUCK = 20.0  # seconds in which a browser takes nothing
GATHER = 0.1  # seconds: what happens together is sent together
MOST_SUBSCRIBERS = 32
RETRY = b"retry: 1000\n\n"
ALIVE = b": alive\n\n"


class PageChange:
    """Wakes whoever waits for the page's state to change."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def announce(self) -> None:
        """It has changed."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, seconds: float) -> bool:
        """Whether it changes within this time."""
        event = self._event
        with anyio.move_on_after(seconds):
            await event.wait()
        return event.is_set()


class Browsers:
    """Everybody who follows one page."""

    def __init__(self, state: PageState, change: PageChange) -> None:
        self.state = state
        self.change = change
        self.subscribers = 0

    def response(self, request: Request) -> Response:
        """The stream for one browser, from where it was: `Last-Event-ID`, or `after` if it had to connect anew."""
        if self.subscribers >= MOST_SUBSCRIBERS:
            line = f"{MOST_SUBSCRIBERS} pages are open already: close one"
            return PlainTextResponse(line, 503, {"retry-after": str(int(HEARTBEAT))})
        known = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return BrowserStream(self, known, zipped="gzip" in request.headers.get("accept-encoding", ""))


class BrowserNeeds:
    """What one browser has been sent."""

    def __init__(self, state: PageState, known: str) -> None:
        self._state = state
        run, _, number = known.rpartition("/")
        self._run, self._number = run, int(number) if number.isdecimal() else 0
        self._versions: dict[str, int] = {}
        self._sampled: float | None = None

    def lacking(self) -> bytes:
        """All that has changed since the last time, as server-sent events."""
        parts = []
        for name, (version, data) in self._state.frames.items():
            if self._versions.get(name) != version:
                self._versions[name] = version
                parts.append(message(name, data))
        return b"".join([*parts, self._rows(), self._samples()])

    def _rows(self) -> bytes:
        state = self._state
        anew, rows = state.rows_after(self._run, self._number)
        if not state.run or (self._run == state.run and not anew and not rows):
            return b""
        self._run, self._number = state.run, state.last
        return message("story", msgspec.json.encode({"anew": anew, "rows": rows}), f"{state.run}/{state.last}")

    def _samples(self) -> bytes:
        since = self._sampled
        samples = self._state.pace.samples
        new = samples if since is None else [each for each in samples[-64:] if each.time > since]
        if not new:
            return b""
        self._sampled = new[-1].time
        return message("pace", msgspec.json.encode({"anew": since is None, "samples": new}))


def message(name: str, data: bytes, number: str = "") -> bytes:
    r"""One server-sent event. JSON has no line breaks of its own.

    >>> message("now", b"{}", "r/7")
    b'event: now\nid: r/7\ndata: {}\n\n'
    """
    identity = f"id: {number}\n" if number else ""
    return f"event: {name}\n{identity}data: ".encode() + data + b"\n\n"


class BrowserStream(Response):
    """A stream that lasts until the browser leaves, or has taken nothing for `STUCK` seconds."""

    def __init__(self, browsers: Browsers, known: str, *, zipped: bool) -> None:
        encoding = {"content-encoding": "gzip"} if zipped else {}
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": "accept-encoding", **encoding}
        super().__init__(None, headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._browsers = browsers
        self._known = known
        self._zip = zlib.compressobj(6, zlib.DEFLATED, 31) if zipped else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send for as long as the browser reads."""
        self._browsers.subscribers += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                await self._send_all(send)
                tasks.cancel_scope.cancel()
        finally:
            self._browsers.subscribers -= 1

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._messages():
            with anyio.move_on_after(STUCK) as patience:
                await send({"type": "http.response.body", "body": self._packed(data), "more_body": True})
            if patience.cancelled_caught:
                return

    async def _messages(self) -> AsyncIterator[bytes]:
        needs = BrowserNeeds(self._browsers.state, self._known)
        yield RETRY + needs.lacking()
        while True:
            changed = await self._browsers.change.wait(HEARTBEAT)
            if changed:
                await anyio.sleep(GATHER)
            yield needs.lacking() or ALIVE

    def _packed(self, data: bytes) -> bytes:
        return data if self._zip is None else self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
