"""Logs of all nodes, merged by time: the same for a running job and for log directories.

Each stream (a rank's standard output or error) comes in its own order. A line is shown once no stream can have an
earlier one any more.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from outlast.protocol.logs import (
    NODES,
    STREAMS,
    FindStreams,
    FoundStream,
    LogLine,
    LogsTold,
    LogStream,
    ReadStreams,
    StreamPart,
    StreamPlace,
    StreamsFound,
    StreamsRead,
)

POLL = 0.5  # seconds between two looks while following
LATER = 0.3  # seconds until a coordinator that was busy is asked again
LOOK_AROUND = 4  # polls after which it is looked which nodes there are

_encode = msgspec.msgpack.encode
_answer = msgspec.msgpack.Decoder(StreamsFound | StreamsRead)


class MergedLine(msgspec.Struct, frozen=True):
    """One line of a rank."""

    time: float  # seconds since 1970, by the clock of its node
    node: str
    rank: int
    generation: int
    error: bool  # on standard error
    text: str
    cut: bool  # the line is longer


class LogSource(Protocol):
    """Where logs come from."""

    async def nodes(self) -> Mapping[str, str]:
        """The names of the nodes to read, by what they are asked by."""

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
        """Their answers."""


class _StreamReading:
    """One stream, and how far it has been read."""

    def __init__(self, node: str, name: str, found: FoundStream) -> None:
        self.node, self.name, self.rank = node, name, found.rank
        self.place: StreamPlace = found.place
        self.lines: deque[LogLine] = deque()
        self.until = 0.0  # no line that comes later is older
        self.end = self.closed = False

    @property
    def wanting(self) -> bool:
        """Whether there is more, and nothing left to show."""
        return not self.lines and not self.end

    @property
    def quiet(self) -> bool:
        """Whether there may be more later."""
        return not self.lines and self.end and not self.closed

    @property
    def first(self) -> float:
        return self.lines[0].time

    def take(self, part: StreamPart) -> None:
        self.place, self.until, self.end, self.closed = part.place, part.until, part.end, part.closed
        self.lines.extend(part.lines)

    def rest(self) -> None:
        """Its node does not answer: nobody waits for it."""
        self.end, self.until = True, float("inf")

    def give_up(self) -> None:
        """Its node is gone."""
        self.end = self.closed = True

    def pop(self) -> MergedLine:
        line, stream = self.lines.popleft(), self.place.stream
        text = line.text.decode(errors="replace")
        return MergedLine(line.time, self.name, self.rank, stream.generation, stream.error, text, line.cut)

    def __lt__(self, other: _StreamReading) -> bool:
        return (self.first, self.rank, self.place.stream.error) < (other.first, other.rank, other.place.stream.error)


class LogMerger:
    """Reads streams of many nodes.

    merger = LogMerger(source, FindStreams(lines=100))
    async for line in merger.lines(follow=True): ...
    """

    def __init__(self, source: LogSource, wanted: FindStreams) -> None:
        self._source = source
        self._wanted = wanted
        self._names: Mapping[str, str] = {}
        self._readings: dict[tuple[str, LogStream], _StreamReading] = {}
        self._newest: dict[str, int] = {}  # the generation up to which streams are known, by node
        self._news: set[str] = set()  # nodes that have newer ones
        self._over = False
        self.problems: dict[str, str] = {}  # why a node has no logs, by its name

    async def lines(self, *, follow: bool = False) -> AsyncIterator[MergedLine]:
        """All lines in order; with `follow` until the job is over."""
        await self._look_around()
        last, again, looks = False, False, 0
        while True:
            await self._read(again=again, last=last, follow=follow)
            again = False
            for line in self._ready(follow and not last):
                yield line
            if any(each.wanting for each in self._readings.values()):
                continue
            if not follow or last:
                break
            if self._over:
                last = True  # what was written meanwhile is all
            else:
                await asyncio.sleep(POLL)
                looks += 1
            again = True
            # With nothing left to read on, only this tells whether the job is over. Then nobody may be there to ask.
            if self._news or (not last and (looks % LOOK_AROUND == 0 or not self._readings)):
                await self._look_around()

    def _ready(self, follow: bool) -> list[MergedLine]:
        """The lines before which nothing more can come."""
        bounds = [each.until for each in self._readings.values() if each.wanting or (follow and each.quiet)]
        bound = min(bounds, default=float("inf"))
        heap = [each for each in self._readings.values() if each.lines]
        heapq.heapify(heap)
        ready = []
        while heap and heap[0].first <= bound:
            reading = heap[0]
            ready.append(reading.pop())
            if reading.lines:
                heapq.heapreplace(heap, reading)
                continue
            heapq.heappop(heap)
            if reading.wanting or (follow and reading.quiet):
                bound = min(bound, reading.until)
        self._readings = {key: each for key, each in self._readings.items() if each.lines or not each.closed}
        return ready

    async def _read(self, *, again: bool, last: bool, follow: bool) -> None:
        """Read on wherever nothing is left to show. `again`: also where there was no more when last looked; `last`:
        and where something is left to show, too, for there will be no other time."""
        wanting: dict[str, list[_StreamReading]] = {}
        for reading in self._readings.values():
            if reading.wanting or (again and (reading.quiet or (last and not reading.closed))):
                reading.end = False
                wanting.setdefault(reading.node, []).append(reading)
        asked = {node: readings[:STREAMS] for node, readings in wanting.items()}
        questions = {node: ReadStreams(tuple(each.place for each in all_of), follow) for node, all_of in asked.items()}
        answers, silent = await self._ask(questions)
        for node, readings in asked.items():
            told = _answer.decode(answers[node]) if node in answers else None
            if isinstance(told, StreamsRead):
                for reading, part in zip(readings, told.parts, strict=False):
                    reading.take(part)
                if told.newest > self._newest.get(node, 0):
                    self._news.add(node)
            elif node in silent:
                for reading in readings:
                    reading.rest()
            else:
                for reading in wanting[node]:
                    reading.give_up()

    async def _look_around(self) -> None:
        """Learn of nodes and streams that are new."""
        self._news.clear()
        if not self._over:
            self._names = await self._source.nodes()
        wanted = self._wanted
        questions = {
            node: replace(wanted, since=0.0, lines=None, after=self._newest[node]) if node in self._newest else wanted
            for node in self._names
        }
        answers, _ = await self._ask(questions)
        for node, data in answers.items():
            told = _answer.decode(data)
            if isinstance(told, StreamsRead):
                continue
            name = self._names[node]
            self.problems.pop(name, None)
            if told.problem:
                self.problems[name] = told.problem
            for found in told.streams:
                self._readings.setdefault((node, found.place.stream), _StreamReading(node, name, found))
            if told.newest:
                self._newest[node] = told.newest

    async def _ask(self, questions: Mapping[str, FindStreams | ReadStreams]) -> tuple[dict[str, bytes], set[str]]:
        """The answers, and the nodes that are here and have not answered."""
        left = list(questions.items())
        answers: dict[str, bytes] = {}
        silent: set[str] = set()
        while left:
            told = await self._source.ask_logs({node: _encode(question) for node, question in left[:NODES]})
            self._over = self._over or told.over
            if told.busy:
                await asyncio.sleep(LATER)
                continue
            answers |= told.answers
            silent |= set(told.silent)
            del left[:NODES]
        return answers, silent
