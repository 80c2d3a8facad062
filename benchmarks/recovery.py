"""From kill -9 of one worker to the first step of the next generation on all ranks.

A DDP training on one node: gloo on CPU, NCCL where there is a GPU (then one rank per GPU: --ranks 1). In every round
each launcher runs the same job, and loses a worker several times in it. The workers themselves note when their script
begins, when its imports are done, when the process group stands and when the first step is done, so that the table
shows where the time goes. The floor is fork_alone.py; the peers (--peers) are in peers.py.

    python benchmarks/recovery.py [--quick] [--peers]

With --state GIB the training has a state of that size, and its first step comes after it has that back, whole: Outlast
takes a snapshot after every step and restores it from memory, the others torch.save it after every 20th step and
torch.load it from the page cache.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import select
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import peers
from processes import HERE, Run, launcher, machine, table, until

PATIENCE = 90.0  # more than the 61 s after which nvidia-resiliency-ext gives up on a rank that waits in gloo
PHASES = ("notice, stop", "form, start", "imports", "process group", "first step", "total")
OURS, FLOOR = "outlast", "fork alone (the floor)"
ATTEMPTS = 3  # jobs in a round: one that is lost to a kill is followed by another
SPARE_RESTARTS = 4  # for one kill: a launcher that needs several tries is not stopped, it takes longer

SCRIPT = """
import os, sys, time
marks = [time.monotonic()]
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
marks.append(time.monotonic())
device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
marks.append(time.monotonic())
model = DistributedDataParallel(torch.nn.Linear(64, 64, device=device))
optimizer = torch.optim.AdamW(model.parameters())
life, first = os.environ["TORCHELASTIC_RESTART_COUNT"], True
# restore
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64, device=device)).square().mean().backward()
    optimizer.step()
    if first:
        first = False
        marks.append(time.monotonic())
        draft = f"{sys.argv[1]}/draft-{os.getpid()}"
        with open(draft, "w") as file:
            file.write(" ".join(map(str, [os.getpid(), *marks])))
        os.rename(draft, f"{sys.argv[1]}/{life}-{dist.get_rank()}")
    # save
    time.sleep(0.01)
"""

RESTORE = """
pieces = {str(n): torch.full((int(GIB * 2**24),), float(n)) for n in range(16)}
state, path, step = {"model": model, "optim": optimizer, **pieces}, f"{sys.argv[1]}/state", 0
ours = "OUTLAST_ARENA" in os.environ
if ours:
    import outlast
    checkpointer = outlast.Checkpointer(path)
    step = checkpointer.restore(state)
    pieces = {name: state[name] for name in pieces}
elif os.path.exists(path):
    saved = torch.load(path, mmap=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optim"])
    for name, piece in pieces.items():
        piece.copy_(saved["pieces"][name])
    step = saved["step"]
assert all(piece[-1] == int(name) + step for name, piece in pieces.items()), "this is not what was saved"
"""
SAVE = """
    step += 1
    for piece in pieces.values():
        piece[-1] += 1
    if ours:
        checkpointer.save(step, state)
    elif dist.get_rank() == 0 and step % 20 == 1:
        now = {"model": model.state_dict(), "optim": optimizer.state_dict(), "pieces": pieces, "step": step}
        torch.save(now, path + ".draft")
        os.rename(path + ".draft", path)
"""


def script(gib: float) -> str:
    """The training, with a state of this size, if any."""
    if not gib:
        return SCRIPT
    return SCRIPT.replace("# restore", RESTORE.replace("GIB", str(gib))).replace("    # save", SAVE)


class Marks(NamedTuple):
    """What one worker noted, in the order in which it happened; the pid is the one that it sees itself."""

    pid: int
    begun: float
    imported: float
    grouped: float
    stepped: float


class Contender(NamedTuple):
    """A way to run the job: its command line for so many ranks and kills, in a directory that has the script."""

    argv: Callable[[int, int, Path], list[str]]
    ready: str = ""  # a line of its log that has to be there before the first kill
    again: str = ""  # one that has to be there once more before every kill


def contenders(place: Path | None) -> dict[str, Contender]:
    """Outlast, torchrun, the floor; and the peers whose environments are, or can be made, in this place."""

    def here(name: str, *flags: str) -> Callable[[int, int, Path], list[str]]:
        def argv(nproc: int, kills: int, place: Path) -> list[str]:
            limits = [f"--nproc-per-node={nproc}", f"--max-restarts={SPARE_RESTARTS * kills}"]
            return launcher(name, *limits, "--standalone", *flags, *_script(place))

        return argv

    def floor(nproc: int, _kills: int, place: Path) -> list[str]:
        return [sys.executable, str(HERE / "fork_alone.py"), str(nproc), *_script(place)]

    found = {
        FLOOR: Contender(floor),
        OURS: Contender(here("outlast", "--ft-log-level=debug"), "zygote is ready"),
        "outlast, --warm-start off": Contender(here("outlast", "--warm-start=off")),
        "torchrun": Contender(here("torchrun")),
    }
    if Path("/dev/nvidiactl").exists():
        spares = here("outlast", "--ft-log-level=debug", "--warm-cuda=on")
        found["outlast, --warm-cuda"] = Contender(spares, again="spare workers are ready")
    if place is not None:
        found |= _peers(place)
    return found


def _peers(place: Path) -> dict[str, Contender]:
    def dlrover(home: Path, nproc: int, kills: int, place: Path) -> list[str]:
        return peers.dlrover(home, nproc, SPARE_RESTARTS * kills, _script(place))

    def ft_launcher(home: Path, nproc: int, kills: int, place: Path) -> list[str]:
        return peers.ft_launcher(home, nproc, SPARE_RESTARTS * kills, _script(place))

    found = {}
    home = peers.environment("dlrover", place)
    if home is not None:
        found[f"DLRover {peers.version('dlrover', home)}"] = Contender(partial(dlrover, home))
    home = peers.environment("nvidia-resiliency-ext", place)
    if home is not None:
        name = f"nvidia-resiliency-ext {peers.version('nvidia-resiliency-ext', home)}"
        found[name] = Contender(partial(ft_launcher, home))
        found[f"{name}, in process"] = Contender(partial(peers.in_process, home))
    return found


def _script(place: Path) -> list[str]:
    return [str(place / "train.py"), str(place)]


@contextmanager
def job(
    contender: Contender, nproc: int, kills: int, place: Path, text: str = SCRIPT
) -> Iterator[tuple[Run, list[Marks]]]:
    """The job, once it trains and is ready for its first loss, with its workers."""
    (place / "train.py").write_text(text)
    with Run(contender.argv(nproc, kills, place), log=place / "log") as run:
        until(lambda: bool(_since(0, place, nproc)), timeout=PATIENCE, runs=[run], what="first step")
        until(lambda: contender.ready in run.log.read_text(errors="replace"), timeout=PATIENCE, what=contender.ready)
        yield run, _since(0, place, nproc)


def recoveries(contender: Contender, nproc: int, kills: int, text: str = SCRIPT) -> Iterator[list[float]]:
    """One job; for each kill, the seconds that each phase took on the slowest rank, and in all."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run, workers = stack.enter_context(job(contender, nproc, kills, place, text))
        for _ in range(kills):
            if contender.again:
                told = partial(_said_of_these, run, contender.again)
                until(told, timeout=PATIENCE, runs=[run], what=contender.again)
            time.sleep(random.uniform(1.0, 1.5))  # in the midst of training, at no fixed distance from any timer
            killed_at, gone_at, workers = recover(run, place, workers)
            times = zip(*(marks[1:] for marks in workers), strict=True)
            ends = [gone_at, *(max(each) for each in times)]
            phases = [end - before for before, end in zip([killed_at, *ends], ends, strict=False)]
            yield [*phases, ends[-1] - killed_at]


def _said_of_these(run: Run, what: str) -> bool:
    """Whether the launcher said so since it started the workers that are there now."""
    return what in run.log.read_text(errors="replace").rpartition("started rank")[2]


def recover(run: Run, place: Path, workers: list[Marks]) -> tuple[float, float, list[Marks]]:
    """Kill the last rank. When that was, when the last of its peers was gone, and the workers that came after them."""
    pids = _pids_here(run)
    with ExitStack() as stack:
        peers_left = []
        for worker in workers[:-1]:
            peers_left.append(os.pidfd_open(pids[worker.pid]))
            stack.callback(os.close, peers_left[-1])
        killed_at = gone_at = time.monotonic()
        os.kill(pids[workers[-1].pid], signal.SIGKILL)

        def recovered() -> bool:
            nonlocal gone_at
            for ended in select.select(peers_left, [], [], 0)[0]:
                gone_at = time.monotonic()
                peers_left.remove(ended)
            return bool(_since(killed_at, place, len(workers)))

        until(recovered, timeout=PATIENCE, runs=[run], what="recovery")
    return killed_at, gone_at, _since(killed_at, place, len(workers))


def _pids_here(run: Run) -> dict[int, int]:
    """Every process of the run: by the pid that it has in its own eyes, its pid in ours."""
    pids = {}
    for process in run.tree():
        status = Path(f"/proc/{process.pid}/status").read_text()
        inside = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
        pids[int(inside)] = process.pid
    return pids


def _since(moment: float, place: Path, nproc: int) -> list[Marks]:
    """The workers, by rank, of a life that began after this moment and has made its first step on all ranks."""
    lives: dict[int, dict[int, Marks]] = {}
    for file in place.glob("*[0-9]-*[0-9]"):
        life, _, rank = file.name.partition("-")
        if life.isdecimal():
            pid, *times = file.read_text().split()
            marks = Marks(int(pid), *map(float, times))
            if marks.begun > moment:
                lives.setdefault(int(life), {})[int(rank)] = marks
    for _, ranks in sorted(lives.items()):
        if len(ranks) == nproc:
            return [ranks[rank] for rank in range(nproc)]
    return []


def measure(found: dict[str, Contender], nproc: int, args: argparse.Namespace) -> str:
    """All contenders in turn, for so many rounds: the table."""
    seen: dict[str, list[list[float]]] = {name: [] for name in found}
    lost = dict.fromkeys(found, 0)
    for _ in range(args.rounds):
        for name, contender in found.items():
            wanted = len(seen[name]) + args.kills
            for _ in range(ATTEMPTS):
                try:
                    for phases in recoveries(contender, nproc, wanted - len(seen[name]), script(args.state)):
                        seen[name].append(phases)
                    break
                except (RuntimeError, TimeoutError) as error:
                    lost[name] += 1
                    print(f"{name}: {error}\n", flush=True)
    rows = []
    ours = statistics.median([phases[-1] for phases in seen[OURS]] or [math.nan])
    for name, all_phases in seen.items():
        if not all_phases:
            continue
        middle = [statistics.median(values) for values in zip(*all_phases, strict=True)]
        totals = [phases[-1] for phases in all_phases]
        spread = f"{min(totals):.2f} to {max(totals):.2f}"
        ratio = f"{middle[-1] / ours:.1f}"
        rows.append([name, *(f"{each:.2f}" for each in middle), spread, ratio, str(len(totals)), str(lost[name])])
    header = ["launcher", *PHASES, "least to most", "times ours", "kills", "jobs lost"]
    return f"{nproc} ranks\n{table(header, rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5, help="in one job")
    parser.add_argument("--state", type=float, default=0.0, metavar="GIB", help="of state, to be restored")
    parser.add_argument("--quick", action="store_true", help="two kills on two ranks")
    parser.add_argument("--peers", action="store_true", help="DLRover and nvidia-resiliency-ext, too")
    parser.add_argument(
        "--peer-venvs", type=Path, default=peers.DEFAULT_PLACE, help="where they are, or get, installed"
    )
    parser.add_argument("--only", nargs="+", default=[""], help="contenders whose name begins so, beside Outlast")
    args = parser.parse_args()
    if args.quick:
        args.ranks, args.rounds, args.kills = [2], 1, 2
    found = contenders(args.peer_venvs if args.peers else None)
    found = {name: each for name, each in found.items() if name == OURS or name.startswith(tuple(args.only))}
    print(f"{machine()}; {args.rounds * args.kills} kills each, medians in seconds\n", flush=True)
    for nproc in args.ranks:
        print(measure(found, nproc, args), flush=True)


if __name__ == "__main__":
    main()
