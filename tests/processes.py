"""Commands that tests start, with their output at hand, and the means to find and end all that they started.

Parents die, children daemonise, sessions and process groups change; the environment is what a whole tree
inherits. So every process started from a test carries the variable `TEST_ID`: the id of the test, then `/`
and the number of the command.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

TEST_ID = "OL_TEST_ID"  # not OUTLAST_…: those are settings, and Outlast refuses one that it does not know

PATIENCE = 180.0  # seconds: what happens at all has happened by then, on a machine however busy

_numbers = itertools.count(1)
_started: list[Process] = []


def python() -> str:
    """The interpreter of this environment."""
    return sys.executable


def outlast(
    *args: str | Path, env: Mapping[str, str | None] | None = None, launcher: str | None = None, **popen: Any
) -> Process:
    """Start the `outlast` command line with `args`; `launcher` is Python that does so, after something else."""
    start = ["-m", "outlast"] if launcher is None else ["-c", launcher]
    return Process([python(), *start, *args], env=env, **popen)


class Process:
    """A started command. Its standard output and error are read as they come, as one stream of lines.

    `env` goes on top of this process's own environment; None takes a variable away. The command is the
    leader of its own session, so that a Ctrl-C meant for the tests does not reach it. As a context manager
    it kills the whole tree at the end. `title` names it in messages, instead of the command line.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        title: str | None = None,
        **popen: Any,
    ) -> None:
        self.argv = [str(word) for word in argv]
        self.title = title or " ".join(self.argv)
        self.mark = f"{os.environ.get(TEST_ID, os.getpid())}/{next(_numbers)}"
        # A Python that writes to a pipe keeps its lines back; a test that awaits one would wait for ever.
        changes = {"PYTHONUNBUFFERED": "1", **(env or {}), TEST_ID: self.mark}
        popen = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        } | popen
        self._lines: list[str] = []
        self._seen = 0  # lines up to here belong to earlier calls of wait_for
        self._news = threading.Condition()
        self._popen: subprocess.Popen[Any] = subprocess.Popen(
            self.argv, env={k: v for k, v in {**os.environ, **changes}.items() if v is not None}, **popen
        )
        self.stdin = self._popen.stdin
        streams = [stream for stream in (self._popen.stdout, self._popen.stderr) if stream]
        self._open = len(streams)
        self._readers = [threading.Thread(target=self._read, args=(s,), daemon=True) for s in streams]
        for reader in self._readers:
            reader.start()
        _started.append(self)

    def __repr__(self) -> str:
        return f"<Process {self.pid} {self.title!r}>"

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The command's own process id, also inside a host."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, as subprocess gives it (-9: killed with SIGKILL); None while it runs."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        """Whether the command itself has not ended yet."""
        return self.returncode is None

    @property
    def lines(self) -> list[str]:
        """The lines written so far, without their ends."""
        with self._news:
            return list(self._lines)

    @property
    def output(self) -> str:
        """All that was written so far."""
        return "".join(f"{line}\n" for line in self.lines)

    def wait_for(self, pattern: str, timeout: float = PATIENCE, *, anywhere: bool = False) -> re.Match[str]:
        """Await a line in which `pattern` is found, and return the match.

        The search goes on after the line that the last call matched: calls in a row follow the story in its
        order. `anywhere` looks through all lines from the first, and leaves that place where it is: for
        lines of which the order is open, such as those of several workers.
        """
        deadline = time.monotonic() + timeout
        regex = re.compile(pattern)
        with self._news:
            at = 0 if anywhere else self._seen
            while True:
                while at < len(self._lines):
                    match = regex.search(self._lines[at])
                    at += 1
                    if match:
                        self._seen = self._seen if anywhere else at
                        return match
                if not self._open:
                    raise self._failure(f"ended without a line that matches {pattern!r}")
                if (left := deadline - time.monotonic()) <= 0:
                    raise self._failure(f"wrote no line that matches {pattern!r} within {timeout:g} s")
                self._news.wait(left)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Await the end of the command and return its exit code; its output is complete then."""
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {timeout:g} s") from None
        for reader in self._readers:
            # Bounded, because a process that the command left behind may hold the pipe open.
            reader.join(30)
        if self.stdin:
            with suppress(BrokenPipeError):
                self.stdin.close()
        return code

    def signal(self, sig: int) -> None:
        """Send `sig` to the command itself and to nothing else; `signal(SIGKILL)` leaves its children."""
        self._popen.send_signal(sig)

    def tree(self) -> list[int]:
        """The process ids of the command and of all that it started, orphans included."""
        return marked(lambda mark: mark == self.mark)

    def kill(self) -> None:
        """SIGKILL the command and all that it started, and await their end."""
        kill_all(self.tree)
        if self.running:  # it may have cleared its environment
            self._popen.kill()
        self.wait()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
                    self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()

    def _failure(self, what: str) -> AssertionError:
        state = "still runs" if self.running else f"exit code {self.returncode}"
        last = "\n".join(f"  | {line}" for line in self.lines[-60:]) or "  | (no output)"
        return AssertionError(f"{self.title}\n{what} ({state}); its last lines:\n{last}")


def forget(test_id: str) -> None:
    """Kill and take leave of every command that a test started; one that is not waited for stays a zombie."""
    for process in [process for process in _started if process.mark.startswith(test_id)]:
        if process.running:
            process.kill()
        process.wait()
        _started.remove(process)


def marked(belongs: Callable[[str], bool]) -> list[int]:
    """The processes whose test id `belongs` accepts; those that have ended and await their parent are not."""
    key = f"{TEST_ID}=".encode()
    found = []
    for pid in _all_pids():
        environ = _environ(pid)
        if key in environ:
            values = [entry[len(key) :] for entry in environ.split(b"\0") if entry.startswith(key)]
            if values and belongs(values[0].decode(errors="replace")):
                found.append(pid)
    return found


def in_namespace(kind: str, path: Path) -> list[int]:
    """The processes in the namespace that `path` holds; `kind` as in /proc/PID/ns ("net", "uts", …)."""
    try:
        wanted = path.stat()
    except FileNotFoundError:
        return []
    found = []
    for pid in _all_pids():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            here = Path(f"/proc/{pid}/ns/{kind}").stat()
            if (here.st_dev, here.st_ino) == (wanted.st_dev, wanted.st_ino):
                found.append(pid)
    return found


def await_exit(pids: Iterable[int], timeout: float) -> list[int]:
    """Await the end of processes, ours or not; return those that have not ended in time."""
    deadline = time.monotonic() + timeout
    poll, pidfds = select.poll(), {}
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                pidfds[fd := os.pidfd_open(pid)] = pid
                poll.register(fd, select.POLLIN)
        alive = dict(pidfds)
        while alive and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                poll.unregister(fd)
                del alive[fd]
        return list(alive.values())
    finally:
        for fd in pidfds:
            os.close(fd)


def kill_all(find: Callable[[], list[int]], timeout: float = PATIENCE) -> None:
    """SIGKILL what `find` finds, again and again until it finds nothing: a fork may run ahead of a kill."""
    deadline = time.monotonic() + timeout
    while pids := find():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await_exit(pids, deadline - time.monotonic())
        if time.monotonic() > deadline:
            raise AssertionError(f"alive {timeout:g} s after SIGKILL: {', '.join(map(describe, find()))}")


def alive(pid: int) -> bool:
    """Whether a process has not ended; one that its parent, or init, has not taken leave of yet has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def arguments(pid: int) -> list[bytes]:
    """The command line of a process; none if it has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def descriptors() -> set[str]:
    """Those that this process has open. What earlier tests left to the collector is not among them."""
    gc.collect()
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def describe(pid: int) -> str:
    """One process for a message: its id and its command line."""
    return f"{pid} ({b' '.join(arguments(pid)).decode(errors='replace').strip()[:200] or 'just ended'})"


def _environ(pid: int) -> bytes:
    """The environment of a process; empty if it has ended, or is another user's or the kernel's."""
    place = f"/proc/{pid}"
    try:
        # In the middle of an exec a process has neither environment nor command line; it has both at once.
        for _ in range(100):
            if environ := _content(f"{place}/environ"):
                return environ
            Path(f"{place}/exe").readlink()  # fails for the ended and for the kernel's
            if _content(f"{place}/cmdline"):
                return _content(f"{place}/environ")
            time.sleep(0.001)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return b""


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
