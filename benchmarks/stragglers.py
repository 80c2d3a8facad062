"""How soon a rank that becomes slow is named, whether it is the right one, and how often somebody is named who is not.

    python benchmarks/stragglers.py [--quick] [--real 6] [--cases 100] [--hours 10] [--seed 1]

**Real**: ranks on this machine train over gloo (an MLP under DDP; data that is waited for). At a random step a random
rank becomes 1.3, 1.5 or 2 times slower in its forward pass, until that is said, then as fast as the others until that
is said as well, or 60 s have passed. Before that they train undisturbed for a while: whoever is named then is a false
alarm, and what each step took on each rank is recorded.

**Replayed**: the same for many more cases, on that record. Each case begins at a random place of it, every rank with
its own times there, and ranks wait for each other as they would (`tests/traces.py`). Of a backward pass, what the
quickest rank of each step took is taken for its work, and the rest for waiting. A case is slow in the forward pass
alone, or in all that it does; with sections, or without any (then by the time that main threads are busy, which is as
long as they work). For false alarms, nobody is slow, for as many hours of such training as asked for.

**Costs**: what all this adds to a section, to an agent's second and to a coordinator's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # after this folder, which has a processes.py as well

from processes import Run, launcher, machine, table, until
from traces import Slow, Training, Work

FACTORS = (1.3, 1.5, 2.0)
PATIENCE = 60.0  # seconds for a case to be named, or to be over
DATA = 0.01  # seconds that a batch is waited for
SECTIONS = ("data", "forward", "backward", "optimizer")

Record = list[list[dict[str, float]]]  # by rank and step: seconds of each section


# -- the worker


@dataclass(frozen=True)
class Case:
    rank: int
    factor: float
    pause: int  # steps before it


def train(folder: Path, quiet: float, cases: Sequence[Case]) -> None:
    """Be a rank: train for `quiet` seconds, then go through the cases."""
    import torch
    import torch.distributed as dist

    import outlast

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 512)
    number = 0
    record: list[dict[str, float]] = []

    def step(factor: float) -> None:
        nonlocal number
        times = [time.perf_counter()]
        with outlast.section("data"):
            time.sleep(DATA)
        times.append(time.perf_counter())
        with outlast.section("forward"):
            loss = model(batch).square().mean()
            if factor > 1.0:
                time.sleep((factor - 1.0) * (time.perf_counter() - times[-1]))
        times.append(time.perf_counter())
        with outlast.section("backward"):
            loss.backward()
        times.append(time.perf_counter())
        with outlast.section("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        times.append(time.perf_counter())
        number += 1
        outlast.step(number)
        record.append({name: b - a for name, a, b in zip(SECTIONS, times, times[1:], strict=False)})

    def agreed(value: float) -> float:
        """What rank 0 says: all ranks have to make the same number of steps."""
        said = torch.tensor([value])
        dist.broadcast(said, 0)
        return float(said.item())

    def until_said(what: str, count: int, factor: float) -> bool:
        """Train until the events say this for the time after `count` such events, or patience ends."""
        ends = time.monotonic() + PATIENCE
        while True:
            for _ in range(5):
                step(factor)
            if agreed(float(said(folder / "events.jsonl", what) > count)):
                return True
            if agreed(float(time.monotonic() > ends)):
                return False

    ends = time.monotonic() + quiet
    while not agreed(float(time.monotonic() > ends)):
        for _ in range(5):
            step(1.0)
    (folder / f"record-{rank}.json").write_text(json.dumps(record))
    for case in cases:
        for _ in range(case.pause):
            step(1.0)
        before = number
        begun, ended = (int(agreed(float(said(folder / "events.jsonl", what)))) for what in ("begins", "ends"))
        named = until_said("begins", begun, case.factor if rank == case.rank else 1.0)
        if rank == 0:
            with (folder / "cases.jsonl").open("a") as out:
                out.write(json.dumps({"first": before, "steps": number - before}) + "\n")
        if named:
            until_said("ends", ended, 1.0)
    dist.destroy_process_group()
    if rank == 0:
        (folder / "done").write_text(str(number))


def said(events: Path, what: str) -> int:
    return events.read_text().count(f'"straggler":"{what}"') if events.exists() else 0


# -- real cases


@dataclass
class Told:
    """What became of the cases of one kind."""

    cases: int = 0
    right: int = 0
    wrong: int = 0  # others who were named
    steps: list[int] = field(default_factory=list)  # from the first slow one to when it is named
    off: list[int] = field(default_factory=list)  # by which the step that is said differs from that

    def row(self, *names: str) -> list[str]:
        named = f"{self.right} of {self.cases}"
        if not self.steps:
            return [*names, named, str(self.wrong), "–", "–", "–"]
        worst = sorted(self.steps)[math.ceil(0.9 * len(self.steps)) - 1]
        off = statistics.median(map(abs, self.off))
        return [*names, named, str(self.wrong), f"{statistics.median(self.steps):.0f}", str(worst), f"{off:.0f}"]


HEADER = ["named", "others named", "steps until named", "90 %", "steps off in 'since'"]


def real(folder: Path, ranks: int, quiet: float, cases: Sequence[Case]) -> tuple[Record, dict[float, Told], int]:
    """The record of the quiet time, what became of the cases, and the false alarms before them."""
    words = [f"{case.rank}:{case.factor}:{case.pause}" for case in cases]
    flags = [f"--nproc-per-node={ranks}", f"--ft-events={folder / 'events.jsonl'}"]
    script = [__file__, "--train", str(folder), str(quiet), *words]
    with Run(launcher("outlast", *flags, *script), log=folder / "log") as run:
        # What is asked of the job's end cannot be asked of a launcher that has ended well: the worker says so before.
        patience = 120 + quiet + len(cases) * (2 * PATIENCE + 60)
        until((folder / "done").exists, timeout=patience, what="the end of the real cases", runs=[run])
    record = [json.loads((folder / f"record-{rank}.json").read_text()) for rank in range(ranks)]
    ran = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    lines = (folder / "events.jsonl").read_text().splitlines()
    begun = [event for line in lines if (event := json.loads(line)).get("straggler") == "begins"]
    found = {factor: Told() for factor in FACTORS}
    margin = 2.0 / mean_step(record)  # two seconds: "since" may be that far off, and still mean this case
    bounds = [each["first"] - margin for each in ran] + [math.inf]
    alarms = sum(event["since"] < bounds[0] for event in begun)
    for number, (case, each) in enumerate(zip(cases, ran, strict=True)):
        told = found[case.factor]
        told.cases += 1
        mine = [event for event in begun if bounds[number] <= event["since"] < bounds[number + 1]]
        right = [event for event in mine if event["ranks"] == [case.rank]]
        told.wrong += len(mine) - len(right)
        if right:
            told.right += 1
            told.steps.append(each["steps"])
            told.off.append(right[0]["since"] - each["first"])
    return record, found, alarms


def mean_step(record: Record) -> float:
    return statistics.fmean(sum(step.values()) for step in record[0])


# -- replayed cases


def replayed(record: Record, dice: random.Random) -> Work:
    """Work as it was recorded, from a random place on; over again, when that is at its end."""
    length = min(len(each) for each in record)
    start = dice.randrange(length)
    backward = [min(each[step]["backward"] for each in record) for step in range(length)]

    def work(rank: int, step: int) -> Mapping[str, float]:
        place = (start + step) % length
        return {**record[rank][place], "backward": backward[place]}

    return work


def case_of(record: Record, factor: float, number: int, seed: int, *, shown: bool, section: str | None) -> Told:
    dice = random.Random(f"{seed} {number} {factor} {shown} {section}")
    rank, second = dice.randrange(len(record)), 1.0 / mean_step(record)
    first = round(dice.uniform(10, 40) * second)
    slow = Slow(rank, section, factor, first)
    training = Training(len(record), replayed(record, dice), slow=[slow], shown=shown, seed=number, nproc=1)
    told = Told(cases=1)
    for step, _, found in training.run(first + round(PATIENCE * second)):
        if found.over is None and found.ranks == (rank,) and step >= first:
            told.right = 1
            told.steps.append(step - first)
            told.off.append(found.since - first)
            break
        told.wrong += found.over is None and not found.lasts
    return told


def together(told: Sequence[Told]) -> Told:
    whole = Told(sum(t.cases for t in told), sum(t.right for t in told), sum(t.wrong for t in told))
    whole.steps, whole.off = ([x for t in told for x in getattr(t, name)] for name in ("steps", "off"))
    return whole


def alarms_of(record: Record, hours: float, seed: int, *, shown: bool) -> int:
    """Who is named in so many hours in which nobody is slow, begun anew every quarter of an hour."""
    count, quarter = 0, 900.0
    for number in range(round(hours * 3600 / quarter)):
        dice = random.Random(f"{seed} {number}")
        training = Training(len(record), replayed(record, dice), shown=shown, seed=number, nproc=1)
        found = [found for _, _, found in training.run(round(quarter / mean_step(record)))]
        count += sum(each.over is None and not each.lasts for each in found)
    return count


# -- costs


def costs() -> list[list[str]]:
    from outlast.agent.monitoring.pace import busy_seconds
    from outlast.board.board import Board
    from outlast.board.layout import VARIABLE
    from outlast.core.stragglers.pace import Strides
    from outlast.core.stragglers.stragglers import Stragglers
    from outlast.protocol.paces import Pace, Paces
    from outlast.worker.session import Session

    def best(what: Any, number: int, repeat: int = 50) -> float:
        def batch() -> float:
            began = time.perf_counter()
            for _ in range(number):
                what()
            return (time.perf_counter() - began) / number

        return min(batch() for _ in range(repeat))

    board = Board(1)
    session = Session({VARIABLE: board.address(0)})

    def section() -> None:
        with session.section("forward"):
            pass

    section()
    for name in SECTIONS:
        with session.section(name):
            session.step()
    strides = Strides(0)

    def look() -> None:
        session.step()
        totals = board.totals(0)
        assert totals is not None
        strides.look({0: (totals, busy_seconds(totals.pid))})

    stragglers, ranks = Stragglers(1.2), 1000
    numbers = iter(range(10**9))
    dice = random.Random(1)
    times = [dict.fromkeys(SECTIONS, 0.1 + dice.random() / 100) for _ in range(ranks)]

    def compare() -> None:
        number = next(numbers)
        paces = tuple(Pace(rank, number, number + 1, 1.0, times[rank], 0.5, "backward") for rank in range(ranks))
        stragglers.hear("a", Paces(1, paces))

    rows = [
        ["a section, in and out", f"{best(section, 500, 500) * 1e9:,.0f} ns"],
        ["an agent's look at one worker", f"{best(look, 50) * 1e6:,.0f} µs"],
        [f"a comparison of {ranks:,} ranks", f"{best(compare, 1, 20) * 1e3:,.1f} ms"],
    ]
    board.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--real", type=int, default=6, help="cases with real ranks")
    parser.add_argument("--quiet", type=float, default=120.0, help="seconds of undisturbed training before them")
    parser.add_argument("--cases", type=int, default=100, help="replayed, of each kind")
    parser.add_argument("--hours", type=float, default=10.0, help="of replayed training in which nobody is slow")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few and short: does it work?")
    parser.add_argument("--train", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        folder, quiet, *words = args.train
        parts = (word.split(":") for word in words)
        train(Path(folder), float(quiet), [Case(int(rank), float(factor), int(pause)) for rank, factor, pause in parts])
        return
    if args.quick:
        args.real, args.quiet, args.cases, args.hours = 1, 15.0, 6, 0.5
    print(f"{machine()}; {args.ranks} ranks, seed {args.seed}\n", flush=True)
    dice = random.Random(args.seed)
    cases = [
        Case(dice.randrange(args.ranks), FACTORS[number % len(FACTORS)], dice.randrange(50, 400))
        for number in range(args.real)
    ]
    with tempfile.TemporaryDirectory(prefix="stragglers-") as folder:
        record, found, alarms = real(Path(folder), args.ranks, args.quiet, cases)
    print(f"a step takes {mean_step(record) * 1e3:.0f} ms on average; {os.getloadavg()[0]:.1f} is the load now\n")
    rows = [told.row("real", "sections", "forward", f"{factor:g}") for factor, told in found.items() if told.cases]
    for shown, section in ((True, "forward"), (True, None), (False, None)):
        for factor in FACTORS:
            share = range(FACTORS.index(factor), args.cases, len(FACTORS))
            told = together([case_of(record, factor, n, args.seed, shown=shown, section=section) for n in share])
            seen = "sections" if shown else "busy threads"
            rows.append(told.row("replayed", seen, section or "everything", f"{factor:g}"))
    print(table(["cases", "by", "slow in", "times", *HEADER], rows), end="\n\n", flush=True)
    rows = [["real", "sections", f"{args.quiet / 3600:.2f}", str(alarms)]]
    for shown in (True, False):
        count = alarms_of(record, args.hours, args.seed, shown=shown)
        rows.append(["replayed", "sections" if shown else "busy threads", f"{args.hours:g}", str(count)])
    print(table(["nobody is slow", "by", "hours", "false alarms"], rows), end="\n\n", flush=True)
    print(table(["cost", "best"], costs()))


if __name__ == "__main__":
    main()
