"""Where the output and the error files of a job's workers go: torchrun's layout and torchrun's rules.

    <log_dir>/<job>_<random>/attempt_<generation - 1>/<local rank>/{stdout.log, stderr.log, error.json}

A redirected stream is the worker's own file. A tee'd one is a pipe that this process reads (`tee.py`). Files are made,
opened and written in a thread: while their disk does not answer, the agent goes on (`disk.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template

from outlast.agent.output.disk import Disk, LogFile, open_log
from outlast.agent.output.layout import DefaultLayout, Destinations, LogLayout, SpecsLayout, any_stream, not_writable
from outlast.agent.output.marking import PERIOD, LogMarker
from outlast.agent.output.tee import Console, ReplacedStream, Tee, open_pipe
from outlast.agent.processes.worker import Streams
from outlast.launch import Launch, Std
from outlast.logs.directory import AttemptHeader
from outlast.protocol.generations import Assignment

logger = logging.getLogger("agent")

PATIENCE = 5.0  # seconds for the disk at the very end, when nobody waits for it any more


@dataclass
class OpenedFiles:
    """The files of one generation, open to be written."""

    destinations: Destinations
    ends: dict[tuple[Std, int], int] = field(default_factory=dict)  # by stream and local rank
    filtered: dict[Std, int] = field(default_factory=dict)
    marker: LogMarker | None = None

    def close(self) -> None:
        """Close those that nobody has taken."""
        for descriptor in (*self.ends.values(), *self.filtered.values()):
            os.close(descriptor)


class JobLogs:
    """The logs of this node's workers, over all generations of the job.

        streams = await logs.open(assignment, environments)
        group = WorkerGroup.start(commands, environments, streams, on_exit)
        await group.stop()
        logs.finish()

    Raises `LogsNotWritable` when nothing can be written at all, and ValueError for unknown `--logs-specs`.
    """

    def __init__(self, launch: Launch, *, node: str = "", stdout: int | None = None, stderr: int | None = None) -> None:
        self._launch = launch
        self._node = node
        self._names = [f"{role.name}-{index}" for role in launch.roles for index in range(role.count)]
        self._outputs = {Std.OUT: stdout, Std.ERR: stderr}
        self._consoles: dict[Std, Console | ReplacedStream] = {}
        self._tees: list[tuple[int, Tee]] = []  # with the local rank
        self._places: Destinations | None = None  # of the generation whose logs were opened last
        self._filtered: dict[Std, LogFile] = {}
        self._disk: Disk | None = None
        self.marker: LogMarker | None = None  # of the generation whose logs were opened last
        self._marking: asyncio.TimerHandle | None = None
        self._wall = time.time() - time.monotonic()  # once: times are as far apart as they were, whoever sets the clock
        self._layout: LogLayout
        if launch.logs.specs is None:
            self._layout = DefaultLayout(launch)
        else:
            self._layout = SpecsLayout(launch.logs, launch.logs.specs)

    @property
    def directory(self) -> str:
        """Where this job's files lie, to be shown to the user."""
        return self._layout.directory

    @property
    def asked_for(self) -> bool:
        """Whether the user wants files at all: else there are only those that workers may leave."""
        logs = self._launch.logs
        return bool(logs.log_dir or logs.specs or any_stream(logs.redirects) or any_stream(logs.tee))

    @property
    def readable(self) -> bool:
        """Whether they are where `outlast.logs` finds them."""
        return isinstance(self._layout, DefaultLayout) and self.to_files and self.directory != os.devnull

    @property
    def to_files(self) -> bool:
        """Whether workers' output goes to files."""
        return any_stream(self._launch.logs.redirects) or any_stream(self._launch.logs.tee)

    @property
    def disk(self) -> Disk:
        """Where blocking calls on these files are made. Within a running event loop."""
        if self._disk is None:
            self._disk = Disk()
        return self._disk

    async def open(self, assignment: Assignment, environments: Sequence[dict[str, str]]) -> list[Streams]:
        """Make the files of a generation, by local rank. The caller owns the streams.

        Each environment gets its TORCHELASTIC_ERROR_FILE here. What the generation before had tee'd is finished.
        """
        self.finish()
        try:
            files = await self.disk.call(partial(self._open_files, assignment, environments), OpenedFiles.close)
        except OSError as error:
            raise not_writable(error, self.directory) from error
        for stream, descriptor in files.filtered.items():
            self._filtered[stream] = LogFile(files.destinations.filtered(stream), descriptor, self.disk)
        files.filtered.clear()
        self.marker, self._places = files.marker, files.destinations
        self._mark()
        streams: list[Streams] = []
        try:
            for local_rank, environment in enumerate(environments):
                error_file = environment["TORCHELASTIC_ERROR_FILE"] = files.destinations.error_file(local_rank)
                streams.append(self._streams(files, assignment, local_rank, error_file))
        except OSError as error:
            for opened in streams:
                opened.close()
            files.close()
            self.finish()
            raise not_writable(error, self.directory) from error
        return streams

    async def reopen(self, assignment: Assignment, local_rank: int, environment: dict[str, str]) -> Streams:
        """For another process in a worker's place: its output goes on in the same files."""
        places = self._places
        assert places is not None
        for _, tee in [each for each in self._tees if each[0] == local_rank]:
            tee.close()
        self._tees = [each for each in self._tees if each[0] != local_rank]
        error_file = environment["TORCHELASTIC_ERROR_FILE"] = places.error_file(local_rank)
        try:
            files = await self.disk.call(partial(_more_of, places, local_rank), OpenedFiles.close)
            return self._streams(files, assignment, local_rank, error_file)
        except OSError as error:
            raise not_writable(error, self.directory) from error

    def drain(self) -> None:
        """Have in the files what workers have written so far."""
        for _, tee in self._tees:
            tee.drain()

    def finish(self) -> None:
        """The generation's workers are gone: write out what is left in their pipes. May be called again."""
        for _, tee in self._tees:
            tee.close()
        self._tees.clear()
        for filtered in self._filtered.values():
            filtered.close()
        self._filtered.clear()
        if self._marking is not None and self.marker is not None:
            self._marking.cancel()
            self._marking = None
            self.disk.do(self.marker.finish, self._wall + time.monotonic())

    def _mark(self) -> None:
        if self.marker is None:
            return
        if not self.disk.busy:
            self.disk.do(self.marker.look, self._wall + time.monotonic())
        self._marking = asyncio.get_running_loop().call_later(PERIOD, self._mark)

    async def shown(self) -> None:
        """Wait until console and files have all that workers have written: for as long as they take."""
        self.finish()
        for console in self._consoles.values():
            if console.owes:
                shown = asyncio.Event()
                console.when_room(shown.set)
                await shown.wait()
        await self.disk.call(lambda: None)  # what was asked for before is done by then

    def owes(self) -> str:
        """What a console has not shown or the disk not taken yet, for people; nothing, if there is no such thing."""
        owing = [f"{each.owes / 1e6:.1f} MB on {each.name}" for each in self._consoles.values() if each.owes]
        if self._disk is not None and self._disk.busy:
            owing.append(f"the disk of {self.directory} does not answer")
        return " and ".join(owing)

    def close(self, success: bool) -> None:
        """The job is over. After success, files that nobody asked for are removed."""
        self.finish()
        for console in self._consoles.values():
            console.close()
        self._consoles.clear()
        if self._disk is None:
            self._layout.close(success)
            return
        self._disk.do(self._layout.close, success)
        if not self._disk.close(PATIENCE):
            logger.error("the disk of %s does not answer: the end of the logs may be missing", self.directory)

    def _open_files(self, assignment: Assignment, environments: Sequence[dict[str, str]]) -> OpenedFiles:
        """In the thread of the disk."""
        files = OpenedFiles(self._layout.destinations(assignment, environments))
        wanted, places = self._launch.logs, files.destinations
        try:
            for stream, needles in ((Std.OUT, wanted.stdout_filters), (Std.ERR, wanted.stderr_filters)):
                if needles and places.filtered(stream):
                    files.filtered[stream] = open_log(places.filtered(stream))
            for local_rank in range(len(environments)):
                _open_ends(files, local_rank)
            files.marker = self._marked(assignment, files)
        except OSError:
            files.close()
            raise
        return files

    def _marked(self, assignment: Assignment, files: OpenedFiles) -> LogMarker | None:
        logs = [log for rank in {rank for _, rank in files.ends} for log in files.destinations.logs(rank)]
        if not logs or not isinstance(self._layout, DefaultLayout):
            return None
        marker = LogMarker(assignment.generation, logs)
        marker.introduce(AttemptHeader(self._node, assignment.first_rank))
        return marker

    def _streams(self, files: OpenedFiles, assignment: Assignment, local_rank: int, error_file: str) -> Streams:
        prefix = self._prefix(assignment.first_rank + local_rank, local_rank)
        stdout = self._end(Std.OUT, files, local_rank, prefix)
        try:
            stderr = self._end(Std.ERR, files, local_rank, prefix)
        except OSError:
            Streams(stdout, None, error_file).close()
            raise
        return Streams(stdout, stderr, error_file, files.destinations.logs(local_rank))

    def _end(self, stream: Std, files: OpenedFiles, local_rank: int, prefix: str) -> int | None:
        """The worker's end of one of its streams; None is the console itself."""
        path = files.destinations.teed(stream, local_rank)
        if not path:
            return files.ends.pop((stream, local_rank), None)
        ours, workers = open_pipe()
        needles = self._launch.logs.stdout_filters if stream is Std.OUT else self._launch.logs.stderr_filters
        tee = Tee(
            ours,
            file=LogFile(path, files.ends.pop((stream, local_rank)), self.disk),
            console=self._console(stream),
            prefix=prefix,
            filtered=self._filtered.get(stream),
            needles=needles,
        )
        self._tees.append((local_rank, tee))
        return workers

    def _console(self, stream: Std) -> Console | ReplacedStream:
        if stream not in self._consoles:
            self._consoles[stream] = _console(stream, self._outputs[stream])
        return self._consoles[stream]

    def _prefix(self, rank: int, local_rank: int) -> str:
        if self._launch.roles:
            return f"[{self._names[local_rank]}]:"
        template = self._launch.logs.prefix
        if template:
            return Template(template).safe_substitute(role_name=self._launch.role, rank=rank, local_rank=local_rank)
        return f"[{self._launch.role}{local_rank}]:"


def _open_ends(files: OpenedFiles, local_rank: int, *, more: bool = False) -> None:
    places = files.destinations
    for stream in (Std.OUT, Std.ERR):
        path = places.teed(stream, local_rank) or places.path(stream, local_rank)
        if path:
            files.ends[stream, local_rank] = open_log(path, more=more)


def _more_of(places: Destinations, local_rank: int) -> OpenedFiles:
    """The files of one worker, to write on in them. What the process before wrote about its end is no longer true."""
    if error_file := places.error_file(local_rank):
        Path(error_file).unlink(missing_ok=True)
    files = OpenedFiles(places)
    try:
        _open_ends(files, local_rank, more=True)
    except OSError:
        files.close()
        raise
    return files


def _console(stream: Std, descriptor: int | None) -> Console | ReplacedStream:
    """This descriptor; by default the process's own, or what a program that calls us has put in its place."""
    name = "stdout" if stream is Std.OUT else "stderr"
    if descriptor is not None:
        return Console(descriptor, name)
    present = getattr(sys, name)
    if present is None or present is getattr(sys, f"__{name}__"):
        return Console(int(stream), name)
    return ReplacedStream(present, name)
