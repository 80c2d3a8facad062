"""The coordinator killed, its host lost, and the network split, under a real training on three hosts.

Hosts are network namespaces (root needed); workers train over gloo, save their state after every step, and write down
which samples each step took. At the end every sample must have been trained exactly once in the history that
survived. torchrun gets the same loss of a host (the one with its store) in the same run.

    python benchmarks/succession.py [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hosts import Cluster, Host
from processes import Process

PORT = 29400
PATIENCE = 240.0
BATCH = 12

TRAINING = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
place, steps, pause, batch = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
generation = int(os.environ.get("OUTLAST_GENERATION", "0"))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = place / "state.pt"
step, history = 0, []
if state.exists():
    saved = torch.load(state, weights_only=True)
    model.load_state_dict(saved["model"])
    step, history = saved["step"], saved["history"]
mine = (place / f"samples-{generation}-{rank}-{os.getpid()}").open("w", buffering=1)
while step < steps:
    samples = list(range(step * batch, (step + 1) * batch))[rank::world]
    optimizer.zero_grad()
    model(torch.randn(len(samples), 16)).square().mean().backward()
    optimizer.step()
    print(json.dumps([generation, step, samples, time.clock_gettime(time.CLOCK_MONOTONIC)]), file=mine)
    step += 1
    history.append(generation)
    if rank == 0:
        draft = state.with_suffix(f".{os.getpid()}")
        torch.save({"model": model.state_dict(), "step": step, "history": history}, draft)
        draft.replace(state)
    dist.barrier()
    time.sleep(pause)
del model
dist.destroy_process_group()
"""


class Job:
    """One job on the hosts of a cluster, and what its workers wrote down."""

    def __init__(self, cluster: Cluster, place: Path, launcher: str, steps: int, pause: float, *flags: str) -> None:
        self.hosts = cluster.hosts
        self.place = place
        self.steps = steps
        script = place / "training.py"
        script.write_text(TRAINING)
        module = {"outlast": "outlast", "torchrun": "torch.distributed.run"}[launcher]
        command = [sys.executable, "-m", module, *(["run"] if launcher == "outlast" else [])]
        common = ["--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=host-0:{PORT}", "--rdzv-id=bench"]
        self._argv = [*command, *common, "--max-restarts=3", *flags, str(script), str(place), str(steps), str(pause)]
        self.agents = [self.start(host) for host in self.hosts]

    def start(self, host: Host) -> Process:
        environment = {
            "OUTLAST_TOKEN": "a token of this benchmark",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        return host.start([*self._argv, str(BATCH)], env=environment)

    def records(self) -> list[tuple[int, int, list[int], float]]:
        found = []
        for path in self.place.glob("samples-*"):
            found += [tuple(json.loads(line)) for line in path.read_text().splitlines() if line.endswith("]")]
        return found  # type: ignore[return-value]

    def step_at(self) -> tuple[int, float]:
        """The newest step, and when its last rank took it."""
        records = self.records()
        newest = max((step for _, step, _, _ in records), default=-1)
        return newest, max((at for _, step, _, at in records if step == newest), default=0.0)

    def reaches(self, step: int) -> float:
        """Await a step; when it was taken."""
        until(lambda: self.step_at()[0] >= step, f"step {step}", self.agents)
        return min(at for _, number, _, at in self.records() if number >= step)

    def coordinator(self) -> int:
        for host in self.hosts:
            for pid in host.processes():
                if b"outlast.coordinator" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        raise RuntimeError("no coordinator is there")

    def ends(self, agents: list[Process]) -> str:
        """Await the end of these agents, and say whether every sample was trained once."""
        codes = [agent.wait(PATIENCE) for agent in agents]
        if any(codes):
            return f"exit codes {codes}"
        import torch

        history: list[int] = torch.load(self.place / "state.pt", weights_only=True)["history"]
        surviving = set(enumerate(history))
        seen: Counter[int] = Counter()
        for generation, step, samples, _ in self.records():
            if (step, generation) in surviving:
                seen.update(samples)
        once = set(seen) == set(range(self.steps * BATCH)) and set(seen.values()) == {1}
        generations = sorted(set(history))
        words = "every sample once" if once else f"NOT every sample once ({Counter(seen.values())})"
        return f"{len(history)} steps in generations {generations}: {words}"


def killed(quick: bool) -> None:
    """kill -9 of the coordinator every 2 s for a minute."""
    kills = 8 if quick else 30
    with Cluster(3) as cluster, tempfile.TemporaryDirectory() as name:
        job = Job(cluster, Path(name), "outlast", kills * 2 * 20, 0.045, "--nnodes=3")
        job.reaches(5)
        before = job.step_at()
        for _ in range(kills):
            os.kill(job.coordinator(), signal.SIGKILL)
            time.sleep(2)
        after = job.step_at()
        last: dict[int, float] = {}
        for _, step, _, at in job.records():
            last[step] = max(last.get(step, 0.0), at)
        took = [last[step] for step in sorted(last) if before[0] <= step <= after[0]]
        gaps = [later - earlier for earlier, later in itertools.pairwise(took)]
        print(f"the coordinator killed {kills} times, every 2 s: {after[0] - before[0]} steps meanwhile, ", end="")
        print(f"the longest gap between two steps {max(gaps):.2f} s (median {statistics.median(gaps):.3f} s)")
        print(
            f"  {job.ends(job.agents)}; restarts of workers: {len(list(Path(name).glob('samples-*'))) - 3}", flush=True
        )


def lost(launcher: str) -> None:
    """The coordinator's (or the store's) host loses its power."""
    with Cluster(3) as cluster, tempfile.TemporaryDirectory() as name:
        job = Job(cluster, Path(name), launcher, 400, 0.05, "--nnodes=1:3")
        job.reaches(20)
        at = time.monotonic()
        job.hosts[0].kill()
        step = job.step_at()[0]
        rest = job.agents[1:]
        try:
            until(lambda: job.step_at()[1] > at + 1.0, "next step", rest)
            print(f"{launcher}: next step {job.step_at()[1] - at:.1f} s after the loss (of step {step})")
            print(f"  {job.ends(rest)}", flush=True)
        except (RuntimeError, TimeoutError) as error:
            what = str(error).partition(";")[0]
            print(f"{launcher}: {what}, {time.monotonic() - at:.1f} s after the loss", flush=True)


def split(quick: bool) -> None:
    """Two hosts on one side, the coordinator's alone on the other, for 20 s."""
    with Cluster(3) as cluster, tempfile.TemporaryDirectory() as name:
        job = Job(cluster, Path(name), "outlast", 600, 0.05, "--nnodes=1:3")
        job.reaches(20)
        at = time.monotonic()
        job.hosts[0].cut()
        time.sleep(8 if quick else 20)
        healed = time.monotonic()
        sides = Counter(generation for generation, _, _, when in job.records() if when > at)
        job.hosts[0].heal()
        until(
            lambda: any(len(s) == BATCH // 3 and w > healed + 0.5 for _, _, s, w in job.records()),
            "3 hosts",
            job.agents,
        )
        back = min(w for _, _, s, w in job.records() if len(s) == BATCH // 3 and w > healed + 0.5)
        print(
            f"split 2 | 1 (coordinator alone) for {healed - at:.0f} s: steps by generation meanwhile {dict(sides)}, ",
            end="",
        )
        print(f"all three again {back - healed:.1f} s after it was healed")
        print(f"  {job.ends(job.agents)}", flush=True)


def until(condition: Callable[[], bool], what: str, agents: list[Process]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        ended = [agent for agent in agents if not agent.running]
        if len(ended) == len(agents):
            raise RuntimeError(f"the job ended before {what}: {ended[0].lines[-1:]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what}; " + "\n".join(agent.output[-1500:] for agent in agents))
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter, and without torchrun")
    args = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start; three hosts, one rank each\n", flush=True
    )
    killed(args.quick)
    lost("outlast")
    if not args.quick:
        lost("torchrun")
    split(args.quick)


if __name__ == "__main__":
    main()
