"""Ranks slower than the others are named once, with section and step, and nobody else is: on made-up traces."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.core.stragglers.pace import pace
from outlast.core.stragglers.stragglers import Straggler, Stragglers
from outlast.protocol.paces import Pace, Paces
from traces import PLAIN, Slow, Training, Work, steady

SECONDS = 10  # steps of the plain trace in one


def told(training: Training, steps: int) -> list[tuple[int, str, Straggler]]:
    """What people hear of."""
    return [each for each in training.run(steps) if not each[2].lasts]


@pytest.mark.parametrize("factor", [1.3, 1.5, 2.0])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_that_becomes_slow_is_named_once_and_once_more_when_it_is_over(ranks: int, factor: float) -> None:
    slow = Slow(1, "forward", factor, first=200, until=500)
    (named, node, begins), (ended, _, ends) = told(Training(ranks, steady(random.Random(1)), slow=[slow]), 700)
    assert (node, begins.ranks, begins.section, begins.over) == ("node-0", (1,), "forward", None)
    assert 200 <= named <= 200 + 15 * SECONDS
    assert abs(begins.since - 200) <= 2 * SECONDS
    assert begins.factor == pytest.approx(factor, rel=0.15)
    assert 500 <= ended <= 500 + 15 * SECONDS
    assert (ends.ranks, ends.section, ends.since) == (begins.ranks, begins.section, begins.since)
    assert ends.over is not None
    assert abs(ends.over - 500) <= 2 * SECONDS


def test_one_that_lasts_is_told_of_once_more_for_those_who_do_something_about_it() -> None:
    slow = [Slow(1, "forward", 2.0, first=100, until=200), Slow(2, "forward", 2.0, first=400)]
    found = [straggler for _, _, straggler in Training(4, steady(random.Random(7)), slow=slow).run(1000)]
    assert [(each.ranks, each.lasts, each.over is not None) for each in found] == [
        ((1,), False, False),
        ((1,), False, True),
        ((2,), False, False),
        ((2,), True, False),
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_sections_a_rank_is_named_that_is_busy_while_the_others_wait(ranks: int) -> None:
    slow = Slow(1, None, 1.5, first=200)
    found = told(Training(ranks, steady(random.Random(2)), slow=[slow], shown=False), 400)
    ((_, node, straggler),) = found
    assert straggler.ranks == (1,)
    assert straggler.sentence(node).startswith("rank 1 on node-0 is 1.5 times slower than the others in its own work")


def test_ranks_of_one_node_are_named_together_also_where_they_are_half_of_all() -> None:
    slow = [Slow(rank, None, 1.6, first=200) for rank in (2, 3)]
    found = told(Training(4, steady(random.Random(3), noise=0.02), slow=slow), 400)
    assert [(node, straggler.ranks) for _, node, straggler in found] == [("node-1", (2, 3))]


@pytest.mark.parametrize("known", [True, False])
def test_whoever_waits_is_not_slow_nor_is_one_that_has_less_to_do(known: bool) -> None:
    """It comes early, and waits for longer than all others where they wait for each other."""
    quick = Slow(0, "forward", 0.4, first=100)
    for waits in ("backward", "exchange"):
        names = {"data": 0.01, "forward": 0.03, waits: 0.05, "optimizer": 0.01}
        work = steady(random.Random(4), sections=names)
        assert not told(Training(2, work, slow=[Slow(1, "forward", 1.0, 0)], waits=waits, known=known), 300)
        for _, _, found in told(Training(3, work, slow=[quick], waits=waits, known=known), 400):
            raise AssertionError(found)


def test_where_nobody_knows_who_waits_for_whom_nobody_is_named() -> None:
    """Of two ranks, one longer in one section and the other in another: either may be the one that waits."""
    names = {"data": 0.01, "forward": 0.03, "exchange": 0.05, "optimizer": 0.01}
    slow = [Slow(1, "forward", 2.0, first=100)]
    work = steady(random.Random(5), sections=names)
    found = told(Training(2, work, slow=slow, waits="exchange", known=False), 400)
    assert {straggler.section for _, _, straggler in found} <= {""}  # by what the processors say, it is rank 1
    assert {straggler.ranks for _, _, straggler in found} <= {(1,)}


def disturbed(dice: random.Random) -> Work:
    """Pauses of single ranks, checkpoints, evaluations, times in which all are slow, and steps of different lengths."""
    plain = steady(dice, noise=0.25)

    def work(rank: int, step: int) -> Mapping[str, float]:
        each = dict(plain(rank, step))
        if dice.random() < 0.005:
            each["forward"] += 1.0  # garbage collection, a page fault, a neighbour
        if step % 150 == 0:
            each["optimizer"] += 4.0 if rank == 0 else 0.01  # rank 0 writes
        if step % 200 == 0:
            each["evaluation"] = dice.uniform(5, 6)
        if step % 400 < 150:
            each = {name: 2 * seconds for name, seconds in each.items()}
        longer = 1 + 0.5 * random.Random(step).random()  # sequences of this step, on all ranks
        return {name: longer * seconds for name, seconds in each.items()}

    return work


@given(seed=st.integers(0, 10**6), ranks=st.sampled_from([2, 3, 4, 6]), shown=st.booleans())
@settings(max_examples=6, derandomize=True)
def test_nobody_is_named_for_what_happens_in_any_training(seed: int, ranks: int, shown: bool) -> None:
    assert not told(Training(ranks, disturbed(random.Random(seed)), shown=shown, seed=seed), 1000)


@given(seed=st.integers(0, 10**6), ranks=st.integers(2, 6), factor=st.floats(1.5, 4.0))
@settings(max_examples=6, derandomize=True)
def test_in_a_disturbed_training_the_slow_one_is_named_and_no_other(seed: int, ranks: int, factor: float) -> None:
    who = seed % ranks
    found = told(
        Training(ranks, disturbed(random.Random(seed)), slow=[Slow(who, "forward", factor, 300)], seed=seed), 800
    )
    assert {straggler.ranks for _, _, straggler in found} == {(who,)}
    assert found[0][0] >= 300


def test_a_difference_that_does_not_matter_is_none() -> None:
    sections = {**PLAIN, "zero_grad": 0.0005}
    work = steady(random.Random(6), sections=sections)
    assert not told(Training(4, work, slow=[Slow(2, "zero_grad", 3.0, first=50)]), 400)


def test_a_section_that_one_rank_alone_has_is_not_compared() -> None:
    def work(rank: int, _step: int) -> Mapping[str, float]:
        return {"log": 0.02, **PLAIN} if rank == 0 else PLAIN

    assert not told(Training(4, work), 300)


def test_with_another_generation_what_was_said_is_over_and_what_is_late_is_not_heard() -> None:
    stragglers = Stragglers(1.2)

    def paces(generation: int, number: int, slow: float) -> Paces:
        times = [0.1, 0.1, slow]
        each = (Pace(rank, number, number + 1, 1.0, {"forward": time}) for rank, time in enumerate(times))
        return Paces(generation, tuple(each))

    found = [each for number in range(10) for each in stragglers.hear("a", paces(1, number, 0.2))]
    assert [(straggler.generation, straggler.over) for _, straggler in found] == [(1, None)]
    ((node, over),) = stragglers.hear("b", paces(2, 0, 0.1))
    assert (node, over.generation, over.ranks, over.over) == ("a", 1, (2,), 10)
    assert not [each for number in range(10) for each in stragglers.hear("a", paces(1, number, 0.2))]


def test_a_rank_that_falls_silent_holds_nobody_up() -> None:
    stragglers = Stragglers(1.2)
    found = []
    for number in range(20):
        times = [0.1, 0.2, 0.1, 0.1][: 4 if number < 3 else 3]
        each = (Pace(rank, number, number + 1, 1.0, {"forward": time}) for rank, time in enumerate(times))
        found += stragglers.hear("a", Paces(1, tuple(each)))
    assert [straggler.ranks for _, straggler in found] == [(1,)]


def test_sentences() -> None:
    many = Straggler(1, tuple(range(8, 20)), "data", 1.33, 410, over=900)
    assert many.sentence("n") == (
        "ranks 8, 9, 10, 11, 12, 13, 14, 15 and 4 more on n are no longer 1.3 times slower than the others "
        "in section 'data': it was so from step 410 to 900"
    )


@pytest.mark.parametrize(
    ("closed", "seconds"),
    [
        ((10, 1.0), 0.1),
        ((11, 1.1), 0.1),  # a look in the middle of a step
        ((9, 0.9), 0.1),
        ((41, 4.1), 0.4),  # four in each step
        ((1, 5.0), 0.5),  # once in a while
        ((25, 2.5), 0.25),  # now and then once more
    ],
)
def test_a_look_in_the_middle_of_a_step_changes_nothing(closed: tuple[int, float], seconds: float) -> None:
    found = pace(0, steps=(100, 110), took=10.0, closed={"x": closed})
    assert found is not None
    assert found.sections == {"x": pytest.approx(seconds)}


def test_steps_that_are_counted_anew_or_took_an_hour_say_nothing() -> None:
    assert pace(0, steps=(100, 3), took=1.0, closed={}) is None
    assert pace(0, steps=(100, 101), took=4000.0, closed={}) is None


@pytest.mark.parametrize(("share", "busy"), [(0.25, 0.5), (-0.1, 0.0), (1.1, 2.0), (None, None)])
def test_nothing_is_told_that_nobody_could_read(share: float | None, busy: float | None) -> None:
    """What does not fit would cost the node its connection."""
    found = pace(0, steps=(0, 1), took=2.0, closed={}, busy=share)
    assert found is not None
    assert found.busy == busy
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Pace) == found


def test_of_many_sections_the_longest_are_told() -> None:
    found = pace(0, steps=(0, 1), took=1.0, closed={f"s{n:02}": (1, n / 100) for n in range(20)}, waited="s03")
    assert found is not None
    assert list(found.sections) == [f"s{n:02}" for n in range(12, 20)]
    assert found.waited == ""
