"""Scripts as people write them, compiled: from the start to the first step, and from a fault to the next step.

    python benchmarks/real_scripts.py --scripts compiled huggingface --kills 3

One rank on one GPU (or CPU) by default. Launchers take turns; the compiler's caches are shared, and warm after the
first round, which is not counted (`--cold` shows it). After each fault the benchmark waits, as a training would, before
the next one: what a launcher prepares in the meantime is ready then, or is not.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from processes import HERE, Run, launcher, machine, table, until

PATIENCE = 400.0
LAUNCHERS = {
    "outlast, in place": ("outlast", ["--ft-in-place-timeout=10"]),
    "outlast, --warm-cuda": ("outlast", ["--warm-cuda=on"]),
    "outlast": ("outlast", []),
    "torchrun": ("torchrun", ["--monitor-interval=0.1"]),
}
SCRIPTS = {
    "compiled": ["compiled.py"],
    "compiled, DDP": ["compiled.py", "--ddp"],
    "set-up of 5 s": ["compiled.py", "--setup=5"],
    "sharded": ["sharded.py"],
    "huggingface": ["huggingface.py"],
    "lightning": ["lightning_module.py"],
}


class Mark(NamedTuple):
    """A step that a worker has done."""

    life: int
    step: int
    at: float
    pid: int


class Figures(NamedTuple):
    """Seconds of one job."""

    start: float
    faults: list[float]


def measure(title: str, command: list[str], ranks: int, kills: int, pause: float, cold: bool) -> Figures:
    """Start a job, disturb it, and read its marks. Without `cold` its first fault is not counted."""
    name, flags = LAUNCHERS[title]
    in_place = title == "outlast, in place"
    script, *rest = command
    with tempfile.TemporaryDirectory() as directory:
        marks, log = Path(directory) / "marks", Path(directory) / "log"
        marks.touch()

        def done(after: float) -> list[Mark]:
            lines = [line.split() for line in marks.read_text().splitlines()]
            found = [Mark(int(life), int(step), float(at), int(pid)) for life, step, at, pid in lines]
            return [mark for mark in found if mark.at > after]

        extra = ["--in-place"] if in_place else []
        restarts = [f"--nproc-per-node={ranks}", f"--max-restarts={kills + 2}"]
        argv = launcher(name, *restarts, *flags, str(HERE / "scripts" / script), str(marks), *rest, *extra)
        began = time.monotonic()
        with Run(argv, log=log) as job:
            until(lambda: bool(done(0)), timeout=PATIENCE, runs=[job], what="first step")
            start, faults = done(0)[0].at - began, []
            for life in range(kills + (0 if cold else 1)):
                time.sleep(pause)
                victim = done(0)[-1]
                at = time.monotonic()
                os.kill(victim.pid, signal.SIGUSR1 if in_place else signal.SIGKILL)

                def again(life: int = life, at: float = at) -> bool:
                    return any(mark.life > life for mark in done(at))

                until(again, timeout=PATIENCE, runs=[job], what=f"step after fault {life + 1}")
                faults.append(min(mark.at for mark in done(at) if mark.life > life) - at)
            said = [
                line for line in log.read_text(errors="replace").splitlines() if "zygote" in line or "spare" in line
            ]
    for line in dict.fromkeys(said):
        print("   ", line, flush=True)
    return Figures(start, faults if cold else faults[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", nargs="+", default=list(SCRIPTS), choices=list(SCRIPTS))
    parser.add_argument("--launchers", nargs="+", default=list(LAUNCHERS), choices=list(LAUNCHERS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--pause", type=float, default=25.0, help="seconds of training before each fault")
    parser.add_argument("--cold", action="store_true", help="count the first fault, too")
    options = parser.parse_args()
    print(machine(), flush=True)
    rows = []
    for script in options.scripts:
        slowest = 0.0
        for title in reversed(LAUNCHERS):
            if title not in options.launchers or (
                title == "outlast, in place" and "compiled.py" not in SCRIPTS[script]
            ):
                continue
            figures = measure(title, SCRIPTS[script], options.ranks, options.kills, options.pause, options.cold)
            median = statistics.median(figures.faults)
            slowest = slowest or median
            spread = f"{min(figures.faults):.2f} to {max(figures.faults):.2f}"
            row = [script, title, f"{figures.start:.1f}", f"{median:.2f}", spread, f"{slowest / median:.1f}"]
            rows.append(row)
            print(*row, flush=True)
    print(table(["script", "launcher", "start, s", "fault to next step, s", "range, s", "times faster"], rows))


if __name__ == "__main__":
    main()
