"""How a check grows with the number of nodes: rounds, and the CPU time that its decisions take. No network, no nodes.

One in a hundred nodes is bad (its collectives fail), one in a hundred slow, the rest good; all of it is drawn from a
seed. A round takes as long as its slowest group, however many there are, so rounds are what a user waits for.

    python benchmarks/check_scale.py [--quick]
"""

from __future__ import annotations

import argparse
import random
import time

from outlast.core.node_checks.checks import Examination, Fitness
from outlast.core.node_checks.table import table as check_table
from outlast.protocol.checks import Findings
from processes import machine, table

SIZES = (2, 100, 10_000, 100_000)


def play(size: int, seed: int, share: float) -> tuple[int, float, bool]:
    """A check of so many nodes: rounds, seconds of CPU, and whether exactly the bad and the slow ones were named."""
    nodes = [f"node-{index}" for index in range(size)]
    chance = random.Random(seed)
    drawn = chance.sample(nodes, 2 * int(size * share))
    bad, slow = set(drawn[::2]), set(drawn[1::2])
    check = Examination(1, nodes, names={node: node for node in nodes})
    took, now, began = 0.0, 0.0, time.process_time()
    while (groups := check.advance(now)) is not None:
        took += time.process_time() - began
        findings = {node: _found(node, group, check.number, bad, slow) for group in groups for node in group}
        now += 1.0
        began = time.process_time()
        for node, found in findings.items():
            check.take(node, found, now)
    result = check.result()
    check_table(result)
    took += time.process_time() - began
    right = set(result.of(Fitness.FAULTY)) == bad and set(result.of(Fitness.SLOW)) == slow
    return result.rounds, took, right


def _found(node: str, group: tuple[str, ...], number: int, bad: set[str], slow: set[str]) -> Findings:
    if bad.intersection(group):
        return Findings(0, number, together="timed out", figures={"compute": 100.0})
    network = 0.1 if slow.intersection(group) else 1.0  # a slow node slows its partner
    return Findings(0, number, figures={"compute": 20.0 if node in slow else 100.0, "network": network})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="up to 10,000 nodes")
    args = parser.parse_args()
    print(f"{machine()}\n")
    rows = []
    for size in SIZES[:-1] if args.quick else SIZES:
        healthy, sick = play(size, args.seed, 0.0), play(size, args.seed, 0.01)
        named = "all, and nobody else" if healthy[2] and sick[2] else "WRONG"
        rows.append([f"{size:,}", str(healthy[0]), f"{healthy[1]:.4f}", str(sick[0]), f"{sick[1]:.4f}", named])
    header = ["nodes", "rounds, all good", "CPU s", "rounds, 1 % bad, 1 % slow", "CPU s", "named"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
