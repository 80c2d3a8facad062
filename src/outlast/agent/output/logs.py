"""Where the output and the error files of a job's workers go: torchrun's layout and torchrun's rules.

    <log_dir>/<job>_<random>/attempt_<generation - 1>/<local rank>/{stdout.log, stderr.log, error.json}

A redirected stream is the worker's own file. A tee'd one is a pipe that this process reads (`tee.py`).
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Protocol

from outlast.agent.output.tee import Console, LogFile, ReplacedStream, Tee, open_log, open_pipe
from outlast.agent.processes.workers import Streams
from outlast.launch import Launch, Logs, Std
from outlast.protocol.generations import Assignment

logger = logging.getLogger("agent")

_HINTS = {
    errno.ENOSPC: "free some space, or choose another --log-dir",
    errno.EDQUOT: "free some of your quota, or choose another --log-dir",
    errno.EACCES: "choose a --log-dir that you may write to",
    errno.EPERM: "choose a --log-dir that you may write to",
    errno.EROFS: "choose a --log-dir that can be written to",
    errno.ENOTDIR: "a part of this path is a file: choose another --log-dir",
    errno.EEXIST: "this is a file: choose another --log-dir",
    errno.EMFILE: "raise ulimit -n",
}


class LogsNotWritable(OSError):
    """The logs cannot be written. The message is one line that names the path and says what to change."""


@dataclass
class Destinations:
    """The files of one generation by local rank, with the meaning of torch's `LogsDest`.

    "" among `stdouts` and `stderrs` is the console. A stream in `tee_stdouts` or `tee_stderrs` goes to both.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogLayout(Protocol):
    """What decides on the files: ours, or a user's `--logs-specs`."""

    @property
    def directory(self) -> str:
        """Where the job's files lie."""

    def destinations(self, assignment: Assignment, environments: Sequence[dict[str, str]]) -> Destinations:
        """The files of a generation, their directories made."""

    def close(self, success: bool) -> None:
        """The job is over."""


class JobLogs:
    """The logs of this node's workers, over all generations of the job.

        streams = logs.open(assignment, environments)
        group = WorkerGroup.start(commands, environments, streams, on_exit)
        await group.stop()
        logs.finish()

    Raises `LogsNotWritable` when nothing can be written at all, and ValueError for unknown `--logs-specs`.
    """

    def __init__(self, launch: Launch, *, stdout: int | None = None, stderr: int | None = None) -> None:
        self._launch = launch
        self._outputs = {Std.OUT: stdout, Std.ERR: stderr}
        self._consoles: dict[Std, Console | ReplacedStream] = {}
        self._tees: list[Tee] = []
        self._filtered: dict[Std, LogFile] = {}
        self._layout: LogLayout
        if launch.logs.specs is None:
            self._layout = _DefaultLayout(launch)
        else:
            self._layout = _SpecsLayout(launch.logs, launch.logs.specs)

    @property
    def directory(self) -> str:
        """Where this job's files lie, to be shown to the user."""
        return self._layout.directory

    @property
    def asked_for(self) -> bool:
        """Whether the user wants files at all: else there are only those that workers may leave."""
        logs = self._launch.logs
        return bool(logs.log_dir or logs.specs or _any_stream(logs.redirects) or _any_stream(logs.tee))

    def open(self, assignment: Assignment, environments: Sequence[dict[str, str]]) -> list[Streams]:
        """Make the files of a generation, by local rank. The caller owns the streams.

        Each environment gets its TORCHELASTIC_ERROR_FILE here. What the generation before had tee'd is finished.
        """
        self.finish()
        streams: list[Streams] = []
        try:
            files = self._layout.destinations(assignment, environments)
            self._open_filtered(files)
            for local_rank, environment in enumerate(environments):
                error_file = files.error_files.get(local_rank, "")
                error_file = "" if error_file == os.devnull else error_file
                environment["TORCHELASTIC_ERROR_FILE"] = error_file
                streams.append(self._streams(files, assignment, local_rank, error_file))
        except OSError as error:
            for opened in streams:
                opened.close()
            self.finish()
            raise _not_writable(error, self.directory) from error
        return streams

    def drain(self) -> None:
        """Have in the files what workers have written so far."""
        for tee in self._tees:
            tee.drain()

    def finish(self) -> None:
        """The generation's workers are gone: write out what is left in their pipes. May be called again."""
        for tee in self._tees:
            tee.close()
        self._tees.clear()
        for filtered in self._filtered.values():
            filtered.close()
        self._filtered.clear()

    async def shown(self) -> None:
        """Wait until the console has all that workers have written: for as long as its reader takes."""
        self.finish()
        for console in self._consoles.values():
            if console.owes:
                shown = asyncio.Event()
                console.when_room(shown.set)
                await shown.wait()

    def owes(self) -> str:
        """What a console has not shown yet, for people; nothing, if it has shown all."""
        owing = [(console.owes, console.name) for console in self._consoles.values() if console.owes]
        return " and ".join(f"{size / 1e6:.1f} MB on {name}" for size, name in owing)

    def close(self, success: bool) -> None:
        """The job is over. After success, files that nobody asked for are removed."""
        self.finish()
        for console in self._consoles.values():
            console.close()
        self._consoles.clear()
        self._layout.close(success)

    def _open_filtered(self, files: Destinations) -> None:
        wanted = self._launch.logs
        if wanted.stdout_filters and files.filtered_stdout:
            self._filtered[Std.OUT] = LogFile(files.filtered_stdout)
        if wanted.stderr_filters and files.filtered_stderr:
            self._filtered[Std.ERR] = LogFile(files.filtered_stderr)

    def _streams(self, files: Destinations, assignment: Assignment, local_rank: int, error_file: str) -> Streams:
        prefix = self._prefix(assignment.first_rank + local_rank, local_rank)
        stdout = self._end(Std.OUT, files.stdouts[local_rank], files.tee_stdouts.get(local_rank, ""), prefix)
        try:
            stderr = self._end(Std.ERR, files.stderrs[local_rank], files.tee_stderrs.get(local_rank, ""), prefix)
        except OSError:
            Streams(stdout, None, error_file).close()
            raise
        return Streams(stdout, stderr, error_file, _files(files, local_rank))

    def _end(self, stream: Std, path: str, tee: str, prefix: str) -> int | None:
        """The worker's end of one of its streams; None is the console itself."""
        if not tee or tee == os.devnull:
            return open_log(path) if path else None
        file = LogFile(tee)
        try:
            ours, workers = open_pipe()
        except OSError:
            file.close()
            raise
        needles = self._launch.logs.stdout_filters if stream is Std.OUT else self._launch.logs.stderr_filters
        self._tees.append(
            Tee(
                ours,
                file=file,
                console=self._console(stream),
                prefix=prefix,
                filtered=self._filtered.get(stream),
                needles=needles,
            )
        )
        return workers

    def _console(self, stream: Std) -> Console | ReplacedStream:
        if stream not in self._consoles:
            self._consoles[stream] = _console(stream, self._outputs[stream])
        return self._consoles[stream]

    def _prefix(self, rank: int, local_rank: int) -> str:
        template = self._launch.logs.prefix
        if template:
            return Template(template).safe_substitute(role_name=self._launch.role, rank=rank, local_rank=local_rank)
        return f"[{self._launch.role}{local_rank}]:"


def _console(stream: Std, descriptor: int | None) -> Console | ReplacedStream:
    """This descriptor; by default the process's own, or what a program that calls us has put in its place."""
    name = "stdout" if stream is Std.OUT else "stderr"
    if descriptor is not None:
        return Console(descriptor, name)
    present = getattr(sys, name)
    if present is None or present is getattr(sys, f"__{name}__"):
        return Console(int(stream), name)
    return ReplacedStream(present, name)


class _DefaultLayout:
    def __init__(self, launch: Launch) -> None:
        self._logs = launch.logs
        self._temporary = ""
        self.directory = os.devnull
        if launch.logs.log_dir == os.devnull:
            return
        log_dir = launch.logs.log_dir
        try:
            if not log_dir:
                log_dir = self._temporary = tempfile.mkdtemp(prefix="outlast_")
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self.directory = tempfile.mkdtemp(prefix=f"{launch.job.replace(os.sep, '_')}_", dir=log_dir)
            _probe(Path(self.directory))
        except OSError as error:
            for made in {self.directory, self._temporary} - {os.devnull, ""}:
                shutil.rmtree(made, ignore_errors=True)
            raise _not_writable(error, log_dir or "the temporary directory") from error

    def destinations(self, assignment: Assignment, environments: Sequence[dict[str, str]]) -> Destinations:
        nproc = len(environments)
        if self.directory == os.devnull:
            console = dict.fromkeys(range(nproc), "")
            return Destinations(stdouts=dict(console), stderrs=dict(console), error_files=dict(console))
        attempt = Path(self.directory, f"attempt_{assignment.generation - 1}")
        shutil.rmtree(attempt, ignore_errors=True)
        attempt.mkdir()
        files = Destinations(
            filtered_stdout=str(attempt / "filtered_stdout.log"),
            filtered_stderr=str(attempt / "filtered_stderr.log"),
        )
        for local_rank in range(nproc):
            own = attempt / str(local_rank)
            own.mkdir()
            files.error_files[local_rank] = str(own / "error.json")
            self._place(Std.OUT, local_rank, str(own / "stdout.log"), files.stdouts, files.tee_stdouts)
            self._place(Std.ERR, local_rank, str(own / "stderr.log"), files.stderrs, files.tee_stderrs)
        return files

    def _place(self, stream: Std, local_rank: int, path: str, paths: dict[int, str], tees: dict[int, str]) -> None:
        tee = bool(_of_rank(self._logs.tee, local_rank) & stream)
        redirected = bool(_of_rank(self._logs.redirects, local_rank) & stream)
        shown = not self._logs.ranks or local_rank in self._logs.ranks
        if tee and shown:
            tees[local_rank] = path
        if tee or redirected:
            paths[local_rank] = path
        else:
            paths[local_rank] = "" if shown else os.devnull

    def close(self, success: bool) -> None:
        if not self._temporary:
            return
        # Redirected output was asked for, wherever it landed; error files of a success are of no use.
        useless = success and not _any_stream(self._logs.redirects)
        if useless or not any(path.is_file() and path.stat().st_size for path in Path(self._temporary).rglob("*")):
            shutil.rmtree(self._temporary, ignore_errors=True)
        else:
            logger.info("the logs are in %s (--log-dir chooses another place)", self.directory)


class _SpecsLayout:
    """A user's own subclass of torch's `LogsSpecs`: at their wish, and only then, torch is imported here."""

    def __init__(self, logs: Logs, name: str) -> None:
        from importlib import metadata  # slow to import, and hardly anybody needs it

        found = metadata.entry_points(group="torchrun.logs_specs", name=name)
        if not found:
            raise ValueError(f"Could not find entrypoint under 'torchrun.logs_specs[{name}]' key")
        specs = next(iter(found)).load()
        torch_std = importlib.import_module("torch.distributed.elastic.multiprocessing").Std
        self._specs = specs(
            log_dir=logs.log_dir,
            redirects=_as_torch(logs.redirects, torch_std),
            tee=_as_torch(logs.tee, torch_std),
            local_ranks_filter=set(logs.ranks) or None,
        )

    @property
    def directory(self) -> str:
        return str(self._specs.root_log_dir)

    def destinations(self, assignment: Assignment, environments: Sequence[dict[str, str]]) -> Destinations:  # noqa: ARG002
        found: Any = self._specs.reify(dict(enumerate(environments)))
        return Destinations(
            stdouts=dict(found.stdouts),
            stderrs=dict(found.stderrs),
            tee_stdouts=dict(found.tee_stdouts),
            tee_stderrs=dict(found.tee_stderrs),
            error_files=dict(found.error_files),
            filtered_stdout=found.filtered_stdout,
            filtered_stderr=found.filtered_stderr,
        )

    def close(self, success: bool) -> None:
        """Its files are the user's."""


def _files(files: Destinations, local_rank: int) -> tuple[str, ...]:
    paths = (
        files.tee_stdouts.get(local_rank) or files.stdouts[local_rank],
        files.tee_stderrs.get(local_rank) or files.stderrs[local_rank],
    )
    return tuple(path for path in paths if path not in ("", os.devnull))


def _as_torch(streams: Mapping[int, Std] | Std, torch_std: Any) -> Any:
    if isinstance(streams, Std):
        return torch_std(int(streams))
    return {local_rank: torch_std(int(stream)) for local_rank, stream in streams.items()}


def _of_rank(streams: Mapping[int, Std] | Std, local_rank: int) -> Std:
    return streams if isinstance(streams, Std) else streams.get(local_rank, Std.NONE)


def _any_stream(streams: Mapping[int, Std] | Std) -> bool:
    return bool(streams) if isinstance(streams, Std) else any(streams.values())


def _probe(directory: Path) -> None:
    """Find a full disk now: directories and empty files can still be made on one."""
    probe = directory / ".probe"
    try:
        probe.write_bytes(bytes(4096))
    finally:
        with suppress(OSError):
            probe.unlink()


def _not_writable(error: OSError, path: str) -> LogsNotWritable:
    hint = _HINTS.get(error.errno or 0, "choose another --log-dir")
    return LogsNotWritable(f"cannot write logs under {error.filename or path}: {error.strerror}; {hint}")
