"""A node of a Slurm allocation is lost: how long until training goes on, with Outlast and with Slurm alone.

    python benchmarks/slurm.py [--repeat 3]

A real Slurm on hosts of its own (network namespaces), as root; scripts/install-slurm installs it. Both run the same
script on the same cluster in one run. Slurm alone: a batch job with `srun`, which Slurm requeues when it has noticed
the loss. Its time-outs are shorter here than by default (SlurmdTimeout 10 s, not 300 s; requeue after 6 s, not 121 s),
so the ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "platforms")]

import machine  # noqa: E402
from slurm_cluster import SlurmCluster, slurm  # noqa: E402

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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--how", choices=["kill", "cut"], nargs="+", default=["kill", "cut"])
    args = options.parse_args()
    repeat = args.repeat
    machine.move_in()
    place = Path(tempfile.mkdtemp(prefix="ol-slurm-"))
    script = place / "ticks.py"
    script.write_text(TICKS)
    with slurm(place, 4) as cluster:
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
