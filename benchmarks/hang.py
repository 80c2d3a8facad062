"""From a rank that hangs to its end, and to the first step of the next generation on all ranks.

A DDP training on one node: gloo on CPU. Every step is a heartbeat. The last rank hangs in the midst of training, in one
of two ways: it sleeps for ever, or it holds the interpreter's lock for ever. All launchers have the same timeout.
Outlast and nvidia-resiliency-ext watch heartbeats; torchrun has nothing but the timeout of the process group, with
which the other ranks fail. Counted from the last heartbeat.

    python benchmarks/hang.py [--quick] [--peers]
"""

from __future__ import annotations

import argparse
import math
import os
import random
import select
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import peers
from processes import Run, launcher, machine, table, until
from recovery import _pids_here

PATIENCE = 120.0
TIMEOUT = 5.0  # seconds; of all contenders
OURS = "outlast"
KINDS = ("sleep", "lock")

SCRIPT = """
import ctypes, os, sys, time
from datetime import timedelta
place, beat, timeout = sys.argv[1], sys.argv[2], float(sys.argv[3])
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
if beat == "outlast":
    import outlast
    heartbeat = outlast.heartbeat
elif beat == "nvrx":
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
    heartbeat = client.send_heartbeat
else:
    heartbeat = lambda: None
# Only where it is all that there is: elsewhere it would hide who found the hang.
dist.init_process_group("gloo", timeout=timedelta(seconds=timeout if beat == "none" else 600))
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
life, last = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank() == dist.get_world_size() - 1

def mark(name):
    with open(f"{place}/draft-{os.getpid()}", "w") as file:
        file.write(f"{os.getpid()} {time.monotonic()}")
    os.rename(f"{place}/draft-{os.getpid()}", f"{place}/{name}")

first = True
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    heartbeat()
    if first:
        first = False
        mark(f"stepped-{life}-{dist.get_rank()}")
    for how in ("sleep", "lock"):
        if last and os.path.exists(f"{place}/{how}-{life}"):
            mark(f"hung-{life}")
            while how == "lock":  # a signal ends the sleep, as that of whoever looks where it is
                ctypes.PyDLL(None).sleep(3600)
            time.sleep(3600)
    time.sleep(0.01)
"""


class Contender(NamedTuple):
    """A way to run the job: its command line for so many ranks and hangs, in a directory that has the script."""

    argv: Callable[[int, int, Path], list[str]]
    ready: str = ""  # a line of its log that has to be there before the first hang


def contenders(place: Path | None) -> dict[str, Contender]:
    """Outlast and torchrun; and nvidia-resiliency-ext, if its environment is, or can be made, in this place."""

    def here(name: str, beat: str, *flags: str) -> Callable[[int, int, Path], list[str]]:
        def argv(nproc: int, hangs: int, place: Path) -> list[str]:
            limits = [f"--nproc-per-node={nproc}", f"--max-restarts={4 * hangs}", "--standalone"]
            return launcher(name, *limits, *flags, *_script(place, beat))

        return argv

    ours = (f"--ft-rank-heartbeat-timeout={TIMEOUT}", "--ft-log-level=debug")
    found = {
        OURS: Contender(here("outlast", "outlast", *ours), "zygote is ready"),
        "torchrun, group timeout": Contender(here("torchrun", "none")),
    }
    home = peers.environment("nvidia-resiliency-ext", place) if place is not None else None
    if home is not None:
        name = f"nvidia-resiliency-ext {peers.version('nvidia-resiliency-ext', home)}"

        def ft_launcher(*flags: str) -> Callable[[int, int, Path], list[str]]:
            def argv(nproc: int, hangs: int, place: Path) -> list[str]:
                limit = [f"--ft-rank-heartbeat-timeout={TIMEOUT}", "--ft-initial-rank-heartbeat-timeout=600"]
                return peers.ft_launcher(home, nproc, 4 * hangs, [*limit, *flags, *_script(place, "nvrx")])

            return argv

        found[name] = Contender(ft_launcher())
        found[f"{name}, looks every 0.1 s"] = Contender(ft_launcher("--ft-workload-check-interval=0.1"))
    return found


def _script(place: Path, beat: str) -> list[str]:
    return [str(place / "train.py"), str(place), beat, str(TIMEOUT)]


def hangs(contender: Contender, nproc: int, kind: str, number: int) -> Iterator[tuple[float, float]]:
    """One job; for each hang, the seconds from the last heartbeat to the end of that rank, and to the next step."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "train.py").write_text(SCRIPT)
        run = stack.enter_context(Run(contender.argv(nproc, number, place), log=place / "log"))
        until(lambda: _life(place, nproc, 0.0) is not None, timeout=PATIENCE, runs=[run], what="first step")
        until(lambda: contender.ready in run.log.read_text(errors="replace"), timeout=PATIENCE, what=contender.ready)
        moment = 0.0
        for _ in range(number):
            time.sleep(random.uniform(1.0, 2.0))  # in the midst of training, at no fixed distance from any timer
            life, _ = _life(place, nproc, moment) or (0, 0.0)
            ended_at, hung_at, next_at = _hang(run, place, nproc, kind, life)
            yield ended_at - hung_at, next_at - hung_at
            moment = hung_at


def _hang(run: Run, place: Path, nproc: int, kind: str, life: int) -> tuple[float, float, float]:
    pids = _pids_here(run)
    pid, _ = _read(place / f"stepped-{life}-{nproc - 1}")
    descriptor = os.pidfd_open(pids[int(pid)])
    try:
        (place / f"{kind}-{life}").touch()
        until((place / f"hung-{life}").exists, timeout=PATIENCE, runs=[run], what="hang")
        if not select.select([descriptor], [], [], PATIENCE)[0]:
            raise TimeoutError(f"the rank hangs on after {PATIENCE:g} s:\n{run.last_lines()}")
        ended_at = time.monotonic()
    finally:
        os.close(descriptor)
    _, hung_at = _read(place / f"hung-{life}")
    until(lambda: _life(place, nproc, hung_at) is not None, timeout=PATIENCE, runs=[run], what="recovery")
    recovered = _life(place, nproc, hung_at)
    assert recovered is not None
    return ended_at, hung_at, recovered[1]


def _life(place: Path, nproc: int, since: float) -> tuple[int, float] | None:
    """The first life of which all ranks made their first step after this time, and when the last of them did."""
    lives: dict[int, list[float]] = {}
    for file in place.glob("stepped-*"):
        _, life, _ = file.name.split("-")
        lives.setdefault(int(life), []).append(_read(file)[1])
    whole = [(life, max(times)) for life, times in lives.items() if len(times) == nproc and min(times) > since]
    return min(whole, default=None)


def _read(file: Path) -> tuple[float, float]:
    pid, at = file.read_text().split()
    return int(pid), float(at)


def measure(found: dict[str, Contender], nproc: int, args: argparse.Namespace) -> str:
    """All contenders in turn, for both kinds of hang: the table."""
    rows, ours = [], math.nan
    for kind in KINDS:
        for name, contender in found.items():
            seen: list[tuple[float, float]] = []
            try:
                for end, step in hangs(contender, nproc, kind, args.hangs):  # what came before an error counts
                    seen.append((end, step))
            except (RuntimeError, TimeoutError) as error:
                print(f"{name}, {kind}: {error}\n", flush=True)
            if not seen:
                rows.append([name, kind, "-", "-", "-", "-", "0"])
                continue
            ends, nexts = ([each[n] - TIMEOUT for each in seen] for n in (0, 1))
            if name == OURS:
                ours = statistics.median(nexts)
            spreads = [f"{statistics.median(t):.2f} ({min(t):.2f} to {max(t):.2f})" for t in (ends, nexts)]
            ratio = f"{statistics.median(nexts) / ours:.1f}"
            rows.append([name, kind, *spreads, f"{statistics.median(nexts) + TIMEOUT:.2f}", ratio, str(len(seen))])
            print(rows[-1], flush=True)
    header = [
        "launcher",
        "hang",
        "its end after the timeout, s",
        "next step after the timeout, s",
        "in all",
        "times ours",
    ]
    return f"{nproc} ranks, timeout {TIMEOUT:g} s\n{table([*header, 'hangs'], rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hangs", type=int, default=5, help="in one job")
    parser.add_argument("--quick", action="store_true", help="one hang of each kind")
    parser.add_argument("--peers", action="store_true", help="nvidia-resiliency-ext, too")
    parser.add_argument("--peer-venvs", type=Path, default=peers.DEFAULT_PLACE, help="where it is, or gets, installed")
    parser.add_argument("--only", nargs="+", default=[""], help="contenders whose name begins so, beside Outlast")
    args = parser.parse_args()
    if args.quick:
        args.hangs = 1
    found = contenders(args.peer_venvs if args.peers else None)
    found = {name: each for name, each in found.items() if name == OURS or name.startswith(tuple(args.only))}
    print(f"{machine()}; {args.hangs} hangs of each kind\n", flush=True)
    print(measure(found, args.ranks, args), flush=True)


if __name__ == "__main__":
    main()
