"""Seeds that found a bug in the core. Each scenario also has a test of its own in tests/unit, without a seed.

A seed names a schedule of today's simulator: what these showed when they were found is in the text. (Those of the
simulator with one coordinator, before there was succession, show other schedules now, and are gone.)
"""

from __future__ import annotations

import pytest
from campaign import run

SEEDS = {
    8: "a node hosted a coordinator at the moment when it hung up, without having looked for another",
    145: "with a tie-break a generation was never settled; an agent gave two lives of its coordinator the same term",
    240: "with a tie-break a decision hung on an event that no journal has",
    322: "of two nodes with a tie-break, each went on alone after their coordinator was merely restarted",
    2417: "a node was lost, others failed of it, the coordinator and its journal too: that cost a restart",
    3733: "the same",
    54226: "the same, when the second coordinator was killed as well",
    80256: "the same, when the journal had only lost its last record",
    61078: "with nobody connected while it gathered, the job's deadline stayed in the past",
    1593190: "a failure was charged that had been judged, when only a generation that nobody else heard of told so",
    1059832: "a report was answered twice, and support counted from the second answer, which never came",
    1047868: "a failure cost no restart, because a node that had nothing to do with it was drained right after",
    1506928: "enough nodes came when the wait for them was over and nothing could be decided: its deadline stayed",
    1506331: "a message of an agent that had ended came late, and was taken for a new life of its place",
    1504050: "a member heard of a generation only that it ends; the next coordinator waited for it for ever",
    1185776: "how much a node's clock differs was learned from heartbeats that no journal has: a replay blamed another",
    1189526: "half of them looked for a coordinator only where the generation before last would have had it",
    1197606: "a coordinator without its journal took over while workers were ending, and took them for running ones",
    1205101: "a node that had missed the welcome waited far longer for a coordinator that was gone",
    2532430: "nobody of a generation had heard of it, and those of the one before waited for them to take over",
    41634: "workers that had finished while their agent stood still were not looked at before the lease",
}


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_a_seed_that_found_a_bug_finds_nothing_now(seed: int) -> None:
    run(seed)


WHOLE_SEEDS = {
    5005627: "a node check ended while a change was planned: the last call stayed in the past, a busy loop",
    5006014: "a node that had missed the welcome never asked again what its workers wait to be told",
}


@pytest.mark.parametrize("seed", WHOLE_SEEDS, ids=str)
def test_a_seed_that_found_a_bug_with_all_settings_and_habits_finds_nothing_now(seed: int) -> None:
    run(seed, whole=True)
