"""The logs of one node's workers, read from its log directory: `<directory>/attempt_<generation - 1>/<local rank>/`.

Files are opened by numbers, one directory after the other, and never through a symbolic link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from outlast.logs.lines import LONGEST, OVERHEAD, last_lines, split
from outlast.logs.marks import Mark, Marks, marks_file
from outlast.protocol.fields import UNREADABLE, Count
from outlast.protocol.logs import (
    ANSWER,
    FOUND,
    FindStreams,
    FoundStream,
    LogStream,
    ReadStreams,
    StreamPart,
    StreamPlace,
    StreamsFound,
    StreamsRead,
)

HEADER = ".ranks.json"  # in an attempt: whose logs these are
ATTEMPT = "attempt_"
RANDOM = len("_abcdefgh")  # which each node adds to the job's name
TAIL = 256 << 10  # bytes of a log in which the last lines are looked for
SKIPPED, PIECE = 64 << 20, 1 << 20  # bytes of an overlong line that are passed over at once, and read at once
RESERVED = 4 << 10  # bytes of an answer for what is not lines
PER_PLACE = 64  # and for each stream
LEAST = LONGEST + OVERHEAD  # bytes that the longest line takes
NO_FOLLOWING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class AttemptHeader(msgspec.Struct, frozen=True):
    """Which ranks of which node wrote the logs of an attempt."""

    node: str = ""
    first_rank: Count = 0


class NodeLogs:
    """One node's log directory.

    `newest`: the generation that was started last; those after it are only being made. `live`: whether it still writes.
    `seen`: when its logs were last looked at.
    """

    def __init__(
        self, directory: Path, *, newest: int | None = None, live: bool = False, seen: float = float("inf")
    ) -> None:
        self._directory = directory
        self._newest = newest
        self._live = newest if live else None
        self._seen = seen if live else float("inf")

    def name(self) -> str:
        """The node's name, as its agent left it; else that of the directory."""
        names = (self._header(generation).node for generation in reversed(self.generations()))
        return next((name for name in names if name), self._directory.name)

    @property
    def job(self) -> str:
        """The job's name, as its log directory has it."""
        return self._directory.name[:-RANDOM]

    def generations(self) -> list[int]:
        """Those that have logs, in order."""
        with suppress(OSError), os.scandir(self._directory) as entries:
            numbers = [each.name.removeprefix(ATTEMPT) for each in entries if each.name.startswith(ATTEMPT)]
            found = sorted(int(each) + 1 for each in numbers if each.isdecimal() and len(each) < 10)
            return [each for each in found if self._newest is None or each <= self._newest]
        return []

    def find(self, asked: FindStreams) -> StreamsFound:
        """The streams, and where to start."""
        generations = self.generations()
        found: list[FoundStream] = []
        for generation in reversed([each for each in generations if each > asked.after]):
            first = self._header(generation).first_rank
            streams = [
                FoundStream(place, first + stream.local_rank)
                for stream in self._streams(generation)
                if asked.rank in (None, first + stream.local_rank)
                if (place := self._start(stream, asked)) is not None
            ]
            found = streams + found
            enough = bool(streams) if asked.lines is not None else bool(asked.since and not streams)
            if len(found) >= FOUND or enough:
                break
        return StreamsFound(tuple(found[-FOUND:]), newest=max(generations, default=0))

    def read(self, asked: ReadStreams) -> StreamsRead:
        """What follows."""
        left = ANSWER - RESERVED - PER_PLACE * len(asked.places)
        parts = []
        for index, place in enumerate(asked.places):
            # Those for which there is no room are read with the next question.
            fair = max(left // (len(asked.places) - index), LEAST)
            part = self._part(place, fair) if left >= LEAST else StreamPart(place, (), 0.0, end=False, closed=False)
            left -= sum(len(line.text) + OVERHEAD for line in part.lines)
            parts.append(part)
        return StreamsRead(tuple(parts), newest=max(self.generations(), default=0))

    def _header(self, generation: int) -> AttemptHeader:
        with ExitStack() as files, suppress(OSError, *UNREADABLE):
            header = _open(files, self._directory, f"{ATTEMPT}{generation - 1}", HEADER)
            return msgspec.json.decode(os.read(header, RESERVED), type=AttemptHeader)
        return AttemptHeader()

    def _streams(self, generation: int) -> Iterator[LogStream]:
        attempt = self._directory / f"{ATTEMPT}{generation - 1}"
        ranks = sorted(int(each.name) for each in attempt.iterdir() if each.name.isdecimal() and len(each.name) < 6)
        for local_rank in ranks:
            for error in (False, True):
                if (attempt / str(local_rank) / _file(error)).is_file():
                    yield LogStream(generation, local_rank, error)

    def _start(self, stream: LogStream, asked: FindStreams) -> StreamPlace | None:
        """Where to start; None: it has nothing of what is wanted."""
        with ExitStack() as files:
            try:
                log, marks = self._open(files, stream)
            except OSError:
                return None
            live = stream.generation == self._live
            size = _size(log, marks, live=live)
            if asked.since:
                if marks.last is not None and marks.last.time < asked.since and not live:
                    return None
                start = marks.size_at(asked.since)
            elif asked.lines is not None:
                start = max(0, size - TAIL)
                begin = start + last_lines(os.pread(log, size - start, start), asked.lines)
                return StreamPlace(stream, begin, inside=begin == start > 0)
            else:
                return StreamPlace(stream, 0)
            return StreamPlace(stream, start, inside=start > 0 and os.pread(log, 1, start - 1) not in (b"\n", b"\r"))

    def _part(self, place: StreamPlace, room: int) -> StreamPart:
        stream, offset = place.stream, place.offset
        closed = stream.generation != self._live
        with ExitStack() as files:
            try:
                log, marks = self._open(files, stream)
            except OSError:  # it was removed
                return StreamPart(place, (), until=self._seen, end=True, closed=True)
            size = _size(log, marks, live=not closed)
            start, inside = _skip(log, offset, size) if place.inside else (offset, False)
            known = marks.beyond(start)
            if closed and (not known or known[-1].size < size):
                known.append(Mark(os.fstat(log).st_mtime, size))  # nobody looked any more
            data = b"" if inside else os.pread(log, max(0, min(size - start, max(room, 2 * LONGEST))), start)
        whole = closed and start + len(data) >= size
        lines, reached, inside = (
            split(data, start, known, whole=whole, room=room - LEAST + 1) if data else ([], start, inside)
        )
        end = reached in (offset, size)  # a line that has no end yet is held back
        until = self._seen if end else (lines[-1].time if lines else 0.0)
        return StreamPart(StreamPlace(stream, reached, inside), tuple(lines), until, end, closed and end)

    def _open(self, files: ExitStack, stream: LogStream) -> tuple[int, Marks]:
        name = _file(stream.error)
        attempt, rank = f"{ATTEMPT}{stream.generation - 1}", str(stream.local_rank)
        log = _open(files, self._directory, attempt, rank, name)
        try:
            return log, Marks(_open(files, self._directory, attempt, rank, marks_file(Path(name)).name))
        except FileNotFoundError:
            return log, Marks(None)


def logs_below(path: Path, job: str = "") -> list[NodeLogs]:
    """The nodes whose logs are in a directory, of this or the newest job, and for each node the newest directory.

    Raises ValueError in one line.
    """
    if path.name.startswith(ATTEMPT):
        path = path.absolute().parent
    found = {each.parent for depth in ("", "*/", "*/*/") for each in path.glob(f"{depth}{ATTEMPT}*") if each.is_dir()}
    if job:
        found = {each for each in found if NodeLogs(each).job == job}
    if not found:
        raise ValueError(f"{path} holds no {ATTEMPT}0 or the like: give the --log-dir of the job, or a directory in it")
    newest = sorted(found, key=lambda each: each.stat().st_mtime)
    job = newest[-1].name[:-RANDOM]
    nodes = {logs.name(): logs for logs in map(NodeLogs, newest) if logs.job == job}
    return list(nodes.values())


def _size(log: int, marks: Marks, *, live: bool) -> int:
    """How far the log may be read: while it is written to, as far as it has times."""
    if live:
        return marks.last.size if marks.last is not None else 0
    return os.fstat(log).st_size


def _skip(log: int, offset: int, size: int) -> tuple[int, bool]:
    """Where the rest of a line ends; and whether it goes on there, as far as was looked."""
    stop = min(size, offset + SKIPPED)
    while offset < stop:
        data = os.pread(log, min(PIECE, stop - offset), offset)
        ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        if ends:
            return offset + min(ends) + 1, False
        if not data:
            break
        offset += len(data)
    return offset, True


def _file(error: bool) -> str:
    return "stderr.log" if error else "stdout.log"


def _open(files: ExitStack, directory: Path, *names: str) -> int:
    """A regular file below a directory, by steps that are no links. Raises OSError."""
    at = os.open(directory, NO_FOLLOWING & ~os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            below = os.open(name, NO_FOLLOWING | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        opened = os.open(names[-1], NO_FOLLOWING, dir_fd=at)
    finally:
        os.close(at)
    files.callback(os.close, opened)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        raise FileNotFoundError(names[-1])
    return opened
