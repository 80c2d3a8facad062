"""What the page shows, from events and views."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from dashboards import SimulatedJob
from outlast.dashboard import logs
from outlast.dashboard.headline import headline
from outlast.dashboard.page_state import MOST_ROWS, PageState
from outlast.dashboard.ranks import nodes_frame, ordered, ranks_frame
from outlast.dashboard.story import row
from outlast.events import events, reasons
from outlast.events.numbered import NumberedEvent
from outlast.logs.directory import logs_below
from outlast.observe import EventGap
from outlast.observe.log_sources import DirectoryLogSource
from outlast.protocol.views import JobView


def view_of(job: SimulatedJob) -> JobView:
    return replace(anyio.run(job.view), time=job.time)


def page(job: SimulatedJob) -> PageState:
    state = PageState()
    state.seen(view_of(job))
    for told in job.told:
        state.told(told, job.time)
    return state


def shown(state: PageState, name: str) -> Any:
    return json.loads(state.frames[name][1])


def over(success: bool) -> events.JobOver:
    ending = events.Ending.FINISHED if success else events.Ending.FAILED
    return events.JobOver(
        generation=1, success=success, ending=ending, reason="<b>why</b>", seconds=1.0, generations=1, restarts=0
    )


def test_a_browser_that_was_away_gets_what_it_missed_and_one_that_knows_another_run_gets_all() -> None:
    state = page(SimulatedJob())
    numbers = [each.n for each in state.rows]
    anew, rows = state.rows_after("run-1", numbers[-3])
    assert (anew, [each.n for each in rows]) == (False, numbers[-2:])
    assert state.rows_after("run-1", state.last) == (False, [])
    assert state.rows_after("run-0", numbers[-3]) == (True, state.rows)
    assert state.rows_after("run-1", state.last + 1)[0]


def test_an_event_that_comes_twice_is_shown_once() -> None:
    job = SimulatedJob()
    state = page(job)
    state.told(job.told[-1], job.time)
    assert len(state.rows) == len(job.rows)


def test_the_oldest_events_go_when_there_are_too_many() -> None:
    state = PageState()
    for number in range(1, MOST_ROWS + 2):
        state.told(NumberedEvent(number, 1.0, 1, events.NodeLeft(generation=1, node="a")), 1.0)
    assert len(state.rows) <= MOST_ROWS
    assert state.rows[-1].n == MOST_ROWS + 1


def test_another_run_of_the_job_starts_a_new_page() -> None:
    job = SimulatedJob()
    state = page(job)
    state.seen(replace(view_of(job), run="run-2"))
    assert (state.rows, state.last, state.run) == ([], 0, "run-2")


def test_lost_events_are_told_as_lost() -> None:
    state = page(SimulatedJob())
    state.told(EventGap(7, "run-1"), 5.0)
    assert (state.rows[-1].k, state.rows[-1].tone) == ("gap", "warn")


@pytest.mark.parametrize(("success", "tone"), [(True, "good"), (False, "fault")])
def test_the_end_of_the_job_is_the_headline(success: bool, tone: str) -> None:
    job = SimulatedJob()
    state = page(job)
    job.tell(over(success))
    state.told(job.told[-1], job.time)
    assert state.over
    assert shown(state, "now")["headline"]["tone"] == tone


def test_frames_get_a_new_version_only_when_they_change() -> None:
    job = SimulatedJob(nodes=2)
    state = page(job)
    before = {name: version for name, (version, _) in state.frames.items()}
    state.seen(replace(view_of(job), time=job.time + 1))
    after = {name: version for name, (version, _) in state.frames.items()}
    assert after == {**before, "now": before["now"] + 1, "ledger": before.get("ledger", 0) + 1}


def test_the_ledger_goes_on_between_events_and_its_sum_is_the_wall_time() -> None:
    job = SimulatedJob()
    state = page(job)
    for later in (1.0, 500.0):
        state.seen(replace(view_of(job), time=job.time + later))
        book = shown(state, "ledger")
        assert sum(book["time"].values()) == pytest.approx(book["wall"])
        assert book["wall"] == pytest.approx(job.time + later - job.began, abs=1.0)
    assert book["steps_lost"] == sum(each["steps_lost"] for each in book["faults"]) == 99
    assert 0.9 < book["goodput"] < 1.0


def test_the_pace_before_anybody_looked_comes_from_progress_events() -> None:
    state = PageState()
    for told in SimulatedJob().told:
        state.told(told, told.time)
    paces = [each.seconds for each in state.pace.samples if each.seconds is not None]
    assert len(paces) > 90
    state.seen(view_of(SimulatedJob()))
    assert len(state.pace.samples) > len(paces)
    assert 0.7 < min(paces) < max(paces) < 0.9
    assert any(each.seconds is None for each in state.pace.samples)


def test_a_view_that_comes_before_the_events_does_not_hide_the_pace_of_the_past() -> None:
    assert len(page(SimulatedJob()).pace.samples) > 90


def test_a_view_without_nodes_leaves_the_map_as_it_was() -> None:
    job = SimulatedJob()
    state = page(job)
    before = state.frames["ranks"]
    state.seen(replace(view_of(job), nodes=()))
    assert state.frames["ranks"] == before
    assert shown(state, "now")["seconds"] is not None


def test_the_map_of_ten_thousand_ranks_is_a_small_message() -> None:
    job = SimulatedJob(nodes=1250, workers=8)
    state = page(job)
    ranks = shown(state, "ranks")
    assert sum(ranks["counts"]) == 10_000
    assert ranks["letters"] == "03020"
    assert len(state.frames["ranks"][1]) < 200
    assert shown(state, "nodes")["workers"] == [8, 1250]


def test_each_state_of_a_node_has_its_letter() -> None:
    view = view_of(SimulatedJob(nodes=9, slow={}))
    changed = [
        {},
        {"connected": False},
        {"leaving": True},
        {"state": "failed"},
        {"state": "cut off"},
        {"state": "finished"},
        {"paces": ()},
        {"member": False, "ready": True, "group_rank": None, "first_rank": None},
        {"member": False, "group_rank": None, "first_rank": None},
    ]
    nodes = tuple(replace(node, **change) for node, change in zip(view.nodes, changed, strict=True))
    lined_up = ordered(replace(view, nodes=nodes))
    assert ranks_frame(1, lined_up).letters == "0ldxcfsri"
    assert nodes_frame(lined_up).first == (0, 1, 2, 3, 4, 5, 6, -1, -1)


def test_what_a_rank_says_is_known_by_its_number() -> None:
    state = page(SimulatedJob(nodes=3, workers=2))
    known = state.rank(3)
    assert known is not None
    assert (known["node"], known["local_rank"], known["waited"]) == ("gpu-0001", 1, "backward")
    assert state.rank(6) is None
    assert state.rank(-1) is None


def test_text_of_a_rank_is_shown_without_terminal_codes() -> None:
    event = events.NodeRefused(generation=1, node="a", why="\x1b[31m<script>\x1b[0m\x07\u202e")
    assert row(NumberedEvent(1, 0.0, 1, event)).text == "refused node a: <script>\ufffd\ufffd"


def test_a_planned_end_is_no_fault() -> None:
    drain = events.GenerationEnding(generation=1, reason=reasons.DrainingNode("a"))
    lost = events.GenerationEnding(generation=1, reason=reasons.LostNode("a", "gone"))
    told = [row(NumberedEvent(1, 0.0, 1, event)) for event in (drain, lost)]
    assert [(each.tone, each.planned) for each in told] == [("change", True), ("fault", False)]


@pytest.mark.parametrize(
    ("change", "word", "tone"),
    [
        ({}, "training", "good"),
        ({"wanted": 9}, "training", "good"),
        ({"here": 3}, "training", "warn"),
        ({"acting": False}, "no quorum", "fault"),
        ({"phase": "forming"}, "waiting for nodes", "warn"),
        ({"phase": "forming", "checking": True}, "checking nodes", "info"),
        ({"phase": "stopping"}, "stopping", "warn"),
        ({"changes": (reasons.DrainingNode("a"),)}, "training", "change"),
        ({"outcome": events.Ending.FAILED}, "failed", "fault"),
        ({"outcome": events.Ending.FINISHED}, "finished", "good"),
    ],
)
def test_the_headline_says_whether_it_trains(change: dict[str, Any], word: str, tone: str) -> None:
    said = headline(replace(view_of(SimulatedJob()), **change), trains=True)
    assert (said.word, said.tone) == (word, tone)


def test_before_the_first_step_it_starts() -> None:
    assert headline(view_of(SimulatedJob()), trains=False).word == "starting"


def test_of_a_log_the_end_is_shown_without_what_speaks_to_terminals(tmp_path: Path) -> None:
    place = tmp_path / "job_abcdefgh" / "attempt_1" / "3"
    place.mkdir(parents=True)
    long = (b"x" * 3000 + b"\n") * 100
    (place / "stdout.log").write_bytes(b"y" * 1_000_000 + b"\n" + long + b"\x1b[1mend\xff\x1b[0m\r\n")
    tail = asyncio.run(logs.rank_tail(DirectoryLogSource(logs_below(tmp_path)), 3))
    assert (tail.cut, tail.text[-6:], len(tail.text)) == (True, " end\ufffd\n", logs.TAIL)
