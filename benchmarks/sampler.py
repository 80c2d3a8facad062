"""Samplers: what they cost, and whether each sample is trained once when the world size changes. Side by side.

Three tables: time per sample of one rank; memory; and samples lost and repeated under the same random stories of
kills, restarts on other world sizes, and checkpoints that are older than the kill. The state is saved by rank 0 and
loaded by all, as in a job whose ranks change. What documentation leaves open (which steps DLRover's sampler wants to be
told of) is tried both ways.

    python benchmarks/sampler.py [--quick] [--place DIRECTORY]

DLRover's and torchft's samplers are single files of packages that are installed without their dependencies into
`--place`; what cannot be installed is left out, with a line that says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
from torch.utils.data import DistributedSampler

from outlast import ElasticSampler
from peers import DEFAULT_PLACE
from processes import machine, table

PEERS = {"dlrover": "dlrover", "torchft": "torchft-nightly"}
LENGTH, BATCH = 960, 4  # divides evenly on every world size of the stories: nothing is padded that need not be
WORLDS = (1, 2, 3, 4)


def fresh_outlast(length: int, rank: int, world: int) -> Any:
    return ElasticSampler(length, batch_size=32, rank=rank, world_size=world)


def uneven_outlast(length: int, rank: int, world: int) -> Any:
    return ElasticSampler(length, global_batch=32 * world + 1, rank=rank, world_size=world)


def fresh_torch(length: int, rank: int, world: int) -> Any:
    return DistributedSampler(range(length), num_replicas=world, rank=rank)


FRESH: dict[str, Callable[[int, int, int], Any]] = {
    "outlast": fresh_outlast,
    "outlast, a global batch that does not divide": uneven_outlast,
    "torch DistributedSampler": fresh_torch,
}


def nanoseconds(make: Callable[[int, int, int], Any], length: int, world: int) -> tuple[float, float]:
    """CPU time per sample over a pass of rank 0, in nanoseconds, and until its first sample, in milliseconds."""
    sampler = make(length, 0, world)
    start = time.process_time()
    samples = iter(sampler)
    next(samples)
    first = time.process_time() - start
    count = 1 + sum(1 for _ in samples)
    return (time.process_time() - start) / count * 1e9, first * 1e3


def throughput(lengths: list[int], repeats: int) -> str:
    rows = []
    for length in lengths:
        for world in (1, 8):
            for name, make in FRESH.items():
                runs = [nanoseconds(make, length, world) for _ in range(repeats)]
                each, first = median(run[0] for run in runs), median(run[1] for run in runs)
                rows.append([f"{length:,}", str(world), name, f"{each:.0f}", f"{first:.1f}"])
    return table(["samples", "ranks", "sampler", "ns per sample of a rank", "ms to the first one"], rows)


def memory(lengths: list[int]) -> str:
    """Each in a process of its own: what it has resident in the middle of a pass, less what it had before."""
    rows = []
    for name in ("outlast", "torch DistributedSampler"):
        for length in lengths:
            if name != "outlast" and length > 10**7:
                rows.append([f"{length:,}", name, "not tried: gigabytes"])
                continue
            run = [sys.executable, __file__, "--memory-of", name, str(length)]
            grown = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout
            rows.append([f"{length:,}", name, f"{int(grown) / 2**20:.1f}"])
    return table(["samples", "sampler", "MiB in the middle of a pass"], rows)


def memory_of(name: str, length: int) -> None:
    process = psutil.Process()
    next(iter(FRESH[name](1000, 0, 1)))  # what is imported and allocated at all
    before = process.memory_info().rss
    samples = iter(FRESH[name](length, 0, 1))
    for _ in islice(samples, 100_000):
        pass
    print(process.memory_info().rss - before)


class Life(NamedTuple):
    """On so many ranks, killed after so many steps."""

    world: int
    steps: int


class Outcome(NamedTuple):
    lost: int
    repeated: int


class Contender:
    """One rank's sampler, as its documentation has it used. A life trains `BATCH` samples per rank and step."""

    def __init__(self, rank: int, world: int, state: Any) -> None:
        raise NotImplementedError

    def samples(self) -> Iterator[int | None]:
        """The rest of the epoch; None fills a batch up, and counts nothing."""
        raise NotImplementedError

    def state(self, steps: int) -> Any:
        """What a checkpoint keeps after so many steps of this life."""
        raise NotImplementedError


class Ours(Contender):
    def __init__(self, rank: int, world: int, state: Any) -> None:
        self.sampler = ElasticSampler(LENGTH, batch_size=BATCH, rank=rank, world_size=world)
        if state:
            self.sampler.load_state_dict(state)
        self.begun = self.sampler.position.samples
        self.committed = 0

    def samples(self) -> Iterator[int | None]:
        samples = iter(self.sampler)
        left = LENGTH - self.begun
        for at, sample in enumerate(samples):
            yield sample if at * self.sampler.world_size + self.sampler.rank < left else None

    def state(self, steps: int) -> Any:
        for _ in range(steps - self.committed):
            self.sampler.commit()
        self.committed = steps
        return self.sampler.state_dict()


class Torch(Contender):
    """Steps are counted, and skipped on resume: what scripts do."""

    def __init__(self, rank: int, world: int, state: Any) -> None:
        self.sampler = DistributedSampler(range(LENGTH), num_replicas=world, rank=rank)
        self.skipped = state or 0

    def samples(self) -> Iterator[int | None]:
        return islice(self.sampler, self.skipped * BATCH, None)

    def state(self, steps: int) -> Any:
        return self.skipped + steps


class Torchdata(Contender):
    def __init__(self, rank: int, world: int, state: Any) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        sampler = StatefulDistributedSampler(range(LENGTH), num_replicas=world, rank=rank)
        self.loader = StatefulDataLoader(range(LENGTH), batch_size=BATCH, sampler=sampler)
        if state:
            self.loader.load_state_dict(state)

    def samples(self) -> Iterator[int | None]:
        for batch in self.loader:
            yield from batch.tolist()

    def state(self, steps: int) -> Any:  # noqa: ARG002  (it knows)
        return self.loader.state_dict()


class DLRover(Contender):
    """The steps of the epoch are counted over restarts."""

    def __init__(self, rank: int, world: int, state: Any) -> None:
        from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler

        self.sampler = ElasticDistributedSampler(range(LENGTH), num_replicas=world, rank=rank)
        self.begun = 0
        if state:
            self.begun, kept = state
            self.sampler.load_state_dict(kept)

    def samples(self) -> Iterator[int | None]:
        return iter(self.sampler)

    def state(self, steps: int) -> Any:
        return self.begun + steps, self.sampler.state_dict(self.begun + steps, BATCH)


class DLRoverAnew(DLRover):
    """The steps are counted from the restart on."""

    def state(self, steps: int) -> Any:
        return 0, self.sampler.state_dict(steps, BATCH)


@cache
def torchft() -> Any:
    """Its one module that is needed; the package itself imports what is not installed here."""
    package = importlib.util.find_spec("torchft")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'torchft'")
    path = Path(package.submodule_search_locations[0]) / "data.py"
    return SourceFileLoader("torchft_data", str(path)).load_module()


class Torchft(Contender):
    """The number of replica groups is fixed to the most there may be, with a StatefulDataLoader as it recommends."""

    def __init__(self, rank: int, world: int, state: Any) -> None:  # noqa: ARG002  (fixed to the most)
        from torchdata.stateful_dataloader import StatefulDataLoader

        sampler = torchft().DistributedSampler(
            range(LENGTH), replica_rank=rank, num_replica_groups=max(WORLDS), group_rank=0, num_replicas=1
        )
        self.loader = StatefulDataLoader(range(LENGTH), batch_size=BATCH, sampler=sampler)
        if state:
            self.loader.load_state_dict(state)

    def samples(self) -> Iterator[int | None]:
        for batch in self.loader:
            yield from batch.tolist()

    def state(self, steps: int) -> Any:  # noqa: ARG002  (it knows)
        return self.loader.state_dict()


CONTENDERS: dict[str, type[Contender]] = {
    "outlast": Ours,
    "torch DistributedSampler, steps skipped": Torch,
    "torchdata StatefulDataLoader": Torchdata,
    "DLRover, steps of the epoch": DLRover,
    "DLRover, steps since the restart": DLRoverAnew,
    "torchft": Torchft,
}


def outcome(kind: type[Contender], lives: list[Life], save_every: int) -> Outcome:
    """One epoch through these lives; the last one goes on to the end. What the surviving model has seen."""
    saved: tuple[Counter[int], Any] = (Counter(), None)
    for number, life in enumerate(lives):
        model, state = saved[0].copy(), saved[1]
        ranks = [kind(rank, life.world, state) for rank in range(life.world)]
        passes = [rank.samples() for rank in ranks]
        steps = 0
        last = number + 1 == len(lives)
        while last or steps < life.steps:
            shares = [list(islice(each, BATCH)) for each in passes]
            if not any(shares):
                break
            model.update(sample for share in shares for sample in share if sample is not None)
            steps += 1
            if steps % save_every == 0:
                states = [rank.state(steps) for rank in ranks]
                saved = (model.copy(), states[0])
    return Outcome(LENGTH - len(model), sum(model.values()) - len(model))


def stories(count: int, changes: int) -> list[tuple[list[Life], int]]:
    """Of each: lives on world sizes that differ from one to the next, and how often a checkpoint is saved."""
    draw = random.Random(changes)
    made = []
    for _ in range(count):
        worlds = [draw.choice(WORLDS)]
        while len(worlds) <= changes:
            worlds.append(draw.choice([world for world in WORLDS if world != worlds[-1]]))
        worlds += worlds * (changes == 0)  # a restart on the same world size
        made.append(([Life(world, draw.randint(5, 25)) for world in worlds], draw.randint(1, 4)))
    return made


def exactness(count: int, contenders: dict[str, type[Contender]]) -> str:
    rows = []
    for changes in (0, 1, 2, 4):
        told = stories(count, changes)
        for name, kind in contenders.items():
            results = [outcome(kind, *story) for story in told]
            exact = sum(result == (0, 0) for result in results)
            lost, repeated = (max(each) for each in zip(*results, strict=True))
            rows.append([str(changes), name, f"{exact} of {count}", str(lost), str(repeated)])
    header = ["changes of world size", "sampler", "exact", f"lost of {LENGTH}, at most", "repeated, at most"]
    return table(header, rows)


def available(place: Path) -> dict[str, type[Contender]]:
    """The contenders that can be had here."""
    missing = set()
    for module, package in PEERS.items():
        target = place / f"sampler-{module}"
        if not (target / module).exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), package]
            if subprocess.run(pip, check=False, stderr=subprocess.DEVNULL).returncode:
                print(f"{module} is left out: it cannot be installed here\n", flush=True)
                missing.add(module)
        sys.path.append(str(target))
    found = {}
    for name, kind in CONTENDERS.items():
        if name.split(",")[0].lower() in missing:
            continue
        try:
            kind(0, 1, None)
        except ImportError as error:
            print(f"{name} is left out: {error}\n", flush=True)
        else:
            found[name] = kind
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller data, fewer stories")
    parser.add_argument("--place", type=Path, default=DEFAULT_PLACE, help="where the peers are installed")
    parser.add_argument("--memory-of", nargs=2, metavar=("SAMPLER", "LENGTH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        memory_of(args.memory_of[0], int(args.memory_of[1]))
        return
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
    logging.disable(logging.INFO)
    print(f"{machine()}\n", flush=True)
    print(throughput([10**6] if args.quick else [10**6, 10**7], 1 if args.quick else 3), end="\n\n", flush=True)
    print(memory([10**6, 10**9] if args.quick else [10**6, 10**7, 10**9]), end="\n\n", flush=True)
    print(exactness(10 if args.quick else 100, available(args.place)), flush=True)


if __name__ == "__main__":
    main()
