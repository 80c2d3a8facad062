"""A node of a Slurm allocation is lost: how long until training goes on, with Outlast and with Slurm alone.

    python benchmarks/slurm.py [--repeat 3]
    python benchmarks/slurm.py --relay      how long nobody trains while a successor job takes over

A real Slurm on hosts of its own (network namespaces), as root; scripts/install-slurm installs it. Both run the same
script on the same cluster in one run. Slurm alone: a batch job with `srun`, which Slurm requeues when it has noticed
the loss. Its timeouts are shorter here than by default (SlurmdTimeout 10 s, not 300 s; requeue after 6 s, not 121 s),
so the ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "platforms")]

import machine  # noqa: E402
from slurm_cluster import BatchJob, SlurmCluster, slurm  # noqa: E402

TICKS = """
import os, time
name = f"{os.environ['SLURM_PROCID']} {os.environ.get('OUTLAST_GENERATION', os.environ.get('SLURM_RESTART_COUNT', 0))}"
while True:
    print(f"tick {name} {time.time():.3f}", flush=True)
    time.sleep(0.05)
"""


def with_outlast(cluster: SlurmCluster, script: Path, how: str) -> float:
    """Seconds from the loss of a node to the first tick of the next generation."""
    command = f"srun --no-kill --kill-on-bad-exit=0 {sys.executable} -m outlast run --nnodes=3 {script}"
    job = cluster.sbatch("--nodes=4", "--no-kill", "--wrap", command)
    job.wait_for(r"waits as a spare")
    # Any that trains, but not the first node, where the batch script is.
    lost = int(job.wait_for(r"tick ([123]) 1 ")[1])
    at = time.time()
    getattr(cluster.nodes[lost], how)()
    found = job.wait_for(r"tick \d ([2-9]|\d\d+) ([\d.]+)")
    return float(found[2]) - at


def slurm_alone(cluster: SlurmCluster, script: Path, how: str) -> float:
    """Seconds from the loss of a node to the first tick of the requeued job."""
    job = cluster.sbatch("--nodes=3", "--requeue", "--wrap", f"srun {sys.executable} {script}")
    job.wait_for(r"tick \d 0 ")
    at = time.time()
    getattr(cluster.nodes[1], how)()
    found = job.wait_for(r"tick \d 1 ([\d.]+)")
    return float(found[1]) - at


STEPS = """
import itertools, sys, time
import torch, torch.distributed as dist
import outlast
dist.init_process_group("gloo")
checkpointer = outlast.Checkpointer(sys.argv[1], every=1000000)
state = {"weights": torch.zeros(1000)}
for step in itertools.count(checkpointer.restore(state) + 1):
    time.sleep(0.05)
    dist.all_reduce(state["weights"])
    if dist.get_rank() == 0:
        print(f"step {step} {time.time():.3f}", flush=True)
    checkpointer.save(step, state)
"""


def relay(cluster: SlurmCluster, place: Path) -> tuple[float, int]:
    """The longest time between two steps while a successor takes over, and how many were lost or doubled."""
    (place / "steps.py").write_text(STEPS)
    out = place / f"relay-{len(list(place.glob('relay-*')))}.log"
    out.touch()
    slurm_part = {"relay": True, "relay_lead": 600, "options": [f"--output={out}", "--exclusive"]}
    job = {"name": "relay", "run": "steps.py", "args": [f"{out}.checkpoints"], "nodes": 2, "slurm": slurm_part}
    file = place / "relay.json"
    file.write_text(json.dumps({**job, "resources": {"time": "1:00:00"}, "settings": {"node_timeout": 15}}))
    said = cluster.ask(sys.executable, "-m", "outlast", "submit", file, "--on=slurm")
    first = BatchJob(cluster, said.split()[-1], out)
    successor = first.wait_for(r"job (\d+) takes over from")[1]
    first.wait_for(r"^step 20 ")
    cluster.ask("scontrol", "update", f"jobid={successor}", "starttime=now")
    first.wait_for(rf"takes over from job {first.number}")
    last = int(first.wait_for(r"^step (\d+) ")[1])
    first.wait_for(rf"^step {last + 40} ")
    steps = [
        (int(line.split()[1]), float(line.split()[2])) for line in first.output.splitlines() if line[:5] == "step "
    ]
    numbers = [number for number, _ in steps]
    wrong = sum(number != at for at, number in enumerate(numbers, 1))
    return max(after - before for (_, before), (_, after) in pairwise(steps)), wrong


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--how", choices=["kill", "cut"], nargs="+", default=["kill", "cut"])
    options.add_argument("--relay", action="store_true", help="measure the relay, and nothing else")
    args = options.parse_args()
    repeat = args.repeat
    machine.move_in()
    place = Path(tempfile.mkdtemp(prefix="ol-slurm-"))
    script = place / "ticks.py"
    script.write_text(TICKS)
    with slurm(place, 4) as cluster:
        for _ in range(repeat if args.relay else 0):
            gap, wrong = relay(cluster, place)
            print(f"relay: longest time between two steps {gap:.2f} s, steps lost or doubled: {wrong}", flush=True)
            cluster.clean()
        if args.relay:
            return
        for how in args.how:
            for name, measure in (("outlast", with_outlast), ("slurm alone", slurm_alone)):
                took = []
                for _ in range(repeat):
                    took.append(measure(cluster, script, how))
                    cluster.clean()
                shown = " ".join(f"{each:.2f}" for each in took)
                print(f"node {how:4} {name:11} median {statistics.median(took):6.2f} s  ({shown})", flush=True)


if __name__ == "__main__":
    main()
