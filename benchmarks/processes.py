"""Processes that a benchmark starts, what they cost, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

HERE = Path(__file__).parent
LAUNCHERS = {"outlast": ["-m", "outlast", "run"], "torchrun": ["-m", "torch.distributed.run"]}


class Run:
    """A command and all that it starts; as a context manager it leaves nothing behind.

    Its output goes to `log`, so that a benchmark that fails can show it.
    """

    def __init__(self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def tree(self) -> list[psutil.Process]:
        """The command and its descendants, as far as their parents still live."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        return []

    def kill(self) -> None:
        """SIGKILL the whole tree, the command itself first, as a machine that loses its power does."""
        tree = self.tree()
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._popen.wait()
        psutil.wait_procs(tree, timeout=10)

    def check(self) -> None:
        """Raise if the command has ended by itself."""
        if self._popen.poll() is not None:
            raise RuntimeError(
                f"the launcher ended with {self._popen.returncode}; its last lines:\n{self.last_lines()}"
            )

    def last_lines(self) -> str:
        """The end of what it has said."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def launcher(name: str, *args: str) -> list[str]:
    """The command line of `outlast run` or of `torchrun`, in this interpreter."""
    return [sys.executable, *LAUNCHERS[name], *args]


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used so far, of all of its threads, to the nanosecond."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may just have ended
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def memory(pid: int) -> tuple[float, float]:
    """MiB of a process: resident, and its proportional share of pages that it has in common with others."""
    found = {"Rss": 0, "Pss": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in found:
            found[key] = int(rest.split()[0])
    return found["Rss"] / 1024, found["Pss"] / 1024


def until(condition: Callable[[], bool], *, timeout: float, runs: Sequence[Run] = (), what: str) -> None:
    """Await a condition, looking every few milliseconds; raise if it does not come, or a run ends before."""
    deadline = time.monotonic() + timeout
    while not condition():
        for run in runs:
            run.check()
        if time.monotonic() > deadline:
            said = "\n".join(run.last_lines() for run in runs)
            raise TimeoutError(f"no {what} within {timeout:g} s; the last lines:\n{said}")
        time.sleep(0.005)


def machine() -> str:
    """This machine in general words; the load tells how far to trust the numbers."""
    gib, load = psutil.virtual_memory().total / 2**30, os.getloadavg()[0]
    python = sys.version.split()[0]
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, Python {python}, load {load:.1f} at the start"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table, also valid Markdown: the first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])
