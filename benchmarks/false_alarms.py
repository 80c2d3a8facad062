"""Whether ranks that only take long are left alone: a run with all that is slow in training, and no alarm.

    python benchmarks/false_alarms.py [--rounds 3] [--seed 1]

Two nodes of two ranks on this machine, over gloo, with nothing set about hangs. A first step that takes 20 s;
stragglers all the time; evaluations without a heartbeat, and checkpoints that one rank writes while the others wait,
which take up to 4.5 times as long as in the first round, and exactly that in the last. Two jobs at the same time: one
calibrates after the first round (`outlast.calibrate()`), one never does. Their lines about hangs, and the events, are
counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from jobs import two_nodes
from processes import Process

LONGER = 4.5  # the default safety factor is 5
# By when the default rules look at all: 30 s if calibrated, else a minute. What is long here is longer than that.
FIRST = {"calibrated": 8.0, "never asked": 14.0}
PATIENCE = 3600.0

SCRIPT = """
import os, random, sys, time
import torch, torch.distributed as dist
import outlast
asked, first, longer, rounds, seed = sys.argv[1] == "calibrated", *map(float, sys.argv[2:4]), *map(int, sys.argv[4:6])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
all_ranks, mine = random.Random(seed), random.Random(f"{seed} {rank}")
gradient = torch.ones(1000)

def steps(count, slow=0.0):
    for number in range(count):
        with outlast.section("step"):
            if rank == 1 and number == 0:
                time.sleep(slow)
            if mine.random() < 0.05:
                time.sleep(mine.uniform(0.2, 2.0))
            time.sleep(0.02)
            dist.all_reduce(gradient)
            gradient.fill_(1)
        outlast.step()

longest = 0.0
for number in range(1 + rounds):
    steps(60, slow=20.0 if number == 0 else 0.0)
    drawn = [all_ranks.uniform(1, longer) for _ in "ab"]
    evaluation, checkpoint = (first * (1 if number == 0 else longer if number == rounds else each) for each in drawn)
    longest = max(longest, evaluation, checkpoint)
    time.sleep(evaluation)
    dist.barrier()
    with outlast.section("checkpoint"):
        if rank == number % size:
            time.sleep(checkpoint)
        dist.barrier()
    steps(20)
    if number == 0 and asked and rank == 0:
        outlast.calibrate()
os.write(1, f"rank {rank} is done; the longest was {longest:.0f} s\\n".encode())
os._exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    alarms = 0
    with tempfile.TemporaryDirectory(prefix="alarms-") as directory, ExitStack() as stack:
        script = Path(directory, "train.py")
        script.write_text(SCRIPT)
        jobs: dict[str, tuple[Process, Process]] = {}
        for how, first in FIRST.items():
            words = [how, str(first), str(LONGER), str(arguments.rounds), str(arguments.seed)]
            events = f"--ft-events={directory}/{how.replace(' ', '-')}"
            jobs[how] = stack.enter_context(two_nodes(events, args=words, script=script))
        for how, nodes in jobs.items():
            codes = [node.wait(PATIENCE) for node in nodes]
            lines = [line for node in nodes for line in node.lines if "hangs since" in line or "seems to hang" in line]
            text = Path(directory, how.replace(" ", "-")).read_text()
            said = [event["text"] for line in text.splitlines() if (event := json.loads(line))["event"] == "hang"]
            longest = nodes[0].wait_for(r"the longest was (\d+) s", anywhere=True)[1]
            alarms += len(lines) + len(said)
            print(f"{how}: exit codes {codes}, the longest wait was {longest} s, {len(lines) + len(said)} false alarms")
            print(*lines, *said, sep="\n" if lines or said else "", end="")
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
