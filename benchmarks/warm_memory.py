"""The memory that workers of one node share when they are forked, against workers that are started one by one.

Private and shared pages as the kernel counts them (PSS: a page that three processes have in common counts a third in
each), summed over the workers and, where there is one, the zygote. The same small DDP training as in recovery.py,
after a few steps and, in the warm case, after one restart, so that all workers are forked ones.

    python benchmarks/warm_memory.py [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

import recovery
from processes import machine, memory, table

OFF = "outlast, --warm-start off"


class Memory(NamedTuple):
    """MiB: what one worker has resident; the sum of the workers' PSS; the zygote's PSS."""

    rss: float
    workers: float
    zygote: float


def held(name: str, nproc: int) -> Memory:
    """One job: what its workers and its zygote hold, once all of them were started the way that is measured."""
    contender = recovery.contenders(None)[name]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run, workers = stack.enter_context(recovery.job(contender, nproc, 1, place))
        _, _, workers = recovery.recover(run, place, workers)
        time.sleep(3)  # some steps, and what a zygote may still have to learn
        pids = {worker.pid for worker in workers}
        zygotes = {process.pid for process in run.tree() if _is_zygote(process)} - pids
        each = [memory(pid) for pid in pids]
        share = sum(memory(pid)[1] for pid in zygotes)
        return Memory(sum(rss for rss, _ in each) / nproc, sum(pss for _, pss in each), share)


def _is_zygote(process: psutil.Process) -> bool:
    return process.environ().get("OUTLAST_STARTUP", "").startswith("zygote")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="two ranks only")
    args = parser.parse_args()
    if args.quick:
        args.ranks = [2]
    print(f"{machine()}; MiB\n", flush=True)
    rows = []
    for nproc in args.ranks:
        cold, warm = held(OFF, nproc), held(recovery.OURS, nproc)
        for name, one in (("one by one", cold), ("forked", warm)):
            total = one.workers + one.zygote
            saved = f"{1 - total / cold.workers:.0%}"
            cells = [one.rss, one.workers, one.zygote, total, total / nproc]
            rows.append([f"{nproc} ranks, {name}", *(f"{cell:.0f}" for cell in cells), saved])
    header = [
        "workers",
        "RSS of a worker",
        "PSS of all workers",
        "PSS of the zygote",
        "PSS in all",
        "per rank",
        "saved",
    ]
    print(table(header, rows))


if __name__ == "__main__":
    main()
