"""Answers what observers ask about the logs of this node's workers. Reads in a thread of its own: workers' output
never waits for a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from outlast.agent.output.disk import Disk
from outlast.agent.output.logs import JobLogs
from outlast.logs.directory import NodeLogs
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.logs import FindStreams, LogAnswer, LogQuestion, ReadStreams, StreamsFound, StreamsRead

NO_FILES = "its workers write to the console alone: start the job with --tee=3 or --redirects=3 to have logs"
OTHER_LAYOUT = "they are where --logs-specs or --log-dir puts them, and cannot be read from here"
MOST_WAITING = 8  # questions
FOLLOWED = 5.0  # seconds after a question for which who asked it counts as following
LAST_LOOK = 5.0  # seconds for those to read the last lines, when the job is over

_question = msgspec.msgpack.Decoder(FindStreams | ReadStreams)


class LogAnswers:
    """One node's. Made within a running event loop. A question too many is not answered: whoever asked asks again."""

    def __init__(self, logs: JobLogs, send: Callable[[LogAnswer], None]) -> None:
        self._logs = logs
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._disk: Disk | None = None
        self._waiting = 0
        self._followed_at = float("-inf")
        self._ending: asyncio.Future[None] | None = None

    def asked(self, question: LogQuestion) -> None:
        """Somebody wants to know."""
        if self._disk is None:
            self._disk = Disk()
        if self._waiting < MOST_WAITING:
            self._waiting += 1
            answer = partial(self._answer, question.data)
            self._disk.call(answer).add_done_callback(partial(self._answered, question.number))

    async def close(self) -> None:
        """The job is over here: whoever follows may read the last lines, for a short while."""
        if self._loop.time() - self._followed_at < FOLLOWED and self._logs.readable:
            self._ending = self._loop.create_future()
            await asyncio.wait({self._ending}, timeout=LAST_LOOK)
        if self._disk is not None:
            self._disk.close(0)

    def _answer(self, data: bytes) -> StreamsFound | StreamsRead:
        """In the thread."""
        asked = _question.decode(data)
        if isinstance(asked, ReadStreams) and asked.follow:
            self._followed_at = self._loop.time()
        if not self._logs.readable:
            return StreamsFound(problem=OTHER_LAYOUT if self._logs.to_files else NO_FILES)
        marker = self._logs.marker
        if marker is None:
            return StreamsFound()
        live, seen = not marker.closed, marker.looked  # before anything is read: it may end meanwhile
        logs = NodeLogs(Path(self._logs.directory), newest=marker.generation, live=live, seen=seen)
        return logs.find(asked) if isinstance(asked, FindStreams) else logs.read(asked)

    def _answered(self, number: int, done: asyncio.Future[StreamsFound | StreamsRead]) -> None:
        self._waiting -= 1
        error = done.exception()
        if isinstance(error, (OSError, *UNREADABLE)):
            answer: StreamsFound | StreamsRead = StreamsFound(problem=f"its logs cannot be read: {error}"[:500])
        elif error is not None:
            raise error
        else:
            answer = done.result()
        self._send(LogAnswer(number, msgspec.msgpack.encode(answer)))
        if _is_last(answer) and self._ending is not None and not self._ending.done():
            self._ending.set_result(None)


def _is_last(answer: StreamsFound | StreamsRead) -> bool:
    """Whether whoever gets it has all that there is to read."""
    if not isinstance(answer, StreamsRead) or not answer.parts:
        return False
    newest = max(part.place.stream.generation for part in answer.parts)
    return newest >= answer.newest and all(part.closed for part in answer.parts)
