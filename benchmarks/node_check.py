"""What a check of all nodes costs before training begins: Outlast and DLRover, the same shape, in one run.

Nodes are agents on this machine, two processes each, gloo on CPU. Measured is the time from the start of all nodes
until the script runs on every rank, with the check and without it: the difference is what the user waits for. And, for
Outlast, the check by itself once all zygotes are ready, as a newcomer to a running job sees it.

    python benchmarks/node_check.py [--nodes 2] [--rounds 5] [--peers]
"""

from __future__ import annotations

import argparse
import re
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import peers
from processes import Run, launcher, machine, table, until

PATIENCE = 300.0
NPROC = 2
ENV = {"OUTLAST_TOKEN": "a token for this benchmark"}
SCRIPT = """
import os, sys, time
import torch
with open(f"{sys.argv[1]}/draft-{os.environ['RANK']}", "w") as file:
    file.write(str(time.monotonic()))
os.rename(file.name, f"{sys.argv[1]}/rank-{os.environ['RANK']}")
time.sleep(1)
"""

Commands = Callable[[int, bool, Path], list[list[str]]]  # of so many nodes, with a check or without, in a directory


def ours(nodes: int, check: bool, place: Path) -> list[list[str]]:
    port = peers.free_port()
    flags = [f"--nnodes={nodes}", f"--nproc-per-node={NPROC}", "--ft-log-level=debug"]
    flags += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", *(["--network-check"] if check else [])]
    script = [str(place / "train.py"), str(place)]
    return [launcher("outlast", *flags, f"--ft-node-name=node-{node}", *script) for node in range(nodes)]


def dlrover(home: Path) -> Commands:
    def commands(nodes: int, check: bool, place: Path) -> list[list[str]]:
        """A master, and agents in PID namespaces of their own: see peers.dlrover."""
        port = peers.free_port()
        master = [str(home / "bin" / "python"), "-m", "dlrover.python.master.main", f"--port={port}"]
        master += [f"--node_num={nodes}", "--job_name=benchmark", "--platform=local"]
        agent = [str(home / "bin" / "dlrover-run"), f"--nnodes={nodes}", f"--nproc-per-node={NPROC}"]
        agent += [*(["--network-check"] if check else []), str(place / "train.py"), str(place)]
        alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
        found = [[*alone, f"{shlex.join(master)}; exit 0"]]
        for node in range(nodes):
            known = f"DLROVER_MASTER_ADDR=127.0.0.1:{port} NODE_RANK={node} NODE_ID={node} NODE_NUM={nodes}"
            found.append([*alone, f"{known} {shlex.join(agent)}; exit 0"])
        return found

    return commands


def until_all_run(commands: Commands, nodes: int, *, check: bool) -> tuple[float, float | None]:
    """Seconds from the start of all nodes until every rank runs; and those of the check itself, where the log tells."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = Path(directory)
        (place / "train.py").write_text(SCRIPT)
        began = time.monotonic()
        runs = [
            stack.enter_context(Run(argv, log=place / f"log-{index}", env=ENV))
            for index, argv in enumerate(commands(nodes, check, place))
        ]
        warm = _warm(runs) if check and commands is ours else None
        ranks = [place / f"rank-{rank}" for rank in range(nodes * NPROC)]
        until(lambda: all(rank.exists() for rank in ranks), timeout=PATIENCE, runs=[], what="rank")
        return max(float(rank.read_text()) for rank in ranks) - began, warm


def _warm(runs: list[Run]) -> float:
    """Seconds from when all nodes are warm to the check's last line."""

    def said(pattern: str) -> int:
        return sum(bool(re.search(pattern, run.log.read_text(errors="replace"))) for run in runs)

    until(lambda: said("zygote is ready") == len(runs), timeout=PATIENCE, runs=runs, what="zygote")
    began = time.monotonic()
    until(lambda: said("checked in") > 0, timeout=PATIENCE, runs=[], what="check")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", action="store_true", help="also DLRover, in an environment of its own")
    parser.add_argument("--place", type=Path, default=peers.DEFAULT_PLACE)
    args = parser.parse_args()
    contenders: dict[str, Commands] = {"outlast": ours}
    home = peers.environment("dlrover", args.place) if args.peers else None
    if home is not None:
        contenders[f"DLRover {peers.version('dlrover', home)}"] = dlrover(home)
    print(f"{machine()}; {args.nodes} nodes of {NPROC} processes, {args.rounds} rounds\n")
    without: dict[str, list[float]] = {name: [] for name in contenders}
    with_check: dict[str, list[float]] = {name: [] for name in contenders}
    warm: list[float] = []
    for number in range(args.rounds):
        for name, commands in contenders.items():
            without[name].append(until_all_run(commands, args.nodes, check=False)[0])
            seconds, alone = until_all_run(commands, args.nodes, check=True)
            with_check[name].append(seconds)
            warm += [alone] if alone is not None else []
            print(f"round {number + 1}, {name}: {without[name][-1]:.2f} s, with the check {seconds:.2f} s", flush=True)
    costs = {name: statistics.median(with_check[name]) - statistics.median(without[name]) for name in contenders}
    rows = [
        [name, *(f"{statistics.median(each[name]):.2f}" for each in (without, with_check)), f"{costs[name]:.2f}"]
        for name in contenders
    ]
    print("\n" + table(["seconds, medians", "no check", "with it", "the check costs"], rows))
    print(
        f"\nOutlast's check once all nodes are warm: {statistics.median(warm):.2f} s ({min(warm):.2f}–{max(warm):.2f})"
    )
    mine, alone = statistics.median(with_check["outlast"]), statistics.median(warm)
    for name in list(contenders)[1:]:
        theirs = statistics.median(with_check[name])
        print(f"{name}: {theirs / mine:.1f} times as long until a checked job runs; its check costs ", end="")
        print(f"{costs[name] / alone:.1f} times what Outlast's takes by itself")


if __name__ == "__main__":
    main()
