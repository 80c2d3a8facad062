"""Whether the one who made a job hang is named: random kinds of real hangs on random ranks, four ranks over gloo.

    python benchmarks/culprits.py [--cases 100] [--seed 1] [--kind sleep] [--without-py-spy]

Right is who did it and as what sort of hang. The last lines are the share of right names, how long it took to look, and
every miss with the sentence that a user would have read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hangs import KINDS, RANKS, SCRIPT, Hang
from outlast.agent import stacks
from outlast.diagnosis.culprit import name
from outlast.diagnosis.observation import Observation


async def observed(hang: Hang) -> tuple[list[Observation], float]:
    await hang.settle()
    began = time.monotonic()
    ranks = await hang.observe()
    return ranks, time.monotonic() - began


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one; may be repeated")
    parser.add_argument("--record", type=Path, help="write what was seen, one case of each kind, to this file")
    parser.add_argument("--without-py-spy", action="store_true", help="by the signal alone")
    arguments = parser.parse_args()
    if arguments.without_py_spy:
        stacks.TOOL = "py-spy that is not there"
    chance = random.Random(arguments.seed)
    kinds = list(arguments.kind or KINDS)
    # Every kind about as often, in random order.
    cases = [kinds[number % len(kinds)] for number in range(arguments.cases)]
    chance.shuffle(cases)
    misses, times, recorded = [], [], {}
    for number, kind in enumerate(cases, 1):
        culprit = chance.randrange(RANKS)
        try:
            with Hang(kind, culprit) as hang:
                ranks, took = asyncio.run(observed(hang))
                verdict = name(ranks)
                right = hang.right(verdict)
                recorded[kind] = {"culprit": culprit, "ranks": anonymous(ranks)}
        except AssertionError as error:  # it did not come to a hang: a miss as well
            misses.append((kind, culprit, str(error)[:400]))
            print(f"{number:3} FAILED {kind} on rank {culprit}: {str(error)[:400]}", flush=True)
            continue
        times.append(took)
        if not right:
            misses.append((kind, culprit, f"{verdict.kind.value}: {verdict.sentence}"))
        print(f"{number:3} {'right' if right else 'MISS '} {took:5.3f} s {kind} on rank {culprit}: {verdict.sentence}")
        sys.stdout.flush()
    if arguments.record:
        lines = (f"{json.dumps(kind)}: {json.dumps(case)}" for kind, case in sorted(recorded.items()))
        arguments.record.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    how = "py-spy" if stacks.find_tool() else "signal"
    print(f"\n{len(cases) - len(misses)} of {len(cases)} right, {len(set(cases))} kinds, by {how}")
    if times:
        print(f"seconds to look at {RANKS} ranks: median {statistics.median(times):.3f}, longest {max(times):.3f}")
    for kind, culprit, sentence in misses:
        print(f"missed: {kind} on rank {culprit}: {sentence}")


if __name__ == "__main__":
    main()
