"""When a rank is late: four clocks, and nobody is called late who is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.board.readings import OpenSection, Reading
from outlast.core.hangs.rank_clocks import (
    AT_LEAST,
    MOST_NAMES,
    STARTUP_AT_LEAST,
    Clock,
    Timeouts,
    aged,
    calibrated,
    deadline,
    late,
    look_again,
    merged,
    suspicion,
)

ALL = Timeouts(startup=100, heartbeat=10, sections={"step": 5, "epoch": 50}, outside=7)


def reading(**fields: Any) -> Reading:
    return Reading(**{"read_at": 0.0, "born_at": 1000.0, "longest": {}, **fields})


def verdict(of: Reading, now: float, timeouts: Timeouts = ALL, **options: float) -> tuple[str, str] | None:
    found = late(of, now, timeouts, **options)
    return None if found is None else (found.clock.value, found.section)


def test_a_rank_has_until_the_startup_timeout_for_its_first_sign_of_life() -> None:
    assert verdict(reading(), 1099.9) is None
    assert verdict(reading(), 1100) == ("startup", "")
    assert verdict(reading(pid=7, attached_at=1050.0), 1100) == ("startup", "")
    assert verdict(reading(beat_at=1100.0), 1105) is None
    assert verdict(reading(closed_at=1100.0), 1105) is None


def test_a_first_section_without_a_timeout_is_still_startup_and_one_with_a_timeout_is_not() -> None:
    assert verdict(reading(sections=(OpenSection("unknown", 1001.0),)), 1100) == ("startup", "")
    assert verdict(reading(sections=(OpenSection("epoch", 1099.0),)), 1100) is None


def test_after_the_first_heartbeat_the_shorter_timeout_counts() -> None:
    assert verdict(reading(beat_at=1001.0), 1010.9) is None
    assert verdict(reading(beat_at=1001.0), 1011) == ("heartbeat", "")


def test_a_rank_that_has_sections_and_no_heartbeats_is_not_late_with_those() -> None:
    assert verdict(reading(closed_at=1001.0), 1e6, Timeouts(startup=100, heartbeat=10)) is None


def test_an_outer_section_is_late_while_an_inner_one_is_open() -> None:
    nested = reading(sections=(OpenSection("epoch", 1000.0), OpenSection("step", 1049.0)), closed_at=1048.0)
    assert verdict(nested, 1049.9) is None
    assert verdict(nested, 1051) == ("section", "epoch")


def test_a_section_without_a_timeout_of_its_own_is_not_watched_and_is_not_outside_either() -> None:
    assert verdict(reading(sections=(OpenSection("save", 1000.0),), closed_at=1000.0), 1e6) is None


def test_time_outside_any_section_counts_from_the_end_of_the_last_one() -> None:
    assert verdict(reading(closed_at=1000.0), 1006.9) is None
    assert verdict(reading(closed_at=1000.0), 1007) == ("outside", "")


def test_of_several_clocks_the_first_to_run_out_is_named() -> None:
    both = reading(beat_at=1000.0, sections=(OpenSection("step", 1003.0),))
    assert verdict(both, 2000) == ("section", "step")


def test_nobody_is_late_during_a_pause_and_all_clocks_start_anew_after_it() -> None:
    assert verdict(reading(paused=True, beat_at=1000.0), 1e6) is None
    assert deadline(reading(paused=True, beat_at=1000.0), ALL) is None
    resumed = reading(beat_at=1000.0, sections=(OpenSection("step", 1001.0),), resumed_at=2000.0)
    assert deadline(resumed, ALL) == 2005


def test_a_watcher_that_was_stopped_itself_gives_everybody_their_time_again() -> None:
    assert verdict(reading(beat_at=1000.0), 5000) == ("heartbeat", "")
    assert verdict(reading(beat_at=1000.0), 5000, awake_since=4995) is None
    assert deadline(reading(beat_at=1000.0), ALL, awake_since=4995) == 5005


def test_nothing_is_watched_without_timeouts() -> None:
    full = reading(beat_at=1000.0, sections=(OpenSection("step", 1000.0),), closed_at=1000.0)
    assert deadline(full, Timeouts()) is None
    assert late(full, 1e9, Timeouts()) is None


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({}, "it gave no sign of life within 100 s of its start"),
        ({"beat_at": 1000.0}, "it had no heartbeat or step for 10 s"),
        ({"sections": (OpenSection("step", 1000.0),)}, "it has been in section 'step' for 5 s"),
        ({"closed_at": 1000.0}, "it has been outside any section for 7 s"),
    ],
)
def test_what_it_is_late_with_is_said_in_words(state: dict[str, Any], sentence: str) -> None:
    assert str(late(reading(**state), 1e6, ALL)) == sentence


TIMES = st.floats(0, 1e6)
READINGS = st.builds(
    Reading,
    read_at=st.just(0.0),
    born_at=TIMES,
    beat_at=st.none() | TIMES,
    paused=st.booleans(),
    resumed_at=st.none() | TIMES,
    sections=st.lists(st.builds(OpenSection, st.sampled_from("abc"), TIMES), max_size=4).map(tuple),
    closed_at=st.none() | TIMES,
    longest=st.just({}),
)
SECONDS = st.floats(0.001, 1e5)
TIMEOUTS = st.builds(
    Timeouts,
    startup=st.none() | SECONDS,
    heartbeat=st.none() | SECONDS,
    outside=st.none() | SECONDS,
    sections=st.dictionaries(st.sampled_from("ab"), SECONDS),
)


@given(READINGS, TIMEOUTS, TIMES)
def test_a_rank_is_late_exactly_from_its_deadline_on(rank: Reading, timeouts: Timeouts, now: float) -> None:
    due, found = deadline(rank, timeouts), late(rank, now, timeouts)
    assert (found is not None) == (due is not None and due <= now)
    if found is not None:
        assert found.due == due
        assert found.since < found.due
        assert (found.clock is Clock.SECTION) == bool(found.section)


@given(READINGS, TIMEOUTS, TIMES)
def test_longer_timeouts_and_a_later_start_of_watching_never_make_anybody_late(
    rank: Reading, timeouts: Timeouts, now: float
) -> None:
    if late(rank, now, timeouts) is None:
        longer = Timeouts(
            startup=timeouts.startup and timeouts.startup * 2,
            heartbeat=timeouts.heartbeat and timeouts.heartbeat * 2,
            outside=timeouts.outside and timeouts.outside * 2,
            sections={name: 2 * seconds for name, seconds in timeouts.sections.items()},
        )
        assert late(rank, now, longer) is None
        assert late(rank, now, timeouts, awake_since=now) is None


def test_ranks_are_merged_by_the_longest_of_each() -> None:
    assert merged([{"heartbeat": 1.0, "outside": 5.0}, {"heartbeat": 3.0, "section:a": 2.0}, {}]) == {
        "heartbeat": 3.0,
        "outside": 5.0,
        "section:a": 2.0,
    }


def test_of_too_many_sections_those_that_took_longest_are_kept() -> None:
    everything = {f"section:{number}": float(number) for number in range(MOST_NAMES + 9)}
    kept = merged([everything])
    assert len(kept) == MOST_NAMES
    assert min(kept.values()) == 9.0
    assert merged([kept, everything]) == kept


@given(READINGS, TIMEOUTS, TIMES)
def test_whoever_looks_again_when_told_to_finds_everybody_who_is_late_by_then(
    rank: Reading, timeouts: Timeouts, later: float
) -> None:
    """Whatever the rank begins right after the look: its clocks run out no sooner than the next one."""
    again = look_again(rank, timeouts)
    opened = replace(
        rank, paused=False, sections=(*rank.sections, OpenSection("a", rank.read_at), OpenSection("b", rank.read_at))
    )
    closed = replace(rank, paused=False, sections=(), closed_at=rank.read_at)
    beaten = replace(rank, paused=False, beat_at=rank.read_at, resumed_at=max(rank.resumed_at or 0.0, rank.read_at))
    for changed in (rank, opened, closed, beaten):
        if late(changed, later, timeouts) is not None:
            assert again is not None
            assert again <= later


def test_what_was_long_once_is_half_forgotten_and_what_is_long_now_never() -> None:
    assert aged({"a": 100.0, "b": 1.0, "gone": 7.0}, {"a": 10.0, "b": 5.0, "new": 2.0}) == {
        "a": 55.0,
        "b": 5.0,
        "gone": 7.0,
        "new": 2.0,
    }


def test_calibration_takes_the_place_of_what_was_set_where_something_was_measured() -> None:
    found = calibrated(ALL, {"heartbeat": 40.0, "section:save": 90.0, "section:step": 0.001}, factor=3.0)
    assert (found.startup, found.heartbeat, found.outside) == (100, 120.0, 7)
    assert found.sections == {"save": 270.0, "step": AT_LEAST, "epoch": 50}


def test_a_quick_start_does_not_make_the_next_one_late() -> None:
    assert calibrated(Timeouts(), {"startup": 0.3}).startup == STARTUP_AT_LEAST
    assert calibrated(Timeouts(), {"startup": 900.0}, factor=2).startup == 1800


LONGEST = st.dictionaries(
    st.sampled_from(["startup", "heartbeat", "outside", "section:a", "section:b"]), st.floats(0.001, 1e4)
)


@given(LONGEST, READINGS)
def test_nobody_is_late_who_takes_as_long_as_was_measured(longest: dict[str, float], rank: Reading) -> None:
    timeouts = calibrated(Timeouts(), longest)
    for clock, began in [("startup", rank.born_at), ("heartbeat", rank.beat_at), ("outside", rank.closed_at)]:
        found = late(rank, (began or 0.0) + longest.get(clock, 0.0), timeouts)
        assert found is None or found.clock.value != clock
    for section in rank.sections:
        found = late(
            rank, section.since + longest.get(f"section:{section.name}", 0.0), Timeouts(sections=timeouts.sections)
        )
        assert found is None or found.section != section.name or found.since != section.since


def test_nobody_is_suspected_at_start_up_or_with_what_has_never_been_measured() -> None:
    found = suspicion({"startup": 3.0, "heartbeat": 2.0, "section:evaluate": 600.0})
    assert (found.startup, found.outside) == (None, None)
    assert found.heartbeat == 60
    assert found.sections == {"evaluate": 3000.0}
