"""Seconds from the loss of a node (kill -9 of its agent and its workers) until the other node's worker runs again.

Two nodes on loopback, `--nnodes=1:2`, one worker each; `outlast run`, `torchrun`, and `torchrun` with the timers set
as short as it allows, one after the other, several times. The workers do what training does when a peer dies: they
notice at once, and fail. (torchrun depends on it: its agent does not restart a worker that is content.) The node that
is killed is the one that does not host the store: killing that one ends torchrun's job.

    python benchmarks/node_loss.py [--quick]
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from processes import Run, launcher, machine, table, until

PATIENCE = 180.0

# Its first line is the moment that counts. A name in the file system instead of a collective: no torch, no import.
WORKER = """
import time; now = time.monotonic()
import os, pathlib, select, sys
place = pathlib.Path(sys.argv[1])
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
draft = place / f"draft-{os.getpid()}"
draft.write_text(f"{now} {world}")
draft.rename(place / f"worker-{rank}-{os.getpid()}")
deadline = time.monotonic() + 300
while time.monotonic() < deadline:
    for name in place.glob("worker-*"):
        _, other, pid = name.name.split("-")
        if world > 1 and other != rank:
            try:
                peer = os.pidfd_open(int(pid))
            except ProcessLookupError:
                continue
            select.select([peer], [], [], deadline - time.monotonic())
            sys.exit("the peer is gone: a collective would fail now")
    time.sleep(0.02)
"""

# The same with torch: a model, gradients averaged over gloo; the moment that counts is the end of the first step.
TRAINING = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
place = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
deadline, first = time.monotonic() + 300, True
while time.monotonic() < deadline:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    if first:
        now, first = time.monotonic(), False
        draft = place / f"draft-{os.getpid()}"
        draft.write_text(f"{now} {world}")
        draft.rename(place / f"worker-{rank}-{os.getpid()}")
    time.sleep(0.02)
"""

TUNED = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
CONTENDERS = {
    "outlast": ("outlast", []),
    "torchrun": ("torchrun", []),
    "torchrun, shortest timers": ("torchrun", [TUNED, "--monitor-interval=0.1"]),
}


def lose_a_node(launcher_name: str, flags: list[str], script: str) -> float:
    """One job, one loss: the seconds until the survivor's new worker has written its line."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "worker.py").write_text(script)
        port = _free_port()
        argv = launcher(
            launcher_name,
            "--nnodes=1:2",
            "--nproc-per-node=1",
            "--max-restarts=3",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=localhost:{port}",
            "--rdzv-id=loss",
            *flags,
            str(place / "worker.py"),
            str(place),
        )
        # Both at once: torchrun with a short last call goes on without the second, and fails when that one joins.
        runs = [stack.enter_context(Run(argv, log=place / f"{i}.log")) for i in range(2)]
        until(lambda: len(_workers(place, world=2)) >= 2, timeout=PATIENCE, runs=runs, what="job of two nodes")
        host, other = sorted(runs, key=lambda run: not _listens(run, port))
        time.sleep(random.uniform(1, 2))  # past the start, and at no fixed distance from anybody's timers
        lost_at = time.monotonic()
        other.kill()
        until(lambda: bool(_workers(place, world=1)), timeout=PATIENCE, runs=[host], what="new worker")
        return min(_workers(place, world=1)) - lost_at


def _workers(place: Path, *, world: int) -> list[float]:
    """When each worker that was started into a world of this size ran its first line."""
    lines = [path.read_text().split() for path in place.glob("worker-*")]
    return [float(at) for at, size in lines if int(size) == world]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(run: Run, port: int) -> bool:
    """Whether the store, or the coordinator, is this node's."""
    connections = [c for process in run.tree() for c in process.net_connections("tcp")]
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--training", action="store_true", help="with torch, until the end of the first training step")
    parser.add_argument("--quick", action="store_true", help="once, without torchrun's default timers")
    args = parser.parse_args()
    names = list(CONTENDERS)
    if args.quick:
        args.repeat = 1
        names.remove("torchrun")
    script, what = (TRAINING, "first training step") if args.training else (WORKER, "worker's first line")
    print(f"{machine()}; from kill -9 of a node to the survivor's {what}, {args.repeat} times, interleaved")
    print("the node with torchrun's store is spared: its loss ends torchrun's job\n", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    ended = dict.fromkeys(names, 0)
    for _ in range(args.repeat):
        for name in names:
            launcher_name, flags = CONTENDERS[name]
            try:
                seconds[name].append(lose_a_node(launcher_name, flags, script))
            except (RuntimeError, TimeoutError) as error:
                ended[name] += 1
                print(f"{name}: {error}\n", flush=True)
    ours = statistics.median(seconds["outlast"] or [float("nan")])
    rows = []
    for name, values in seconds.items():
        cells = ["-", "-", "-"]
        if values:
            middle = statistics.median(values)
            cells = [f"{middle:.2f}", f"{min(values):.2f} to {max(values):.2f}", f"{middle / ours:.0f}"]
        rows.append([name, *cells, str(ended[name])])
    print(table(["launcher", "median, s", "least to most, s", "times Outlast's", "jobs that ended instead"], rows))


if __name__ == "__main__":
    main()
