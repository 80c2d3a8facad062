"""The watch over a generation's workers: who is late is found in time, who is not is left alone, requests are heard."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast.agent.monitoring import watch as watching
from outlast.agent.monitoring.watch import Hang, Limits, Watch
from outlast.board.layout import VARIABLE
from outlast.board.readings import Action, Request
from outlast.core.hangs.rank_clocks import Clock, Timeouts
from outlast.settings.settings import Settings
from outlast.worker.session import Session

SOON = 60.0  # seconds in which a test's event has long come


class Scene:
    """A watch over two workers, and what it has said."""

    def __init__(self, settings: Settings, longest: Mapping[str, float] | None = None) -> None:
        self.hangs: list[Hang] = []
        self.requests: list[tuple[int, Request]] = []
        self.calibrations = 0
        self.news = asyncio.Event()
        self.watch = Watch(
            2,
            Limits.of(settings),
            late=lambda found: self.note(self.hangs.extend, found),
            asked=lambda rank, request: self.note(self.requests.append, (rank, request)),
            calibrate=self.calibrate,
            longest=longest,
        )
        self.workers = [Session({VARIABLE: self.watch.address(rank)}) for rank in range(2)]

    def note(self, keep: Callable[[Any], None], what: Any) -> None:
        keep(what)
        self.news.set()

    def calibrate(self) -> None:
        self.calibrations += 1
        self.news.set()

    async def hear(self) -> None:
        await asyncio.wait_for(self.news.wait(), SOON)
        self.news.clear()


@asynccontextmanager
async def scene(longest: Mapping[str, float] | None = None, **settings: Any) -> AsyncIterator[Scene]:
    made = Scene(Settings(**settings), longest)
    try:
        made.watch.begin()
        yield made
    finally:
        made.watch.close()


def test_settings_of_0_are_no_timeouts() -> None:
    assert Limits.of(Settings()).timeouts == Timeouts()
    set_ = Settings(
        rank_heartbeat_timeout=3, initial_rank_heartbeat_timeout=9, rank_section_timeouts="a:1", safety_factor=2
    )
    assert Limits.of(set_) == Limits("on", Timeouts(startup=9, heartbeat=3, sections={"a": 1.0}), 2.0)


def test_a_rank_without_a_heartbeat_is_found_when_it_is_due_and_not_before() -> None:
    async def main() -> None:
        async with scene(rank_heartbeat_timeout=0.3) as here:
            began = time.monotonic()  # before its step, however long it takes from here to there
            here.workers[1].step(7)
            await here.hear()
            (hang,) = here.hangs
            assert (hang.local_rank, hang.late.clock, hang.verdict) == (1, Clock.HEARTBEAT, True)
            assert time.monotonic() - began >= 0.3
            assert str(hang) == f"it had no heartbeat or step for 0.3 s; step 7 was {hang_age(hang)} s ago"

    asyncio.run(main())


def hang_age(hang: Hang) -> str:
    assert hang.reading.step_at is not None
    return f"{hang.reading.read_at - hang.reading.step_at:.1f}"


def test_a_section_that_is_opened_after_the_first_look_is_watched_though_nothing_else_is() -> None:
    async def main() -> None:
        async with scene(rank_section_timeouts="save:0.2") as here:
            await asyncio.sleep(0)
            with here.workers[0].section("epoch"), here.workers[0].section("save"):
                await here.hear()
            (hang,) = here.hangs
            assert (hang.late.clock, hang.late.section) == (Clock.SECTION, "save")
            assert "in epoch > save" in str(hang)

    asyncio.run(main())


def test_ranks_that_are_late_together_are_told_together_the_longest_first() -> None:
    async def main() -> None:
        async with scene(initial_rank_heartbeat_timeout=0.2, rank_section_timeouts="a:0.1") as here:
            here.workers[1].start_section("a")
            here.watch.rest()  # so that both are found in one look, however slow this machine is
            here.watch._judged = {0, 1}
            await asyncio.sleep(0.3)
            here.watch._look()
            assert [(hang.local_rank, hang.late.clock) for hang in here.hangs] == [
                (1, Clock.SECTION),
                (0, Clock.STARTUP),
            ]

    asyncio.run(main())


def test_one_that_goes_on_is_never_late_and_looked_at_no_more_often_than_needed(monkeypatch: Any) -> None:
    async def main() -> None:
        async with scene(rank_heartbeat_timeout=0.5) as here:
            looks: list[float] = []
            look, enough = here.watch._look, asyncio.Event()

            def counted() -> None:
                looks.append(time.monotonic())
                for worker in here.workers:  # which go on, however late this machine comes to look
                    worker.heartbeat()
                look()
                if len(looks) == 4:
                    enough.set()

            monkeypatch.setattr(here.watch, "_look", counted)
            await asyncio.wait_for(enough.wait(), SOON)
            assert here.hangs == []
            assert looks[3] - looks[0] > 3 * 0.5 - 0.01  # each time the one that was looked at last is due again

    asyncio.run(main())


def test_a_pause_stops_all_clocks_and_they_start_anew_after_it() -> None:
    async def main() -> None:
        async with scene(rank_heartbeat_timeout=0.3) as here:
            worker = here.workers[0]
            worker.heartbeat()
            with worker.pause_monitoring():
                await asyncio.sleep(0.8)
                assert here.hangs == []
                resumed = time.monotonic()
            await here.hear()
            assert here.hangs[0].late.since >= resumed

    asyncio.run(main())


def test_nobody_is_late_who_has_exited_or_is_being_ended() -> None:
    async def main() -> None:
        async with scene(rank_heartbeat_timeout=0.2) as here:
            here.workers[0].heartbeat()
            here.watch.exited(0)
            here.workers[1].heartbeat()
            await here.hear()
            assert [hang.local_rank for hang in here.hangs] == [1]
            here.workers[1].heartbeat()
            here.watch.rest()
            await asyncio.sleep(0.5)
            assert len(here.hangs) == 1

    asyncio.run(main())


def test_what_is_only_reported_is_reported_once_for_each_time_it_hangs() -> None:
    async def main() -> None:
        async with scene(rank_heartbeat_timeout=0.15, hang_detection="report") as here:
            here.workers[0].heartbeat()
            await here.hear()
            await asyncio.sleep(0.5)
            assert [hang.verdict for hang in here.hangs] == [False]
            here.workers[0].heartbeat()
            await here.hear()
            assert len(here.hangs) == 2

    asyncio.run(main())


def test_with_no_timeout_at_all_a_rank_that_seems_to_hang_is_only_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.core.hangs.rank_clocks.SUSPICIOUS_AFTER", 0.3)
    monkeypatch.setattr(watching, "SUSPICIOUS_AFTER", 0.3)

    async def main() -> None:
        async with scene() as here:
            for _ in range(2):  # so that it is known how long it takes
                here.workers[0].heartbeat()
            await here.hear()
            (hang,) = here.hangs
            assert (hang.local_rank, hang.verdict, hang.late.due - hang.late.since) == (0, False, pytest.approx(0.3))

    asyncio.run(main())


def test_with_hang_detection_off_nobody_looks_but_requests_are_heard() -> None:
    async def main() -> None:
        async with scene(rank_heartbeat_timeout=0.1, hang_detection="off") as here:
            here.workers[0].heartbeat()
            assert here.watch._timer is None
            here.workers[0].control("stop", "enough")
            await here.hear()
            assert here.requests == [(0, Request(1, Action.STOP, "enough"))]
            assert here.hangs == []

    asyncio.run(main())


def test_each_request_is_taken_once_and_the_last_one_also_from_a_worker_that_is_no_more() -> None:
    async def main() -> None:
        async with scene() as here:
            here.workers[1].control("drain", "first")
            await here.hear()
            here.watch._rung()
            here.workers[1].control("restart", "second")  # and dies: the bell was rung, but nobody has listened yet
            here.watch.exited(1)
            here.watch._rung()
            assert [(rank, request.reason) for rank, request in here.requests] == [(1, "first"), (1, "second")]

    asyncio.run(main())


def test_a_request_is_heard_when_the_watch_ends_at_the_latest() -> None:
    async def main() -> None:
        async with scene() as here:
            here.watch.rest()
            here.workers[0].control("exclude_node", "bad memory")
        assert [request.action for _, request in here.requests] == [Action.EXCLUDE_NODE]

    asyncio.run(main())


def test_a_rank_asks_for_calibration_and_what_is_agreed_on_is_in_force_and_known_to_the_workers() -> None:
    async def main() -> None:
        async with scene(rank_out_of_section_timeout=77, safety_factor=3) as here:
            here.workers[0].step()
            here.workers[0].step()
            here.workers[0].calibrate()
            await here.hear()
            assert here.calibrations == 1
            assert here.watch.measures().keys() >= {"startup", "heartbeat"}
            here.watch.agree({"heartbeat": 20.0})
            assert (here.watch.timeouts.heartbeat, here.watch.timeouts.outside) == (60.0, 77)
            told = json.loads(here.workers[1].calibration.state_dict()["longest"])
            assert told["heartbeat"] == 20.0

    asyncio.run(main())


def test_the_next_generation_begins_calibrated() -> None:
    async def main() -> None:
        async with scene({"section:save": 8.0}) as here:
            assert here.watch.timeouts.sections == {"save": 40.0}
            assert json.loads(here.workers[0].calibration.state_dict()["longest"]) == {"section:save": 8.0}

    asyncio.run(main())


def test_a_watch_that_was_held_up_itself_gives_everybody_their_time_again() -> None:
    async def main() -> None:
        async with scene(rank_heartbeat_timeout=0.2) as here:
            here.workers[0].heartbeat()
            time.sleep(0.2 + watching.HELD_UP + 0.2)  # noqa: ASYNC251  (that is the point)
            await here.hear()  # it is silent for that time once more
            assert here.hangs[0].late.since > here.hangs[0].reading.beat_at

    asyncio.run(main())


def test_it_leaves_no_descriptor_open() -> None:
    def open_ones() -> set[str]:
        return {entry.name for entry in Path("/proc/self/fd").iterdir()}

    async def main() -> None:
        gc.collect()  # what sessions of other tests had mapped
        before = open_ones()
        watch = Watch(2, Limits.of(Settings()), late=ignore, asked=ignore, calibrate=ignore)
        watch.begin()
        assert len(open_ones()) > len(before)
        watch.close()
        assert open_ones() <= before

    asyncio.run(main())


def ignore(*_: object) -> None:
    pass
