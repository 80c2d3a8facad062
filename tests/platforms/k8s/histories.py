"""What `scripts/torch_training.py` has trained, read from the files that its ranks write."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec

SCRIPT = Path(__file__).parent / "scripts" / "torch_training.py"
SAMPLES = 96  # as in the script


class TrainedStep(msgspec.Struct, frozen=True):
    """One rank has trained one step."""

    pod: str
    life: int
    world: int
    rank: int
    step: int
    epoch: int
    samples: tuple[int, ...]
    at: float


class History:
    """The history of one job. Lives that begin later have higher numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begun(self, after: float) -> dict[str, float]:
        """By pod: when the first process that began to train after this time made its first step."""
        found: dict[str, float] = {}
        for file in self.folder.glob("*.jsonl"):
            first = file.open().readline()
            if first.endswith("\n") and (at := float(json.loads(first)["at"])) > after:
                pod = str(json.loads(first)["pod"])
                found[pod] = min(at, found.get(pod, at))
        return found

    def all(self) -> list[TrainedStep]:
        """What every rank has trained, by time. A line that is being written is not there yet."""
        texts = [file.read_text() for file in self.folder.glob("*.jsonl")]
        lines = [line for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return sorted((msgspec.convert(json.loads(line), TrainedStep) for line in lines), key=lambda each: each.at)

    @property
    def world(self) -> int:
        """How many ranks train in the newest life that trains."""
        return max(self.all(), key=lambda each: each.life).world if self.all() else 0

    @property
    def pods(self) -> set[str]:
        return {each.pod for each in self.all()}

    def surviving(self) -> dict[int, list[TrainedStep]]:
        """By step, what the ranks trained when they trained it for the last time."""
        steps: dict[int, list[TrainedStep]] = {}
        for each in sorted(self.all(), key=lambda each: (each.step, each.life, each.rank)):
            of_step = steps.setdefault(each.step, [])
            if of_step and of_step[0].life != each.life:
                of_step.clear()
            of_step.append(each)
        return steps

    def repeated(self) -> list[int]:
        """Steps that were trained in more than one life: lost once, and made up for."""
        lives = {(each.step, each.life) for each in self.all()}
        return sorted(step for step, times in Counter(step for step, _ in lives).items() if times > 1)

    def check_exactly_once(self) -> int:
        """Each step has all its ranks, none is missing, and each epoch has each sample once. Returns the last step."""
        steps = self.surviving()
        assert list(steps) == list(range(1, len(steps) + 1))
        for number, ranks in steps.items():
            assert [each.rank for each in ranks] == list(range(ranks[0].world)), f"step {number}: {ranks}"
        trained = [each for ranks in steps.values() for each in ranks]
        for epoch in range(trained[-1].epoch + 1):
            counts = Counter(sample for each in trained if each.epoch == epoch for sample in each.samples)
            assert counts == dict.fromkeys(range(SAMPLES), 1), f"epoch {epoch}"
        return len(steps)
