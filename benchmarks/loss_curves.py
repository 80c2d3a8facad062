"""The loss with faults and without, in one picture: `python benchmarks/loss_curves.py` makes docs/loss-curves.svg.

Trains examples/fsdp_elastic.py twice. Once on 4 ranks that nothing happens to; and once on 4, of which a node of 2 is
killed (-9), so that 2 go on, then a worker is killed, then a node of one rank joins, so that there are 3, which later
leaves again (SIGTERM). The losses are those of the surviving steps. The picture needs matplotlib: `pip install
matplotlib`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from processes import Run

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "fsdp_elastic.py"
PATIENCE = 600.0
INK, FAULTY, QUIET = "#444444", "#c2410c", "#93c5fd"

Step = tuple[int, float, int]  # its number, the loss of its global batch, and on how many ranks it was trained


class Training:
    """One training, whatever happens to it."""

    def __init__(self, directory: Path, epochs: int) -> None:
        self.log = directory / "log"
        self.log.mkdir(parents=True)
        self.output = directory / "output"
        self.args = [str(EXAMPLE), "--lines=4000", f"--epochs={epochs}", "--global-batch=48", "--save-every=10"]
        self.args += ["--checkpoints", str(directory / "checkpoints"), "--log", str(self.log)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def node(self, name: str, ranks: int) -> Run:
        meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--ft-node-name={name}")
        flags = ("--nnodes=1:2", f"--nproc-per-node={ranks}", "--max-restarts=3", "--ft-last-call=30")
        flags += ("--ft-use-infra-group-rank=false", "--ft-snapshot-linger=1", "--ft-planned-change-timeout=60")
        return Run([sys.executable, "-m", "outlast", "run", *meeting, *flags, *self.args], log=self.output)

    def steps(self) -> list[Step]:
        """The surviving ones."""
        found: dict[int, tuple[int, list[Any]]] = {}
        for path in self.log.glob("*.jsonl"):
            generation = int(path.name.partition("-")[0])
            for entry in map(json.loads, path.read_text().splitlines()):
                last, ranks = found.get(entry["step"], (-1, []))
                if generation >= last:
                    found[entry["step"]] = (generation, [*(ranks if generation == last else []), entry])
        return [
            (step, sum(each["loss"] for each in ranks) / len(ranks), ranks[0]["world"])
            for step, (_, ranks) in sorted(found.items())
            if len(ranks) == ranks[0]["world"]
        ]

    def reach(self, step: int, ranks: int) -> None:
        """Await that this step was made on so many ranks, or a later one."""
        wait(lambda: any(number >= step and world == ranks for number, _, world in self.steps()), self)

    def finish(self, node: Run) -> None:
        wait(lambda: not psutil.pid_exists(node.pid) or psutil.Process(node.pid).status() == "zombie", self)


def wait(true: Callable[[], bool], training: Training) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing more happens; its output:\n{training.output.read_text()}")
        time.sleep(0.2)


def quiet(directory: Path, epochs: int) -> list[Step]:
    training = Training(directory, epochs)
    with training.node("a", 2) as a, training.node("b", 2):
        training.finish(a)
    return training.steps()


def faulty(directory: Path, epochs: int, length: int) -> list[Step]:
    """The same training, with a change after each fifth of it."""
    training = Training(directory, epochs)
    with ExitStack() as stack:
        a = stack.enter_context(training.node("a", 2))
        b = stack.enter_context(training.node("b", 2))
        training.reach(length // 5, ranks=4)
        os.kill(b.pid, signal.SIGKILL)
        training.reach(2 * length // 5, ranks=2)
        os.kill(a_worker(a), signal.SIGKILL)
        training.reach(3 * length // 5, ranks=2)
        c = stack.enter_context(training.node("c", 1))
        training.reach(4 * length // 5, ranks=3)
        os.kill(c.pid, signal.SIGTERM)
        training.finish(a)
    return training.steps()


def a_worker(node: Run) -> int:
    return next(each.pid for each in psutil.Process(node.pid).children() if "RANK" in each.environ())


def draw(one: list[Step], other: list[Step], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "outlast", "axes.spines.top": False, "axes.spines.right": False}
    )
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 4.5), sharex=True, height_ratios=(4, 1))
    numbers = [step for step, _, _ in one]
    top.plot(numbers, [loss for _, loss, _ in one], color=QUIET, linewidth=5, label="4 ranks, undisturbed")
    top.plot(numbers, [loss for _, loss, _ in other], color=FAULTY, linewidth=1.2, label="with faults")
    top.set_ylabel("loss")
    top.legend(frameon=False)
    worst = max(abs(theirs - ours) / ours for (_, ours, _), (_, theirs, _) in zip(one, other, strict=True))
    top.set_title(f"Every global batch has the same loss: at most {worst:.1e} apart", loc="left", color=INK)
    bottom.step(numbers, [ranks for _, _, ranks in other], where="mid", color=FAULTY)
    bottom.set_ylabel("ranks")
    bottom.set_xlabel("step")
    bottom.set_yticks([2, 3, 4])
    bottom.set_ylim(1.5, 4.5)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--to", type=Path, nargs="+", default=[ROOT / "docs" / "loss-curves.svg"])
    args = options.parse_args()
    if find_spec("matplotlib") is None:
        raise SystemExit("loss_curves.py draws with matplotlib: pip install matplotlib")
    with tempfile.TemporaryDirectory() as directory:
        one = quiet(Path(directory, "quiet"), args.epochs)
        other = faulty(Path(directory, "faulty"), args.epochs, len(one))
    if [step for step, _, _ in one] != [step for step, _, _ in other]:
        raise SystemExit("the two trainings do not have the same steps")
    for path in args.to:
        draw(one, other, path)
    print(f"{len(one)} steps: {', '.join(map(str, args.to))}")


if __name__ == "__main__":
    main()
