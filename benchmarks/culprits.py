"""Whether the one who made a job hang is named: random kinds of real hangs on random ranks, over gloo.

    python benchmarks/culprits.py [--ranks 4|8] [--cases 100] [--seed 1] [--kind sleep]
    python benchmarks/culprits.py --record FILE [--without-py-spy]

A job with real agents on two hosts (network namespaces: as root), half of the ranks on each. Each generation hangs in
another way, is found by a timeout, named by the coordinator and ended; the next one is its recovery. Right is who did
it and as what sort of hang. The last lines are the share of right names, and every miss with the sentence that a user
would have read. `--record` makes the cases of the unit tests instead: what is seen, without agents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hangs import KINDS, RANKS, SCRIPT, Hang, HungJob, right
from hosts import Cluster
from outlast.agent.monitoring import stacks
from outlast.diagnosis.observation import Observation

BATCH = 20  # hangs of one job
PATIENCE = 90.0  # seconds for a generation to start, hang and end


class Case(NamedTuple):
    kind: str
    culprit: int


def await_end(job: HungJob, generation: int) -> bool:
    """Wait until a generation has ended; False: it does not."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and any(node.running for node in job.nodes):
        if any(event["generation"] == generation for event in job.told("generation ending")):
            return True
        time.sleep(0.05)
    return any(event["generation"] == generation for event in job.told("generation ending"))


def batch(cases: Sequence[Case], ranks: int) -> Iterator[tuple[Case, dict[str, Any] | None, str]]:
    """Let one job hang in these ways: what was said about each, and why its generation ended."""
    with (
        Cluster(2) as cluster,
        tempfile.TemporaryDirectory(prefix="culprits-") as directory,
        HungJob(cluster.hosts, Path(directory), cases, ranks=ranks) as job,
    ):
        for generation, case in enumerate(cases, 1):
            if case.kind == "everybody":
                for node in job.nodes:
                    node.wait_for(r"^hangs \d+ everybody", PATIENCE)
                job.cut_training()
            ended = await_end(job, generation)
            if case.kind == "everybody":
                job.mend_training()
            said = [event for event in job.told("hang") if event["generation"] == generation]
            why = [event["text"] for event in job.told("generation ending") if event["generation"] == generation]
            yield case, (said[0] if said else None), why[0] if why else "it did not end"
            if not ended:
                return


def measure(cases: Sequence[Case], ranks: int) -> list[str]:
    """Run the cases; the misses."""
    misses, number, todo = [], 0, list(cases)
    while todo:
        for case, said, why in batch(todo[:BATCH], ranks):
            todo.remove(case)
            number += 1
            fine = said is not None and right(case.kind, case.culprit, said["ranks"], said["kind"], ranks)
            text = said["text"] if said is not None else f"nobody was named: {why}"
            print(f"{number:3} {'right' if fine else 'MISS '} {case.kind} on rank {case.culprit}: {text}", flush=True)
            if not fine:
                misses.append(f"{case.kind} on rank {case.culprit}: {text}")
    return misses


def anonymous(ranks: list[Observation]) -> Any:
    """The same as plain data, with no path, process id or stack of this machine's kernel in it."""
    text = msgspec.json.encode(
        [replace(each, stack=replace(each.stack, kernel=(), age=0.0)) for each in ranks]
    ).decode()
    for real, shown in (
        (str(SCRIPT.parent), "/home/user"),
        (sysconfig.get_path("purelib"), "/venv/lib/python3/site-packages"),
        (sysconfig.get_path("stdlib"), "/usr/lib/python3.11"),
        (tempfile.gettempdir(), "/tmp"),
    ):
        text = text.replace(real, shown)
    text = re.sub(r"/tmp/hang-\w+/tmp\w+/", "/tmp/", text)
    return json.loads(re.sub(r"\[\d+,\"pt_data_worker\"", '[4711,"pt_data_worker"', text))


def record(path: Path, kinds: Sequence[str], chance: random.Random) -> None:
    """Write down what is seen of one case of each kind."""

    async def observed(hang: Hang) -> list[Observation]:
        await hang.settle()
        return await hang.observe()

    lines = []
    for kind in sorted(kinds):
        culprit = chance.randrange(RANKS)
        with Hang(kind, culprit) as hang:
            ranks = asyncio.run(observed(hang))
        lines.append(f"{json.dumps(kind)}: {json.dumps({'culprit': culprit, 'ranks': anonymous(ranks)})}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, choices=(4, 8), default=4)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one; may be repeated")
    parser.add_argument("--record", type=Path, help="write what was seen, one case of each kind, to this file")
    parser.add_argument("--without-py-spy", action="store_true", help="by the signal alone; with --record")
    arguments = parser.parse_args()
    if arguments.without_py_spy:
        stacks.TOOL = "py-spy that is not there"
    chance = random.Random(arguments.seed)
    kinds = list(arguments.kind or KINDS)
    if arguments.record:
        record(arguments.record, kinds, chance)
        return
    # Every kind about as often, in random order.
    drawn = [kinds[number % len(kinds)] for number in range(arguments.cases)]
    chance.shuffle(drawn)
    cases = [Case(kind, chance.randrange(arguments.ranks)) for kind in drawn]
    misses = measure(cases, arguments.ranks)
    shown = f"{len(set(drawn))} kinds, {arguments.ranks} ranks on two hosts"
    print(f"\n{len(cases) - len(misses)} of {len(cases)} right, {shown}")
    for miss in misses:
        print(f"missed: {miss}")


if __name__ == "__main__":
    main()
