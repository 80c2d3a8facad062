"""From lives to one history: from which step each life of the job went on, and which steps count in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from outlast.rehearsal.records import FaultRecord, RankLife, StepRecord


class JobLife(msgspec.Struct):
    """One generation that trained. `start`: the step whose state it went on from; 0: the beginning; None: unknown."""

    generation: int
    world: int
    ranks: dict[int, RankLife]
    start: int | None = 0
    starts: dict[int, int] = {}  # of each rank that could be told

    @property
    def last(self) -> int:
        """The last step that all ranks made, counted over all lives."""
        return (self.start or 0) + min(len(life.steps) for life in self.ranks.values())

    @property
    def agree(self) -> bool:
        """Whether all ranks went on from the same step."""
        return len(set(self.starts.values())) <= 1


class RunHistory(msgspec.Struct):
    """What one run of the script did. `steps`: of those that count, by number and rank."""

    lives: list[JobLife]
    steps: dict[int, dict[int, StepRecord]]
    stillborn: list[RankLife]  # of generations that made no step

    @property
    def last(self) -> int:
        """The last step that all ranks of its life made."""
        return max((number for number, ranks in self.steps.items() if len(ranks) == self.world_at(number)), default=0)

    def world_at(self, step: int) -> int:
        """How many ranks made this step."""
        for life in reversed(self.lives):
            if (life.start or 0) < step:
                return life.world
        return 0

    def faults(self) -> list[tuple[FaultRecord, JobLife]]:
        """The faults that were done, in order, each with the life that it hit."""
        found = [(fault, job) for job in self.lives for life in job.ranks.values() for fault in life.faults]
        return sorted(found, key=lambda item: item[0].time)

    def samples(self, until: int) -> Counter[str]:
        """How often each sample is in the steps that count, up to this one."""
        return Counter(
            sample
            for number, ranks in self.steps.items()
            if number <= until
            for step in ranks.values()
            for sample in step.samples
        )


def history_of(lives: Iterable[RankLife]) -> RunHistory:
    """Put the lives of all ranks together."""
    generations: dict[int, dict[int, RankLife]] = {}
    for life in lives:
        generations.setdefault(life.born.generation, {})[life.born.rank] = life
    known: dict[str, int] = {}  # weights, and the newest step after which they were so
    history = RunHistory([], {}, [])
    for generation, ranks in sorted(generations.items()):
        if not any(life.steps for life in ranks.values()):
            history.stillborn += ranks.values()
            continue
        world = max(life.born.world for life in ranks.values())
        job = JobLife(generation, world, ranks)
        job.starts, job.start = _starts(job, known, history)
        history.lives.append(job)
        _append(history, job, known)
    return history


def _append(history: RunHistory, job: JobLife, known: dict[str, int]) -> None:
    start, first = job.start or 0, history.lives[0]
    for number in [number for number in history.steps if number > start]:
        del history.steps[number]
    for rank, life in job.ranks.items():
        if life.steps and life.steps[0].before:
            known.setdefault(life.steps[0].before, start)
        for step in life.steps:
            if step.number == 1 and start:
                step = _without_skipped(step, first)
            history.steps.setdefault(start + step.number, {})[rank] = step
            known[step.after] = start + step.number


def _without_skipped(step: StepRecord, first: JobLife) -> StepRecord:
    """A script that goes on in the middle of an epoch draws what it has trained already, and throws it away."""
    usual = max((len(life.steps[0].batches) for life in first.ranks.values() if life.steps), default=0)
    return msgspec.structs.replace(step, batches=step.batches[-usual:] if usual else step.batches)


def _starts(job: JobLife, known: dict[str, int], history: RunHistory) -> tuple[dict[int, int], int | None]:
    """From which step each rank goes on, by its weights; by what it loaded, where they are like none before."""
    if not known:
        return {}, 0
    first = {rank: life.steps[0].before for rank, life in job.ranks.items() if life.steps}
    starts = {rank: known[before] for rank, before in first.items() if before in known}
    if starts:
        return starts, max(starts.values())
    loads = [load for life in job.ranks.values() for load in life.loads if not load.error and load.step == 0]
    if not loads:
        return {}, 0
    saves = [
        ((earlier.start or 0) + save.step, save)
        for earlier in history.lives
        for life in earlier.ranks.values()
        for save in life.saves
    ]
    fitting = [step for step, save in saves if any(save.path == load.path for load in loads)]
    return {}, max(fitting, default=None)
