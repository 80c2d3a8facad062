"""Samplers: what they cost, and whether each sample is trained once when the world size changes. Side by side.

Three tables: time per sample of one rank; memory; and samples lost and repeated under the same random stories of
kills, restarts on other world sizes, and checkpoints that are older than the kill. What rank 0 has saved is loaded by
all, as in a job whose ranks change. What documentation leaves open (which steps DLRover's sampler wants to be told of)
is tried both ways. Repeats that may be padding (in an epoch, fewer than there may be ranks) are counted apart: so much
DistributedSampler says it does.

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
from torch.utils.data import DataLoader, DistributedSampler

from outlast import ElasticSampler
from peers import DEFAULT_PLACE
from processes import machine, table

PEERS = {"dlrover": "dlrover", "torchft": "torchft-nightly"}
WORLDS = (1, 2, 3, 4)
CHANGES = (0, 1, 4)  # of the world size, in a story


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


class Story(NamedTuple):
    """A training through several lives; the last one goes on to the end."""

    length: int
    batch: int  # of each rank
    epochs: int
    prefetch: int  # batches that a rank's loader asks for before they are trained, with a worker that makes them
    save_every: int
    lives: list[Life]


class Saved(NamedTuple):
    """What one rank finds in the checkpoint. Epoch and step are counted by the script, whatever the sampler is."""

    epoch: int
    step: int  # steps of the epoch, over all lives
    state: Any


class Outcome(NamedTuple):
    """Shares of all the samples of a story."""

    lost: float
    repeated: float
    padded: float


class Contender:
    """One rank: a sampler in a loader, as its documentation has them used."""

    sampler: Any
    loader: Any

    def __init__(self, story: Story, rank: int, world: int, saved: dict[int, Saved]) -> None:
        raise NotImplementedError

    def batches(self, epoch: int, step: int) -> Iterator[list[int]]:  # noqa: ARG002  (who wants to know)
        """The rest of the epoch, of which so many steps are in the model."""
        self.sampler.set_epoch(epoch)
        return iter(self.loader)

    def trained(self, batch: list[int]) -> list[int]:
        """An optimizer step is made: those of its samples that count."""
        return batch

    def state(self, step: int) -> Any:
        """What a checkpoint keeps after so many steps of the epoch."""
        raise NotImplementedError


def loader_of(story: Story, sampler: Any, kind: Callable[..., Any] = DataLoader) -> Any:
    return kind(
        range(story.length),
        batch_size=story.batch,
        sampler=sampler,
        num_workers=1 if story.prefetch else 0,
        prefetch_factor=story.prefetch or None,
        persistent_workers=story.prefetch > 0,
        collate_fn=list,
    )


class Ours(Contender):
    def __init__(self, story: Story, rank: int, world: int, saved: dict[int, Saved]) -> None:
        self.sampler = ElasticSampler(story.length, batch_size=story.batch, rank=rank, world_size=world)
        self.loader = loader_of(story, self.sampler)
        if saved:
            self.sampler.load_state_dict(saved[0].state)

    def trained(self, batch: list[int]) -> list[int]:
        weights = self.sampler.weights().tolist()
        self.sampler.commit()
        return [sample for sample, weight in zip(batch, weights, strict=True) if weight]

    def state(self, step: int) -> Any:  # noqa: ARG002  (it knows)
        return self.sampler.state_dict()


class Torch(Contender):
    """Steps are counted, and skipped on resume: what scripts do."""

    def __init__(self, story: Story, rank: int, world: int, saved: dict[int, Saved]) -> None:  # noqa: ARG002
        self.sampler = DistributedSampler(range(story.length), num_replicas=world, rank=rank)
        self.loader = loader_of(story, self.sampler)

    def batches(self, epoch: int, step: int) -> Iterator[list[int]]:
        return islice(super().batches(epoch, step), step, None)

    def state(self, step: int) -> Any:
        pass


class TorchSamples(Torch):
    """Samples of all ranks are counted, and as many whole steps skipped on resume: the best that can be done."""

    def __init__(self, story: Story, rank: int, world: int, saved: dict[int, Saved]) -> None:
        super().__init__(story, rank, world, saved)
        self.per_step = story.batch * world
        self.resumed = saved[0].state if saved else 0

    def batches(self, epoch: int, step: int) -> Iterator[list[int]]:
        self.skipped, self.begun, self.resumed = self.resumed // self.per_step, step, 0
        return super().batches(epoch, self.skipped)

    def state(self, step: int) -> Any:
        return (self.skipped + step - self.begun) * self.per_step


class Torchdata(Contender):
    def __init__(self, story: Story, rank: int, world: int, saved: dict[int, Saved]) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        self.sampler = StatefulDistributedSampler(range(story.length), num_replicas=world, rank=rank)
        self.loader = loader_of(story, self.sampler, StatefulDataLoader)
        if saved:
            self.loader.load_state_dict(saved[0].state)

    def state(self, step: int) -> Any:  # noqa: ARG002  (it knows)
        return self.loader.state_dict()


class DLRover(Contender):
    """The steps of the epoch are counted over restarts."""

    def __init__(self, story: Story, rank: int, world: int, saved: dict[int, Saved]) -> None:
        from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler

        self.sampler = ElasticDistributedSampler(range(story.length), num_replicas=world, rank=rank)
        self.loader = loader_of(story, self.sampler)
        if saved:
            self.sampler.load_state_dict(saved[0].state)

    def state(self, step: int) -> Any:
        return self.sampler.state_dict(step, self.loader.batch_size)


class DLRoverAnew(DLRover):
    """The steps are counted from the restart on, as its example does."""

    def batches(self, epoch: int, step: int) -> Iterator[list[int]]:
        self.begun = step
        return super().batches(epoch, step)

    def state(self, step: int) -> Any:
        return super().state(step - self.begun)


@cache
def torchft() -> Any:
    """Its one module that is needed; the package itself imports what is not installed here."""
    package = importlib.util.find_spec("torchft")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'torchft'")
    path = Path(package.submodule_search_locations[0]) / "data.py"
    return SourceFileLoader("torchft_data", str(path)).load_module()


class Torchft(Torchdata):
    """The number of replica groups is fixed to the most there may be, and each has a StatefulDataLoader of its own.

    A group that was away goes on with its shard where it left it, if the epoch is still the same.
    """

    def __init__(self, story: Story, rank: int, world: int, saved: dict[int, Saved]) -> None:  # noqa: ARG002
        from torchdata.stateful_dataloader import StatefulDataLoader

        self.sampler = torchft().DistributedSampler(
            range(story.length), replica_rank=rank, num_replica_groups=max(WORLDS), group_rank=0, num_replicas=1
        )
        self.loader = loader_of(story, self.sampler, StatefulDataLoader)
        self.over = -1  # the last epoch in which this shard came to its end: others may still have samples
        if rank in saved and saved[rank].epoch == saved[0].epoch:
            self.over, state = saved[rank].state
            self.loader.load_state_dict(state)

    def batches(self, epoch: int, step: int) -> Iterator[list[int]]:
        if self.over < epoch:
            yield from super().batches(epoch, step)
        self.over = epoch

    def state(self, step: int) -> Any:
        return self.over, super().state(step)


CONTENDERS: dict[str, type[Contender]] = {
    "outlast": Ours,
    "torch DistributedSampler, steps skipped": Torch,
    "torch DistributedSampler, samples skipped": TorchSamples,
    "torchdata StatefulDataLoader": Torchdata,
    "DLRover, steps of the epoch": DLRover,
    "DLRover, steps since the restart": DLRoverAnew,
    "torchft": Torchft,
}


def outcome(kind: type[Contender], story: Story) -> Outcome:
    """Live through a story. What the surviving model has seen."""
    model = [Counter[int]() for _ in range(story.epochs)]
    saved: dict[int, Saved] = {}
    survivor = model, saved
    for number, life in enumerate(story.lives):
        model, saved = [each.copy() for each in survivor[0]], survivor[1]
        ranks = [kind(story, rank, life.world, saved) for rank in range(life.world)]
        until = None if number + 1 == len(story.lives) else life.steps
        for made, (epoch, step, samples) in enumerate(islice(train(story, ranks, saved), until), 1):
            model[epoch].update(samples)
            if made % story.save_every == 0:
                states = {at: Saved(epoch, step, rank.state(step)) for at, rank in enumerate(ranks)}
                survivor = [each.copy() for each in model], {**saved, **states}
    repeats = [seen.total() - len(seen) for seen in model]
    padded = sum(min(each, max(WORLDS) - 1) for each in repeats)
    lost = sum(story.length - len(seen) for seen in model)
    return Outcome(*(each / (story.length * story.epochs) for each in (lost, sum(repeats) - padded, padded)))


def train(story: Story, ranks: list[Contender], saved: dict[int, Saved]) -> Iterator[tuple[int, int, list[int]]]:
    """From a checkpoint to the end, step by step: the epoch, how many steps of it are made, and with which samples."""
    first, step = saved[0][:2] if saved else (0, 0)
    for epoch in range(first, story.epochs):
        passes = [rank.batches(epoch, step) for rank in ranks]
        while any(shares := [next(each, None) for each in passes]):
            step += 1
            pairs = zip(ranks, shares, strict=True)
            yield epoch, step, [sample for rank, share in pairs if share for sample in rank.trained(share)]
        step = 0


def even(draw: random.Random) -> dict[str, int]:
    """Divides evenly on every world size: nothing is padded that need not be."""
    return {"length": 960, "batch": 4, "epochs": 1, "prefetch": 0, "save_every": draw.randint(1, 4)}


def uneven(draw: random.Random) -> dict[str, int]:
    return even(draw) | {"length": draw.randint(200, 500), "batch": draw.randint(3, 9), "epochs": 3}


def prefetched(draw: random.Random) -> dict[str, int]:
    return uneven(draw) | {"prefetch": draw.randint(1, 5)}


# With how many stories each: those with prefetch start a process for every rank of every life.
KINDS: dict[str, tuple[Callable[[random.Random], dict[str, int]], int]] = {
    "even, 1 epoch": (even, 100),
    "uneven, 3 epochs": (uneven, 100),
    "uneven, 3 epochs, prefetch": (prefetched, 20),
}


def story_of(shape: dict[str, int], changes: int, draw: random.Random) -> Story:
    """Lives on world sizes that differ from one to the next, each too short to bring the training to its end."""
    worlds = [draw.choice(WORLDS)]
    while len(worlds) <= changes:
        worlds.append(draw.choice([world for world in WORLDS if world != worlds[-1]]))
    worlds += worlds * (changes == 0)  # a restart on the same world size
    steps = shape["epochs"] * shape["length"] // shape["batch"]  # of one rank alone
    return Story(**shape, lives=[Life(world, draw.randint(1, steps // world // len(worlds))) for world in worlds])


def exactness(contenders: dict[str, type[Contender]], part: int = 1) -> str:
    """Each story is lived through by all contenders; `part`: one in so many of the stories."""
    rows = []
    for kind, (shape, count) in KINDS.items():
        drawn = [(changes, random.Random(number)) for changes in CHANGES for number in range(count // part)]
        told = [(changes, story_of(shape(draw), changes, draw)) for changes, draw in drawn]
        for name, contender in contenders.items():
            results: dict[int, list[Outcome]] = {changes: [] for changes in CHANGES}
            for changes, story in told:
                results[changes].append(outcome(contender, story))
            exact = [sum(each[:2] == (0, 0) for each in of) for of in results.values()]
            most = [[f"{100 * max(each):.1f}" for each in zip(*of, strict=True)] for of in results.values()]
            cells = [", ".join(map(str, each)) for each in (exact, *zip(*most, strict=True))]
            cells[0] += f" of {count // part}"
            rows.append([kind, name, *cells])
    return table(
        ["stories", "sampler", "exact", "lost, at most, %", "repeated, at most, %", "padded, at most, %"], rows
    )


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
            kind(story_of(even(random.Random(0)), 0, random.Random(0)), 0, 1, {})
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
    print(exactness(available(args.place), part=10 if args.quick else 1), flush=True)


if __name__ == "__main__":
    main()
