"""From what each node tells of its steps to one event for the whole job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from outlast.core.job.progress import EVERY, JobProgress, workers_gone
from outlast.events.events import TrainingBegan, TrainingProgress, WorkersGone
from outlast.protocol.paces import Training

FIRST = Training(2, first=31, first_at=5.0, last=31, last_at=5.0, numbered=True, restore=0.5)


def hear(progress: JobProgress, node: str, training: Training, now: float) -> TrainingBegan | TrainingProgress | None:
    return progress.hear(f"{node}-1", training, name=node, behind=100.0, members=2, now=now)


def test_training_began_when_the_last_node_made_its_first_step() -> None:
    progress = JobProgress()
    assert hear(progress, "a", FIRST, 105.1) is None
    began = hear(progress, "b", replace(FIRST, first_at=6.0, restore=1.5), 106.25)
    assert began == TrainingBegan(generation=2, step=31, ago=0.25, restore=1.0, slowest="b")


def test_a_step_without_a_number_of_its_own_says_nothing_of_rollbacks() -> None:
    progress = JobProgress()
    hear(progress, "a", FIRST, 105.1)
    began = hear(progress, "b", replace(FIRST, numbered=False), 105.2)
    assert isinstance(began, TrainingBegan)
    assert began.step is None


def test_progress_is_told_once_a_minute_whoever_reports() -> None:
    progress = JobProgress()
    hear(progress, "a", FIRST, 105.0)
    hear(progress, "b", FIRST, 105.0)
    later = replace(FIRST, last=90, last_at=60.0, checkpoint=2.0, data=4.0)
    assert hear(progress, "a", later, 105.0 + EVERY - 1) is None
    told = hear(progress, "b", replace(later, last=91, checkpoint=4.0), 105.0 + EVERY)
    assert told == TrainingProgress(generation=2, step=91, ago=5.0, checkpoint=3.0, data=4.0)
    assert hear(progress, "a", later, 105.0 + EVERY + 1) is None


def test_a_new_generation_begins_anew() -> None:
    progress = JobProgress()
    hear(progress, "a", FIRST, 105.0)
    assert hear(progress, "b", replace(FIRST, generation=3), 105.0) is None
    assert isinstance(hear(progress, "a", replace(FIRST, generation=3), 105.0), TrainingBegan)


def test_of_workers_that_are_gone_only_their_own_generation_counts() -> None:
    assert workers_gone(3, [(FIRST, 100.0), (None, 0.0)], 120.0) == WorkersGone(generation=3)
    gone = workers_gone(2, [(FIRST, 100.0), (None, 0.0)], 107.0)
    assert (gone.step, gone.ago) == (31, pytest.approx(2.0))
