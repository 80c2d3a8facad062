"""From kill -9 of one worker to the first step of the next generation on all ranks.

A DDP training on one node, gloo on CPU, NCCL where there is a GPU (then one rank per GPU: --ranks 1). In every round each launcher runs the same job, and loses a worker several
times in it. The workers themselves note when their script begins, when its imports are done, when the process group
stands and when the first step is done, so that the table shows where the time goes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from processes import Run, launcher, machine, table, until

PATIENCE = 90.0
PHASES = ("start", "import", "group", "step")
MEANING = ("notice, stop, form, start", "imports", "process group", "first step", "total")

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
    time.sleep(0.01)
"""

CONTENDERS = {
    "outlast": ("outlast", ["--ft-log-level=debug"]),
    "outlast, --warm-start off": ("outlast", ["--warm-start=off"]),
    "torchrun": ("torchrun", []),
}


def recoveries(name: str, nproc: int, kills: int) -> Iterator[list[float]]:
    """One job; for each kill, the seconds that each phase took on the slowest rank, and in all."""
    launcher_name, flags = CONTENDERS[name]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "train.py").write_text(SCRIPT)
        argv = launcher(launcher_name, f"--nproc-per-node={nproc}", f"--max-restarts={kills}", "--standalone", *flags)
        run = stack.enter_context(Run([*argv, str(place / "train.py"), str(place)], log=place / "log"))
        for life in range(kills):
            until(lambda: len(_marks(place, life)) == nproc, timeout=PATIENCE, runs=[run], what="first step")  # noqa: B023
            if name == "outlast":
                until(lambda: "zygote is ready" in (place / "log").read_text(), timeout=PATIENCE, what="zygote")
            time.sleep(random.uniform(1.0, 1.5))  # in the midst of training, at no fixed distance from any timer
            victim = int(_marks(place, life)[nproc - 1][0])
            killed_at = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(_marks(place, life + 1)) == nproc, timeout=PATIENCE, runs=[run], what="recovery")  # noqa: B023
            ranks = [marks[1:] for marks in _marks(place, life + 1).values()]
            ends = [max(times) for times in zip(*ranks, strict=True)]
            steps = [end - before for before, end in zip([killed_at, *ends], ends, strict=False)]
            yield [*steps, ends[-1] - killed_at]


def _marks(place: Path, life: int) -> dict[int, list[float]]:
    """By rank: the worker's pid and the times of its phases, of all that have made their first step."""
    files = place.glob(f"{life}-*")
    return {int(file.name.partition("-")[2]): [float(word) for word in file.read_text().split()] for file in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5, help="in one job")
    parser.add_argument("--quick", action="store_true", help="two kills on two ranks")
    args = parser.parse_args()
    if args.quick:
        args.ranks, args.rounds, args.kills = [2], 1, 2
    print(f"{machine()}; {args.rounds * args.kills} kills each, medians in seconds\n", flush=True)
    for nproc in args.ranks:
        seen: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
        lost = dict.fromkeys(CONTENDERS, 0)
        for _ in range(args.rounds):
            for name in CONTENDERS:
                try:
                    for phases in recoveries(name, nproc, args.kills):
                        seen[name].append(phases)
                except (RuntimeError, TimeoutError) as error:
                    lost[name] += 1
                    print(f"{name}: {error}\n", flush=True)
        ours = statistics.median(phases[-1] for phases in seen["outlast"])
        rows = []
        for name, all_phases in seen.items():
            if not all_phases:
                continue
            middle = [statistics.median(values) for values in zip(*all_phases, strict=True)]
            totals = [phases[-1] for phases in all_phases]
            spread = f"{min(totals):.2f} to {max(totals):.2f}"
            cells = [*(f"{value:.2f}" for value in middle), spread, f"{middle[-1] / ours:.1f}", str(lost[name])]
            rows.append([name, *cells])
        print(f"{nproc} ranks")
        print(table(["launcher", *MEANING, "least to most", "times ours", "jobs lost"], rows) + "\n", flush=True)


if __name__ == "__main__":
    main()
