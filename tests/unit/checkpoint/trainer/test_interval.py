"""When snapshots are due: times become steps, alike on all ranks."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.checkpoint.memory.arena import first_use
from outlast.checkpoint.trainer.interval import DAY, Interval, SaveTimes, daly, mean_time_between_failures


class Training:
    """Ranks with clocks of their own, which take as long for a step, and for a save, as they are told to."""

    def __init__(self, every: Any, ranks: int = 2, cost: float = 0.0) -> None:
        self.ranks = [Interval(every) for _ in range(ranks)]
        self.clocks = [1000.0 * rank for rank in range(ranks)]
        self.cost = cost
        self.saved: list[int] = []
        self.times: list[float] = []
        self.steps = 0

    def run(self, steps: int, seconds: float, *, durable: tuple[int, ...] = (), failures: int = 0) -> None:
        for step in range(self.steps + 1, self.steps + steps + 1):
            # The others are slower, by their clocks.
            self.clocks = [clock + seconds * (1 + rank) for rank, clock in enumerate(self.clocks)]
            due = {interval.due(step) for interval in self.ranks}
            assert len(due) == 1, "ranks disagree"
            if due == {True} or step in durable:
                self._save(step, failures)
        self.steps += steps

    def _save(self, step: int, failures: int) -> None:
        measured = [
            interval.measure(step, begun=clock, ended=clock + self.cost, lived=clock, failures=failures)
            for interval, clock in zip(self.ranks, self.clocks, strict=True)
        ]
        self.clocks = [clock + self.cost for clock in self.clocks]
        for interval in self.ranks:
            interval.agree(step, measured)
        self.saved.append(step)
        self.times.append(self.clocks[0])

    def gaps(self) -> list[int]:
        return [after - before for before, after in zip(self.saved, self.saved[1:], strict=False)]


def test_a_time_is_kept_by_rank_0s_clock() -> None:
    training = Training("30s")
    training.run(200, seconds=1.0)
    assert training.saved[:6] == [1, 2, 4, 8, 16, 32]  # never more than twice as many steps as the last time
    assert training.gaps()[5:] == [30] * 5


def test_steps_that_grow_longer_or_shorter_are_followed() -> None:
    training = Training(timedelta(seconds=30))
    training.run(200, seconds=1.0)
    training.run(200, seconds=10.0)
    assert training.gaps()[-3:] == [3, 3, 3]
    training.run(3000, seconds=0.1)
    assert training.gaps()[-1] == 300


def test_a_first_step_that_is_short_by_chance_does_no_harm() -> None:
    training = Training("60s")
    training.run(2, seconds=0.001)
    training.run(300, seconds=1.0)
    later = [after - before for before, after in zip(training.times[1:], training.times[2:], strict=False)]
    assert max(later) <= 62


def test_durable_saves_between_are_saves_like_others() -> None:
    training = Training("30s")
    training.run(200, seconds=1.0, durable=(150, 151))
    assert {150, 151} < set(training.saved)
    assert training.gaps()[-1] in (29, 30, 31)


def test_the_state_of_another_step_begins_anew() -> None:
    training = Training("30s", ranks=1)
    training.run(100, seconds=1.0)
    training.ranks[0].begin_anew()
    assert training.ranks[0].due(3)


def test_what_costs_more_is_done_less_often_and_what_fails_more_often_more_often() -> None:
    def gap(cost: float, failures: int) -> int:
        training = Training("auto", cost=cost)
        training.run(30_000, seconds=1.0, failures=failures)
        return training.gaps()[-1]

    calm, dear, bad = gap(0.5, 0), gap(8.0, 0), gap(0.5, 99)
    assert dear == pytest.approx(4 * calm, rel=0.1)
    assert bad == pytest.approx(calm / 10, rel=0.1)


def test_the_dearest_rank_and_the_first_clock_count() -> None:
    interval = Interval("auto")
    ranks = [SaveTimes(2.0, cost, 0.0, 0) for cost in (0.1, 0.9, 0.3)]
    for _ in range(20):
        interval.agree(0, ranks)
    assert interval.due(round(daly(0.9, DAY) / 2))
    assert not interval.due(round(daly(0.9, DAY) / 2) - 1)


@pytest.mark.parametrize("cost", [0.01, 1.0, 60.0, 1800.0])
@pytest.mark.parametrize("mtbf", [3600.0, DAY, 30 * DAY])
def test_dalys_interval_is_about_the_best_there_is(cost: float, mtbf: float) -> None:
    def lost(seconds: float) -> float:
        """The part of the time that is lost: with failures that come by chance, and no time to restart."""
        return mtbf * (math.exp((seconds + cost) / mtbf) - 1) / seconds

    best = min((lost(mtbf * 1.02**power), mtbf * 1.02**power) for power in range(-900, 120))
    assert lost(daly(cost, mtbf)) <= best[0] * 1.002


def test_what_was_seen_outweighs_what_was_supposed() -> None:
    assert mean_time_between_failures(0, 0, 1) == DAY
    assert mean_time_between_failures(0, 0, 16384) == pytest.approx(3.05 * 3600, rel=0.01)
    assert mean_time_between_failures(30 * DAY, 0, 1) == 31 * DAY
    assert mean_time_between_failures(DAY, 47, 1) == 3600
    assert mean_time_between_failures(-5, 0, 1) == DAY  # a clock that was set back
    assert daly(10.0, 1.0) == 1.0


@pytest.mark.parametrize(("every", "seconds"), [("30s", 30), ("1.5 m", 90), ("2min", 120), ("1h", 3600), ("1d", DAY)])
def test_times_can_be_written_so(every: str, seconds: float) -> None:
    assert Interval(every)._seconds == seconds


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "", "s", "0s", "-3s", "3 steps", timedelta(0), []])
def test_what_is_no_interval_is_refused(every: Any) -> None:
    with pytest.raises(ValueError, match="every must be a number of steps, a time as"):
        Interval(every)


def test_an_arena_remembers_when_it_was_first_used(tmp_path: Path) -> None:
    first = first_use(tmp_path, 3)
    assert first[1] == 3
    assert first_use(tmp_path, 9) == first
    (tmp_path / "since").write_text("half")
    assert first_use(tmp_path, 9)[1] == 9
