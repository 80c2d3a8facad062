"""DLRover and nvidia-resiliency-ext, to be measured beside Outlast: their environments and their command lines.

Each has a virtual environment of its own, outside of this repository; nothing of theirs is a dependency of ours. This
file is also the script that runs nvidia-resiliency-ext's in-process restart, in that environment.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"
# numpy, because torch imports it where it is installed: all contenders import the same.
PACKAGES = {
    "dlrover": ["dlrover[k8s,torch]", "protobuf", "numpy"],
    "nvidia-resiliency-ext": ["nvidia-resiliency-ext", "numpy"],
}
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
DEFAULT_PLACE = CACHE / "outlast-benchmarks"


def environment(peer: str, place: Path) -> Path | None:
    """The directory of the peer's virtual environment, made if need be; None, with a line that says why, if not."""
    home = place / peer
    if (home / "ready").exists():
        return home
    print(f"{peer}: installing into {home}", flush=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(home)], [*pip, TORCH, *PACKAGES[peer]]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            print(f"{peer} is left out: it cannot be installed here ({last})\n", flush=True)
            return None
    (home / "ready").touch()
    return home


def version(peer: str, home: Path) -> str:
    """The version that is installed."""
    code = f"import importlib.metadata; print(importlib.metadata.version({peer!r}))"
    return subprocess.run(
        [home / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def dlrover(home: Path, nproc: int, restarts: int, argv: list[str]) -> list[str]:
    """`dlrover-run` beside a local master of its own (on torch 2.13 it cannot start one by itself).

    In a PID namespace: at every restart it kills whatever it takes for an orphan on this machine, other jobs' too. With
    shared memory of its own: it leaves its checkpoints there when it has ended.
    """
    if shutil.which("unshare") is None:
        raise RuntimeError("DLRover kills other jobs' processes; it is run only where util-linux's unshare can hold it")
    port = free_port()
    master = [str(home / "bin" / "python"), "-m", "dlrover.python.master.main", f"--port={port}", "--node_num=1"]
    master += ["--job_name=benchmark", "--platform=local"]
    agent = [str(home / "bin" / "dlrover-run"), "--nnodes=1", f"--nproc-per-node={nproc}", f"--max-restarts={restarts}"]
    # The shell stays: were the agent itself process 1 of its namespace, it would take its own workers for orphans.
    script = f"""
        mount -t tmpfs -o size=90% outlast-peer /dev/shm || exit
        {shlex.join(master)} & master=$!
        DLROVER_MASTER_ADDR=127.0.0.1:{port} {shlex.join([*agent, *argv])}
        code=$?; kill $master; exit $code
    """
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*alone, "sh", "-c", script]


def ft_launcher(home: Path, nproc: int, restarts: int, argv: list[str]) -> list[str]:
    """nvidia-resiliency-ext's launcher, which restarts all processes."""
    flags = ["--standalone", f"--nproc-per-node={nproc}", f"--max-restarts={restarts}"]
    return [str(home / "bin" / "ft_launcher"), *flags, *argv]


def in_process(home: Path, nproc: int, spares: int, place: Path) -> list[str]:
    """nvidia-resiliency-ext's restart within the process: this file, with one spare process for every kill."""
    return [str(home / "bin" / "python"), __file__, str(nproc), str(nproc + spares), str(place)]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start_in_process(active: int, total: int, place: str) -> None:
    """All processes at once, and never again: a process that dies is replaced by a spare that waits already."""
    port, second = free_port(), free_port()
    processes = []
    for rank in range(total):
        env: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": total, "LOCAL_WORLD_SIZE": total}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TRAINING_PORT": second, "ACTIVE": active}
        words = {name: str(value) for name, value in env.items()}
        processes.append(subprocess.Popen([sys.executable, __file__, place], env={**os.environ, **words}))
    for process in processes:
        process.wait()


def _train_in_process(place: str) -> None:
    """The training of recovery.py, as a function that is called again after a fault."""
    import time

    import nvidia_resiliency_ext.inprocess as inprocess
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    first_rank = int(os.environ["RANK"])
    port, active = int(os.environ["TRAINING_PORT"]), int(os.environ["ACTIVE"])
    stores = dist.TCPStore("127.0.0.1", port, is_master=first_rank == 0, wait_for_workers=False)
    assignment = inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(active), inprocess.rank_assignment.ShiftRanks()
    )

    def train(call: inprocess.CallWrapper = None) -> None:
        marks = [time.monotonic()] * 2  # its imports are done
        rank = int(os.environ["RANK"])
        store = dist.PrefixStore(str(call.iteration), stores)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        marks.append(time.monotonic())
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        optimizer = torch.optim.AdamW(model.parameters())
        while True:
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            if len(marks) == 3:
                marks.append(time.monotonic())
                draft = Path(place, f"draft-{os.getpid()}")
                draft.write_text(" ".join(map(str, [os.getpid(), *marks])))
                draft.rename(Path(place, f"{call.iteration}-{rank}"))
            time.sleep(0.01)

    train.__annotations__["call"] = inprocess.CallWrapper  # by which it is told what to pass
    inprocess.Wrapper(rank_assignment=assignment)(train)()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _start_in_process(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        _train_in_process(sys.argv[1])
