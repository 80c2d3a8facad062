"""The observer's side of the wire: views, events, and requests to act.

async with Observer([Endpoint("gpu-01", 29400)], token) as observer:
    print((await observer.view()).phase)
    async for told in observer.events(after=0):
        print(told)
"""

from __future__ import annotations

import asyncio
import getpass
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TypeVar

import msgspec

from outlast.agent.coordinator_link.ask import ask
from outlast.agent.coordinator_link.link import (
    FAILED,
    NOT_OURS,
    Connection,
    CoordinatorUnreachable,
    OtherJob,
    knock,
    why_not,
)
from outlast.events.events import JobOver
from outlast.events.numbered import NumberedEvent
from outlast.launch import Endpoint
from outlast.protocol.chaos import AskChaos, ChaosFault
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.logs import AskLogs, LogsTold
from outlast.protocol.membership import Refuse
from outlast.protocol.messages import ToAnybody
from outlast.protocol.observers import Detail, EventBatch, FollowEvents, FromObserver, Portion, ReadView
from outlast.protocol.requests import Answer, Ask
from outlast.protocol.views import JobView
from outlast.transport.wire import WrongToken, chaos_token

ANSWERED = 25.0  # seconds: a request for events is answered after 10 s at the latest
GOODBYE = 1.0  # seconds for a connection to close
PATIENCE = 120.0  # seconds without a coordinator after which events are given up: another node may have to take over
LOOK_AROUND = 3.0  # seconds for the places where the coordinator may be to answer
HIGHEST_PORT = 65535
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0  # between two tries

_view = msgspec.msgpack.Decoder(JobView)
_batch = msgspec.msgpack.Decoder(EventBatch)
_logs = msgspec.msgpack.Decoder(LogsTold)

T = TypeVar("T")


class ObserverRefused(Exception):
    """The coordinator turns this observer away; the message says why, and what to do."""


class EventGap(msgspec.Struct, frozen=True):
    """Events after this number are lost, up to the next one that is told; or they were of another run of the job."""

    after: int
    run: str  # of what follows


class _LineLost(Exception):
    """The connection ended, or stayed silent."""


class _Line:
    """One connection to a coordinator: one request at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[bytes] | None = None
        connection.closed.add_done_callback(lambda _: self._fail(_LineLost("it closed the connection")))

    def receive(self, message: ToAnybody) -> None:
        if isinstance(message, Refuse):
            self._fail(ObserverRefused(message.reason))
        elif isinstance(message, Portion):
            self._parts.append(message.data)
            if message.last and self._answer is not None and not self._answer.done():
                self._answer.set_result(b"".join(self._parts))

    async def request(self, message: FromObserver) -> bytes:
        if self.connection.closed.done():
            raise _LineLost("it closed the connection")
        self._parts = []
        self._answer = asyncio.get_running_loop().create_future()
        self.connection.send(message)
        # Not wait_for, which loses a cancellation that comes together with the answer (Python 3.10 and 3.11): a Ctrl-C.
        try:
            await asyncio.wait({self._answer}, timeout=ANSWERED)
            if not self._answer.done():
                raise _LineLost(f"it said nothing for {ANSWERED:g} s")
            return self._answer.result()
        finally:
            self._answer.cancel()

    async def close(self) -> None:
        self.connection.close()
        await asyncio.wait({self.connection.closed}, timeout=GOODBYE)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class Observer:
    """Watches one job, wherever its coordinator is.

    `places`: where it may be; any node's address does, at the job's port. `patience`: seconds without a coordinator
    after which `events` gives up.
    """

    def __init__(
        self,
        places: Iterable[Endpoint],
        token: str | None,
        *,
        tls: ssl.SSLContext | None = None,
        job: str = "",
        patience: float = PATIENCE,
    ) -> None:
        self.job = job
        self.run = ""
        self.version_hint = "is it of the same version of outlast?"
        self._places = list(places)
        self._token = token
        self._tls = tls
        self._patience = patience
        self._lines: dict[type[FromObserver], _Line] = {}  # those that stay, by what is asked on them
        self._turns: dict[type[FromObserver], asyncio.Lock] = {}  # one request at a time on each

    async def __aenter__(self) -> Observer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections that views and logs come on."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.close()

    async def view(self, detail: Detail | str = Detail.JOB) -> JobView:
        """What is going on, at most a second old. Raises `CoordinatorUnreachable` or `ObserverRefused`, in one line."""
        view = await self._request(ReadView(Detail(detail)), _view)
        self.job, self.run = view.job, view.run
        return view

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
        """What these nodes answer about their logs (see `outlast.protocol.logs`). Raises as `view` does."""
        return await self._request(AskLogs(tuple(questions.items())), _logs)

    async def _request(self, request: FromObserver, decoder: msgspec.msgpack.Decoder[T]) -> T:
        kind = type(request)
        async with self._turns.setdefault(kind, asyncio.Lock()):
            for again in (True, False):
                fresh = kind not in self._lines
                line = self._lines[kind] = self._lines.get(kind) or await self._open()
                try:
                    return decoder.decode(await line.request(request))
                except _LineLost as lost:
                    self._lines.pop(kind, None)
                    await line.close()
                    if fresh or not again:
                        raise CoordinatorUnreachable(self._broke(line, lost)) from None
                except UNREADABLE:
                    raise CoordinatorUnreachable(self._broke(line, "its answer cannot be read")) from None
        raise AssertionError("one of two tries returns or raises")

    async def events(
        self, after: int = 0, *, run: str = "", follow: bool = True
    ) -> AsyncIterator[NumberedEvent | EventGap]:
        """Every event after this number (of this run, if given), each once; ends after the job's end.

        Not `follow`: ends when there are no more for now. It goes on from a coordinator that was restarted, or took
        over on another node.
        """
        loop = asyncio.get_running_loop()
        wait, answered = FIRST_WAIT, loop.time()
        while True:
            try:
                line = await self._open()
            except CoordinatorUnreachable as error:
                if not follow or loop.time() - answered > self._patience or isinstance(error.__cause__, NOT_OURS):
                    raise
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            opened = loop.time()
            try:
                while True:
                    batch = _batch.decode(await line.request(FollowEvents(after, run, wait=follow)))
                    wait, answered = FIRST_WAIT, loop.time()
                    self._learn(batch)
                    if batch.gap:
                        yield EventGap(after, batch.run)
                    after, run = (after if run in ("", batch.run) else 0), batch.run
                    for numbered in batch.events:
                        yield numbered
                        after = numbered.number
                        if isinstance(numbered.event, JobOver):
                            return
                    if not follow and not batch.events:
                        return
                    if not batch.acting:
                        await asyncio.sleep(FIRST_WAIT)
                        break  # another one may have taken over
            except _LineLost as lost:
                answered = max(answered, opened)  # it was there until now
                if not follow or loop.time() - answered > self._patience + ANSWERED:
                    raise CoordinatorUnreachable(self._broke(line, lost)) from None
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, LONGEST_WAIT)
            except UNREADABLE:
                raise CoordinatorUnreachable(self._broke(line, "its answer cannot be read")) from None
            finally:
                await line.close()

    async def history(self) -> list[NumberedEvent]:
        """The events so far that are known. Raises as `view` does."""
        return [told async for told in self.events(follow=False) if isinstance(told, NumberedEvent)]

    async def restart(self) -> Answer:
        """Start the whole job anew, on the same nodes, with the code that is on disk now."""
        return await self._ask("restart")

    async def drain(self, node: str) -> Answer:
        """Let this node leave the job, after a save where that can be had."""
        return await self._ask("drain", node)

    async def scale(self, nodes: int) -> Answer:
        """Run on so many nodes from now on; the others stay as spares."""
        return await self._ask("scale", str(nodes))

    async def stop(self) -> Answer:
        """End the job."""
        return await self._ask("stop")

    async def hurt(self, node: str, fault: ChaosFault, right: str = "") -> Answer:
        """Have this fault happen on this node. `right`: the job's chaos token; empty: made from the job's own."""
        right = right or chaos_token(self._token or "")
        return await self._asked(AskChaos(_who(), self.job, right, node, fault))

    async def _ask(self, what: str, subject: str = "") -> Answer:
        return await self._asked(Ask(what, _who(), self.job, subject))

    async def _asked(self, question: Ask | AskChaos) -> Answer:
        line = await self._open()
        await line.close()
        assert line.connection.endpoint is not None
        return await ask(line.connection.endpoint, self._token, self._tls, question)

    async def _open(self) -> _Line:
        """A connection to the coordinator that acts, or else to one that waits for its time to."""
        lines: dict[Connection, _Line] = {}

        def receive(connection: Connection, message: ToAnybody) -> None:
            if connection in lines:
                lines[connection].receive(message)

        relays = [place.relay for place in self._places if 0 < place.port < HIGHEST_PORT and not place.loopback]
        places = list(dict.fromkeys([*self._places, *relays]))
        reached, failed = await knock(places, self._token, self._tls, receive, limit=LOOK_AROUND)
        for connection in [each for each in reached if self.job not in ("", each.standing.job)]:
            reached.remove(connection)
            connection.close()
            assert connection.endpoint is not None
            failed[connection.endpoint] = OtherJob(connection.standing.job)
        if not reached:
            raise self._unreachable(failed)
        best = max(reached, key=lambda each: (each.standing.acting, each.standing.term))
        for connection in reached:
            if connection is not best:
                connection.close()
        line = lines[best] = _Line(best)
        return line

    def _unreachable(self, failed: dict[Endpoint, Exception]) -> CoordinatorUnreachable:
        """Of several places, the one that says most: somebody answers there."""

        def weight(item: tuple[Endpoint, Exception]) -> tuple[bool, bool, bool]:
            given = item[0] in self._places
            return isinstance(item[1], WrongToken), given and isinstance(item[1], NOT_OURS), given

        place, error = max(failed.items(), key=weight)
        assert isinstance(error, (*FAILED, OtherJob))
        if isinstance(error, WrongToken):
            text = f"the coordinator at {place} has another token: set the job's OUTLAST_TOKEN"
        elif isinstance(error, OtherJob):
            text = f"what answers at {place} serves job {str(error)!r}, not {self.job!r}"
        elif isinstance(error, ConnectionRefusedError):
            text = f"no job answers at {place}: it is over, or its coordinator is elsewhere (--endpoint)"
        else:
            text = why_not(error, place, LOOK_AROUND, self._tls)
        unreachable = CoordinatorUnreachable(text)
        unreachable.__cause__ = error
        return unreachable

    def _broke(self, line: _Line, what: object) -> str:
        return f"the coordinator at {line.connection.endpoint} does not answer ({what}): {self.version_hint}"

    def _learn(self, batch: EventBatch) -> None:
        self.job, self.run = batch.job, batch.run
        told = [Endpoint(host, port) for host, port in batch.places if port]
        self._places += [place for place in told if place not in self._places]


def _who() -> str:
    return f"{_user()} on {socket.gethostname()}"[:255]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run with a number that has no name
        return f"user {os.getuid()}"
