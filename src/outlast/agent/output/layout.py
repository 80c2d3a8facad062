"""Which files a job's workers write to: torchrun's layout, or the user's own `--logs-specs`. Blocking calls."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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

    def path(self, stream: Std, local_rank: int) -> str:
        """The file of a stream; "" is the console."""
        return (self.stdouts if stream is Std.OUT else self.stderrs)[local_rank]

    def teed(self, stream: Std, local_rank: int) -> str:
        """The file of a stream that goes to the console as well; "" if it does not."""
        path = (self.tee_stdouts if stream is Std.OUT else self.tee_stderrs).get(local_rank, "")
        return "" if path == os.devnull else path

    def error_file(self, local_rank: int) -> str:
        """Where a worker leaves what it failed of; "" if nowhere."""
        path = self.error_files.get(local_rank, "")
        return "" if path == os.devnull else path

    def filtered(self, stream: Std) -> str:
        """The file of the lines that match a filter."""
        return self.filtered_stdout if stream is Std.OUT else self.filtered_stderr

    def logs(self, local_rank: int) -> tuple[str, ...]:
        """The files in which a worker's output can be read."""
        paths = (
            self.tee_stdouts.get(local_rank) or self.stdouts[local_rank],
            self.tee_stderrs.get(local_rank) or self.stderrs[local_rank],
        )
        return tuple(path for path in paths if path not in ("", os.devnull))


class LogLayout(Protocol):
    """What decides on the files: ours, or a user's `--logs-specs`."""

    @property
    def directory(self) -> str:
        """Where the job's files lie."""

    def destinations(self, assignment: Assignment, environments: Sequence[dict[str, str]]) -> Destinations:
        """The files of a generation, their directories made."""

    def close(self, success: bool) -> None:
        """The job is over."""


class DefaultLayout:
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
            raise not_writable(error, log_dir or "the temporary directory") from error

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
        useless = success and not any_stream(self._logs.redirects)
        if useless or not any(_says_something(path) for path in Path(self._temporary).rglob("*")):
            shutil.rmtree(self._temporary, ignore_errors=True)
        else:
            logger.info("the logs are in %s (--log-dir chooses another place)", self.directory)


class SpecsLayout:
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


def _as_torch(streams: Mapping[int, Std] | Std, torch_std: Any) -> Any:
    if isinstance(streams, Std):
        return torch_std(int(streams))
    return {local_rank: torch_std(int(stream)) for local_rank, stream in streams.items()}


def _of_rank(streams: Mapping[int, Std] | Std, local_rank: int) -> Std:
    return streams if isinstance(streams, Std) else streams.get(local_rank, Std.NONE)


def any_stream(streams: Mapping[int, Std] | Std) -> bool:
    return bool(streams) if isinstance(streams, Std) else any(streams.values())


def _says_something(path: Path) -> bool:
    return not path.name.startswith(".") and path.is_file() and path.stat().st_size > 0


def _probe(directory: Path) -> None:
    """Find a full disk now: directories and empty files can still be made on one."""
    probe = directory / ".probe"
    try:
        probe.write_bytes(bytes(4096))
    finally:
        with suppress(OSError):
            probe.unlink()


def not_writable(error: OSError, path: str) -> LogsNotWritable:
    hint = _HINTS.get(error.errno or 0, "choose another --log-dir")
    return LogsNotWritable(f"cannot write logs under {error.filename or path}: {error.strerror}; {hint}")
