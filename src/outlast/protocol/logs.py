"""Logs of workers, read through their agents: what an observer asks a node, and what it is told.

The coordinator passes questions and answers on without reading them. Streams are named by numbers, never by paths.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from outlast.protocol.fields import Count, Name, Time

NODES = 16  # that one request may ask
QUESTION = 8 << 10  # bytes of a question to one node
ANSWER = 96 << 10  # bytes of a node's answer
STREAMS = 64  # that one question may read
FOUND = 1024  # streams that one answer names, the newest ones

_Question = Annotated[bytes, msgspec.Meta(max_length=QUESTION)]
_Answer = Annotated[bytes, msgspec.Meta(max_length=ANSWER)]


class LogStream(msgspec.Struct, frozen=True, array_like=True):
    """One log file of a node."""

    generation: Count
    local_rank: Count
    error: bool  # standard error


class StreamPlace(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream has been read. `inside`: in the middle of a line, whose rest is skipped."""

    stream: LogStream
    offset: Count
    inside: bool = False


class FindStreams(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    """Which streams are there, and where to start: the answer is `StreamsFound`.

    `lines`: the last so many of each stream, of the newest generation that has any; else all, or those since a time.
    """

    rank: Count | None = None
    since: Time = 0.0
    lines: Count | None = None
    after: Count = 0  # only of generations after this one


class ReadStreams(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """What follows these places? The answer is `StreamsRead`. `follow`: more questions will come, to the job's end."""

    places: Annotated[tuple[StreamPlace, ...], msgspec.Meta(max_length=STREAMS)]
    follow: bool = False


class FoundStream(msgspec.Struct, frozen=True, array_like=True):
    """A stream, the rank that writes it, and where to start reading."""

    place: StreamPlace
    rank: Count


class StreamsFound(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """`problem`: why there are none, in one line."""

    streams: tuple[FoundStream, ...] = ()
    newest: Count = 0  # generation
    problem: str = ""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """One line. `cut`: it is longer than what is told."""

    time: float
    text: bytes
    cut: bool = False


class StreamPart(msgspec.Struct, frozen=True, array_like=True):
    """What follows a place. `until`: later lines have later times. `end`: there is no more for now."""

    place: StreamPlace
    lines: tuple[LogLine, ...]
    until: float
    end: bool
    closed: bool  # and never will be


class StreamsRead(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """One part for each place, in the same order; `newest`: the newest generation that has logs."""

    parts: tuple[StreamPart, ...]
    newest: Count = 0


class AskLogs(msgspec.Struct, frozen=True, array_like=True, tag="ask logs"):
    """From an observer: ask these nodes. The answer is `LogsTold`."""

    questions: Annotated[tuple[tuple[Name, _Question], ...], msgspec.Meta(max_length=NODES)]


class LogsTold(msgspec.Struct, frozen=True):
    """`silent`: nodes that are here and have not answered in time. The others are not here."""

    answers: dict[str, bytes] = {}
    silent: tuple[str, ...] = ()
    busy: bool = False  # too much was read just now: ask again later
    over: bool = False  # the job is


class LogQuestion(msgspec.Struct, frozen=True, array_like=True, tag="log question"):
    """From the coordinator to an agent."""

    number: Count
    data: _Question


class LogAnswer(msgspec.Struct, frozen=True, array_like=True, tag="log answer"):
    """From an agent to the coordinator."""

    number: Count
    data: _Answer
