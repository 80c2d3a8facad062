"""Heartbeats, sections and steps of a worker: on the board with Outlast, nowhere without, and never from a child."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from outlast.board.board import Board
from outlast.board.layout import ENTRIES, NAME_SIZE, OTHER, VARIABLE
from outlast.board.readings import Action, Reading
from outlast.board.slot import cut
from outlast.worker.session import Session
from session_clock import set_session_clock


@pytest.fixture
def session(board: Board) -> Session:
    return Session({VARIABLE: board.address(0)})


def names(reading: Reading) -> list[str]:
    return [section.name for section in reading.sections]


def run(code: str, board: Board) -> str:
    """Run a worker of slot 0; what it printed."""
    env = {**os.environ, VARIABLE: board.address(0)}
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout


def test_a_session_comes_to_the_board_with_the_first_thing_it_has_to_say(board: Board, session: Session) -> None:
    assert board.read(0).pid is None
    session.heartbeat()
    reading = board.read(0)
    assert (reading.pid, reading.beats) == (os.getpid(), 1)
    assert reading.attached_at is not None
    assert reading.beat_at is not None
    assert reading.born_at <= reading.beat_at <= reading.attached_at <= board.read(0).read_at


def test_steps_are_counted_or_given_and_are_heartbeats_too(board: Board, session: Session) -> None:
    session.step()
    session.step()
    assert (board.read(0).step, board.read(0).beats) == (2, 2)
    session.step(41)
    session.step()
    assert board.read(0).step == 42
    assert board.read(0).step_at == board.read(0).beat_at


def test_steps_are_counted_on_from_what_was_restored_and_only_when_they_are_made(
    board: Board, session: Session
) -> None:
    session.go_on_after(280)
    session.heartbeat()
    assert board.read(0).step is None
    session.optimizer_stepped()
    assert board.read(0).step == 281


def test_an_optimizers_step_that_is_no_training_is_not_counted(board: Board, session: Session) -> None:
    with session.no_training():
        session.optimizer_stepped()
    assert board.read(0).step is None
    session.optimizer_stepped()
    assert board.read(0).step == 1


def test_steps_of_an_optimizer_count_until_the_script_says_better(board: Board, session: Session) -> None:
    session.optimizer_stepped()
    session.optimizer_stepped()
    assert board.read(0).step == 2
    session.step(100)
    session.optimizer_stepped()
    assert (board.read(0).step, board.read(0).beats) == (100, 4)


def test_sections_are_nested_and_close_in_any_event(board: Board, session: Session) -> None:
    with suppress(ZeroDivisionError), session.section("epoch"), session.section("forward"):
        assert names(board.read(0)) == ["epoch", "forward"]
        _ = 1 / 0
    assert names(board.read(0)) == []
    assert board.read(0).closed_at is not None


def test_one_section_object_may_be_entered_within_itself(board: Board, session: Session) -> None:
    section = session.section("recursion")
    with section:
        with section:
            assert names(board.read(0)) == ["recursion"] * 2
        assert names(board.read(0)) == ["recursion"]
    assert names(board.read(0)) == []


def test_a_decorated_function_is_a_section_each_time_it_is_called(board: Board, session: Session) -> None:
    @session.section("depth")
    def depth(levels: int) -> list[str]:
        """Go down."""
        return depth(levels - 1) if levels else names(board.read(0))

    @session.section("waiting")
    async def waiting() -> list[str]:
        await asyncio.sleep(0)
        return names(board.read(0))

    assert depth(2) == ["depth"] * 3
    assert depth.__doc__ == "Go down."
    assert asyncio.run(waiting()) == ["waiting"]
    assert names(board.read(0)) == []


def test_sections_of_one_name_that_overlap_are_told_apart(board: Board, session: Session) -> None:
    first, second = session.section("load"), session.section("load")
    first.__enter__()
    second.__enter__()
    _, younger = board.read(0).sections
    first.__exit__(None, None, None)
    assert board.read(0).sections == (younger,)
    second.__exit__(None, None, None)


def test_a_started_section_may_be_ended_by_another_thread(board: Board, session: Session) -> None:
    session.start_section("checkpoint")
    thread = threading.Thread(target=session.end_section, args=("checkpoint",))
    thread.start()
    thread.join()
    assert names(board.read(0)) == []


def test_started_sections_may_overlap_and_all_be_ended_at_once(board: Board, session: Session) -> None:
    session.start_section("a")
    session.start_section("b")
    session.start_section("a")
    session.end_section("a")
    session.end_section("never started")
    assert sorted(names(board.read(0))) == ["a", "b"]
    with session.section("with"):
        session.end_all_sections()
        assert names(board.read(0)) == ["with"]
    session.end_section("a")
    assert names(board.read(0)) == []


def test_sections_beyond_the_room_of_the_board_do_no_harm(board: Board, session: Session) -> None:
    for _ in range(len(ENTRIES) + 5):
        session.start_section("deep")
    assert len(board.read(0).sections) == len(ENTRIES)
    session.end_all_sections()
    assert board.read(0).sections == ()
    for _ in ENTRIES:
        session.start_section("again")
    assert len(board.read(0).sections) == len(ENTRIES)


def test_names_beyond_the_room_of_the_board_are_watched_as_one(
    board: Board, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(OTHER + 20):
        with session.section(f"section {number}"):
            expected = f"section {number}" if number < OTHER else "other"
            assert names(board.read(0)) == [expected]
    assert len(caplog.records) == 1
    assert session.section("section 3")._name.number == 3


def test_names_that_the_agent_watches_have_room_however_many_others_come_first() -> None:
    long = "a section with a name that is longer than the room that the board has for it"
    board = Board(1, ["checkpoint", cut(long, NAME_SIZE)])
    session = Session({VARIABLE: board.address(0)})
    for number in range(OTHER + 20):
        with session.section(f"section {number}"):
            pass
    for name in ("checkpoint", long):
        with session.section(name):
            assert names(board.read(0)) == [cut(name, NAME_SIZE)]
    assert f"section:{cut(long, NAME_SIZE)}" in board.read(0).longest
    board.close()


def test_a_name_that_is_only_watched_has_not_been_entered() -> None:
    board = Board(1, ["checkpoint"])
    session = Session({VARIABLE: board.address(0)})
    with session.section("step"):
        session.step()
    assert "section:checkpoint" not in board.read(0).longest
    totals = board.totals(0)
    assert totals is not None
    assert list(totals.spent) == ["step"]
    board.close()


def test_many_threads_leave_no_section_open(board: Board, session: Session) -> None:
    def work(number: int) -> None:
        for turn in range(500):
            with session.section(f"thread {number}"), session.section("shared"):
                session.heartbeat()
                session.step(turn)
            session.start_section("started")
            session.end_section("started")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
    finally:
        sys.setswitchinterval(before)
    reading = board.read(0)
    assert reading.sections == ()
    assert sorted(session._free) == list(ENTRIES)
    assert {f"section:thread {number}" for number in range(6)} < set(reading.longest)


def test_the_longest_of_everything_is_measured(board: Board, session: Session, clock: list[int]) -> None:
    clock[0] += 5
    session.heartbeat()
    for gap in (2, 7, 3):
        clock[0] += gap
        session.step()
    for inside, outside in ((1, 4), (9, 2), (3, 100)):
        with session.section("save"):
            clock[0] += inside
        clock[0] += outside
    longest = board.read(0).longest
    assert longest["heartbeat"] == 7
    assert longest["section:save"] == 9
    assert longest["outside"] == 4  # the last one is not over
    assert longest["startup"] == pytest.approx(5, abs=1)


def test_time_outside_counts_only_while_no_section_is_open(board: Board, session: Session, clock: list[int]) -> None:
    with session.section("outer"):
        with session.section("inner"):
            clock[0] += 1
        clock[0] += 50
        with session.section("inner"):
            clock[0] += 1
    assert "outside" not in board.read(0).longest


def test_what_a_pause_has_interrupted_is_not_measured(board: Board, session: Session, clock: list[int]) -> None:
    session.heartbeat()
    with session.section("debugged"):
        clock[0] += 1
        with session.pause_monitoring():
            assert board.read(0).paused
            with session.pause_monitoring():
                clock[0] += 1000
            assert board.read(0).paused
    assert not board.read(0).paused
    session.heartbeat()
    assert not {"section:debugged", "heartbeat"} & set(board.read(0).longest)
    clock[0] += 3
    session.heartbeat()
    assert board.read(0).longest["heartbeat"] == 3
    session.resume_monitoring()  # once too often
    assert not board.read(0).paused


def test_control_is_on_the_board_when_it_returns(board: Board, session: Session) -> None:
    assert session.control("exclude_node", "uncorrectable memory error")
    request = board.read(0).request
    assert request is not None
    assert (request.action, request.reason) == (Action.EXCLUDE_NODE, "uncorrectable memory error")
    assert select.select([board.bell], [], [], 0)[0]


def test_an_unknown_action_is_refused_with_those_that_there_are(session: Session) -> None:
    with pytest.raises(ValueError, match="'halt'; give one of stop, exclude_node, restart, drain"):
        session.control("halt", "")


def test_calibration_is_asked_for_and_ends_what_is_measured(board: Board, session: Session, clock: list[int]) -> None:
    session.heartbeat()
    with session.section("a"):
        clock[0] += 1
    clock[0] += 6
    session.calibrate()
    reading = board.read(0)
    assert reading.calibrations == 1
    assert (reading.longest["outside"], reading.longest["heartbeat"]) == (6, 7)
    assert select.select([board.bell], [], [], 0)[0]


def test_what_was_measured_is_carried_to_the_next_run(board: Board, session: Session, clock: list[int]) -> None:
    session.heartbeat()
    with session.section("save"):
        clock[0] += 20
    session.heartbeat()
    board.agree(json.dumps({"section:save": 30.0, "section:elsewhere": 2.0, "outside": 5.0}))
    state = session.calibration.state_dict()
    later = Session({VARIABLE: board.address(1)})
    later.calibration.load_state_dict(json.loads(json.dumps(state)))
    reading = board.read(1)
    assert {what: time for what, time in reading.longest.items() if what != "startup"} == {
        "heartbeat": 20,
        "section:save": 30,
        "section:elsewhere": 2,
        "outside": 5,
    }
    assert reading.calibrations == 1


def test_the_first_heartbeat_does_not_forget_a_longer_start_of_an_earlier_run(board: Board) -> None:
    session = Session({VARIABLE: board.address(0)})
    session.calibration.load_state_dict({"longest": '{"startup": 1234.0}'})
    session.heartbeat()
    assert board.read(0).longest["startup"] == 1234.0


def test_without_outlast_everything_works_and_nobody_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    session = Session({})
    session.heartbeat()
    session.step(3)
    with session.section("a"), session.pause_monitoring():
        session.start_section("b")
        session.end_all_sections()
    session.calibrate()
    state = session.calibration.state_dict()
    assert "startup" not in json.loads(state["longest"])  # nobody knows when it was started
    session.calibration.load_state_dict(state)
    assert not session.control("stop", "no one is there")
    assert not session.attached
    assert not caplog.records


def test_a_board_that_cannot_be_reached_is_told_once_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    session = Session({VARIABLE: "/proc/1/fd/987:0:abc"})
    with caplog.at_level(logging.WARNING):
        session.heartbeat()
        session.heartbeat()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not session.attached


def test_children_of_a_worker_write_nothing_on_its_board(board: Board) -> None:
    code = """
        import multiprocessing, os
        from outlast.worker.session import control, heartbeat, section, session, step

        def child():
            step(99)
            section("child").__enter__()
            print(control("stop", "from a child"), session.attached, flush=True)

        if __name__ == "__main__":
            step(1)
            with section("mine"):
                pid = os.fork()
                if pid == 0:
                    child()
                    os._exit(0)
                os.waitpid(pid, 0)
                import subprocess, sys
                again = "from outlast.worker.session import *; step(98); print(control('stop', ''), session.attached)"
                subprocess.run([sys.executable, "-c", again], check=True)
            print(session.attached)
    """
    lines = run("\n".join(line[8:] for line in code.splitlines()), board).split()
    assert lines == ["False", "False", "False", "False", "True"]
    reading = board.read(0)
    assert (reading.step, names(reading), reading.request) == (1, [], None)


def test_a_child_that_is_forked_before_the_worker_has_said_anything_is_not_the_worker(board: Board) -> None:
    code = """if True:
        import os
        from outlast.worker.session import heartbeat
        pid = os.fork()
        heartbeat()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    """
    run(code, board)
    assert board.read(0).beats == 1


def test_a_fork_of_a_zygote_finds_its_board_and_keeps_the_names_of_its_sections(board: Board) -> None:
    environ: dict[str, str] = {}
    session = Session(environ)
    decorated = session.section("made at import")(lambda: names(board.read(1)))
    session.heartbeat()
    session.forked()
    environ[VARIABLE] = board.address(1)
    assert decorated() == ["made at import"]
    assert board.read(1).beats == 0
    session.heartbeat()
    assert board.read(1).beats > 0


def test_the_first_word_of_several_threads_at_once_is_one_attachment(board: Board) -> None:
    session = Session({VARIABLE: board.address(0)})
    barrier = threading.Barrier(8)

    def speak(number: int) -> None:
        barrier.wait()
        with session.section(f"name {number}"):
            session.heartbeat()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(speak, range(8)))
    assert {f"section:name {number}" for number in range(8)} <= set(board.read(0).longest)
    assert board.read(0).sections == ()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seconds that the session's clock is ahead: it stands still but for them."""
    import time

    now, ahead = time.monotonic_ns(), [0]
    set_session_clock(monkeypatch, lambda: now + ahead[0] * 10**9)
    return ahead
