"""Streams of several nodes become one, in the order of time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from outlast.events.reasons import FailedRank
from outlast.observe import logs
from outlast.observe.log_sources import MOST, JobLogSource
from outlast.observe.logs import LogMerger, MergedLine
from outlast.protocol.logs import (
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
from outlast.protocol.views import JobView, NodeView

STREAM = LogStream(1, 0, error=False)


class Nodes:
    """Nodes of one rank each. What they answer when read for the first time, the second, and so on."""

    def __init__(self, **parts: list[tuple[list[float], float, bool]]) -> None:
        """`parts`: times of lines, until when that is all, and whether there is more."""
        self._parts = parts
        self._at = dict.fromkeys(parts, 0)
        self.silent: set[str] = set()
        self.busy = 0
        self.over_after = 10**9
        self.asked = 0

    async def nodes(self) -> Mapping[str, str]:
        return {node: f"node {node}" for node in self._parts}

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
        self.asked += 1
        if self.busy:
            self.busy -= 1
            return LogsTold(busy=True)
        answers = {node: self._answer(node, data) for node, data in questions.items() if node not in self.silent}
        return LogsTold(answers, tuple(self.silent & questions.keys()), over=self.asked >= self.over_after)

    def _answer(self, node: str, data: bytes) -> bytes:
        asked = msgspec.msgpack.decode(data, type=FindStreams | ReadStreams)
        rank = sorted(self._parts).index(node)
        if isinstance(asked, FindStreams):
            found = () if asked.after else (FoundStream(StreamPlace(STREAM, 0), rank),)
            return msgspec.msgpack.encode(StreamsFound(found, newest=1))
        (place,) = asked.places
        at, left = place.offset, self._parts[node]
        if at >= len(left):
            return msgspec.msgpack.encode(
                StreamsRead((StreamPart(place, (), left[-1][1], end=True, closed=False),), newest=1)
            )
        times, until, more = left[at]
        lines = tuple(LogLine(each, f"{node} {each:g}".encode()) for each in times)
        part = StreamPart(StreamPlace(STREAM, at + 1), lines, until, end=not more, closed=False)
        return msgspec.msgpack.encode(StreamsRead((part,), newest=1))


async def collected(merger: LogMerger, *, follow: bool) -> list[MergedLine]:
    return [line async for line in merger.lines(follow=follow)]


def texts(source: Nodes, *, follow: bool = False) -> list[str]:
    return [line.text for line in asyncio.run(collected(LogMerger(source, FindStreams()), follow=follow))]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL", 0.0)
    monkeypatch.setattr(logs, "LATER", 0.0)


def test_lines_of_all_nodes_come_by_time_however_they_are_cut_into_parts() -> None:
    source = Nodes(
        a=[([1.0, 4.0], 4.0, True), ([5.0, 9.0], 9.0, False)],
        b=[([2.0], 2.0, True), ([3.0], 3.0, True), ([6.0, 7.0], 7.0, False)],
    )
    assert texts(source) == ["a 1", "b 2", "b 3", "a 4", "a 5", "b 6", "b 7", "a 9"]


def test_at_the_same_time_the_lower_rank_comes_first() -> None:
    assert texts(Nodes(b=[([1.0], 1.0, False)], a=[([1.0], 1.0, False)])) == ["a 1", "b 1"]


def test_who_follows_sees_no_line_before_one_that_may_still_come() -> None:
    source = Nodes(a=[([1.0], 1.5, False), ([2.0], 2.5, False)], b=[([4.0], 4.5, False), ([5.0], 5.5, False)])
    source.over_after = 6
    assert texts(source, follow=True) == ["a 1", "a 2", "b 4", "b 5"]


def test_a_node_that_does_not_answer_keeps_nobody_waiting() -> None:
    source = Nodes(a=[([1.0], 1.0, False)], b=[([2.0], 2.0, False)])
    source.silent = {"b"}
    source.over_after = 5
    assert texts(source, follow=True) == ["a 1"]


def test_a_coordinator_that_is_busy_is_asked_again() -> None:
    source = Nodes(a=[([1.0], 1.0, False)])
    source.busy = 3
    assert texts(source) == ["a 1"]


def test_why_a_node_has_no_logs_is_known() -> None:
    class Bare(Nodes):
        async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:
            return LogsTold({node: msgspec.msgpack.encode(StreamsFound(problem="no files")) for node in questions})

    merger = LogMerger(Bare(a=[]), FindStreams())
    assert asyncio.run(collected(merger, follow=False)) == []
    assert merger.problems == {"node a": "no files"}


def test_of_a_large_job_the_nodes_are_read_that_matter_most() -> None:
    nodes = tuple(
        NodeView(f"n{at}", f"n{at}", "running", 8, True, True, False, first_rank=8 * at) for at in range(1000)
    )
    fault = FailedRank("n500", 4000, 1)
    blank = JobView("j", "r", 1, "running", 1, True, 1.0, 1, 1000, nodes, 0, 0, 0, 1, last_fault=fault)

    class _View:
        async def view(self, _: object) -> JobView:
            return blank

    source = JobLogSource(_View(), rank=7777)  # type: ignore[arg-type]
    chosen = list(asyncio.run(source.nodes()))
    assert chosen[:3] == ["n972", "n500", "n0"]
    assert (len(chosen), source.left_out) == (MOST, 1000 - MOST)
    assert list(asyncio.run(JobLogSource(_View(), only="n999").nodes())) == ["n999"]  # type: ignore[arg-type]
