"""The board: found by its address, never torn, never misread as late, and gone with those who used it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from bisect import bisect_left, bisect_right
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.board.board import Board
from outlast.board.layout import (
    BEAT_AT,
    CLOCK_BITS,
    CLOSED_AT,
    END,
    ENTRIES,
    PAUSES,
    PID,
    REQUEST,
    RESUMED_AT,
    SIZE,
    VERSION,
    VERSION_AT,
)
from outlast.board.readings import Action, Request
from outlast.board.slot import BoardSlot, collect
from outlast.core.hangs.rank_clocks import Timeouts, deadline
from outlast.worker.session import Session
from processes import descriptors
from session_clock import set_session_clock

AGENT = """
import sys
from outlast.board.board import Board
print(Board(1).address(0), flush=True)
sys.stdin.read()
"""


def test_a_worker_finds_its_slot_by_the_address_alone(board: Board) -> None:
    code = (
        "from outlast.board.layout import BEATS; from outlast.board.slot import BoardSlot;"
        f"slot = BoardSlot.at({board.address(1)!r}); slot.claim(); slot.words[BEATS] = 7"
    )
    process = subprocess.Popen([sys.executable, "-c", code])  # with no descriptor of ours
    assert process.wait() == 0
    assert (board.read(1).pid, board.read(1).beats) == (process.pid, 7)
    assert (board.read(0).pid, board.read(0).beats) == (None, 0)


def test_nothing_is_left_of_the_board_of_an_agent_that_was_killed() -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert agent.stdin is not None
    assert agent.stdout is not None
    with agent.stdin, agent.stdout:
        address = agent.stdout.readline().strip()
        slot = BoardSlot.at(address)
        agent.kill()
        agent.wait()
    slot.words[BEAT_AT] = 5
    slot.ask(Action.STOP, "nobody is left to hear it")
    with pytest.raises(OSError):
        BoardSlot.at(address)
    slot.release()  # /dev/shm is looked at by a fixture


def test_closing_gives_back_every_descriptor() -> None:
    before = descriptors()
    Board(3).close()
    assert descriptors() <= before


def test_a_worker_cannot_take_the_memory_from_under_its_agent(board: Board) -> None:
    path = board.address(0).partition(":")[0]
    with pytest.raises(PermissionError), open(path, "rb+") as file:
        file.truncate(0)


def test_what_is_not_the_board_of_this_worker_is_refused(board: Board, tmp_path: Path) -> None:
    path, slot, key = board.address(0).split(":")
    other = tmp_path / "file"
    other.write_bytes(b"\1" * 3 * SIZE)
    with pytest.raises(ValueError, match="not the board"):
        BoardSlot.at(f"{path}:{slot}:0")
    with pytest.raises(ValueError, match="not the board"):
        BoardSlot.at(f"{other}:{slot}:{key}")
    with pytest.raises(ValueError, match="2 slots"):
        BoardSlot.at(f"{path}:2:{key}")
    other.write_bytes(b"small")
    with pytest.raises(ValueError, match="not a board"):
        BoardSlot.at(f"{other}:{slot}:{key}")


def test_a_board_of_another_version_says_what_to_do(board: Board) -> None:
    board._whole[VERSION_AT * 8] = VERSION + 1
    with pytest.raises(ValueError, match="install the same"):
        BoardSlot.at(board.address(0))


def test_a_slot_belongs_to_one_living_process(board: Board) -> None:
    slot = BoardSlot.at(board.address(0))
    assert slot.claim()
    slot.words[ENTRIES[0]] = 1
    assert slot.claim()  # again, as after an exec, which forgets its sections
    assert slot.words[ENTRIES[0]] == 0
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    slot.words[PID] = child.pid
    assert not slot.claim()
    child.stdin.close()
    child.wait()
    assert slot.claim()
    slot.release()


def test_a_request_is_written_before_the_bell_rings(board: Board) -> None:
    slot = BoardSlot.at(board.address(1))
    assert not select.select([board.bell], [], [], 0)[0]
    slot.ask(Action.EXCLUDE_NODE, "the GPU is too hot")
    assert select.select([board.bell], [], [], 0)[0]
    board.hush()
    assert not select.select([board.bell], [], [], 0)[0]
    assert board.read(1).request == Request(1, Action.EXCLUDE_NODE, "the GPU is too hot")
    slot.ask(Action.STOP, "ü" * 1000)
    newest = board.read(1).request
    assert newest is not None
    assert (newest.number, newest.action) == (2, Action.STOP)
    assert set(newest.reason) == {"ü"}
    assert board.read(0).request is None
    slot.release()


def test_a_request_of_a_worker_that_died_while_writing_it_is_not_seen(board: Board) -> None:
    slot = BoardSlot.at(board.address(0))
    slot.ask(Action.RESTART, "first")
    slot.words[REQUEST] += 1 << 8  # as it is while the text is being written
    assert board.read(0).request is None
    slot.ask(Action.STOP, "second")
    request = board.read(0).request
    assert request is not None
    assert (request.action, request.reason) == (Action.STOP, "second")
    slot.release()


def test_what_a_dying_rank_asked_for_is_there_after_its_end(board: Board) -> None:
    code = "from outlast.worker.session import control; import os; control('stop', 'NaN'); os.kill(os.getpid(), 9)"
    env = {**os.environ, "OUTLAST_BOARD": board.address(0)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == -signal.SIGKILL
    assert board.read(0).request == Request(1, Action.STOP, "NaN")


def test_readings_of_a_busy_worker_never_go_back(board: Board) -> None:
    code = """if True:
        from outlast.worker.session import section, step
        print("ready", flush=True)
        while True:
            with section("outer"), section("inner"):
                step()
    """
    env = {**os.environ, "OUTLAST_BOARD": board.address(0)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        readings = [board.read(0) for _ in range(3000)]
        while not readings[-1].beats:
            readings.append(board.read(0))
        worker.kill()
    begun = [reading for reading in readings if reading.beat_at]
    for before, after in pairwise(begun):
        assert (before.beats, before.beat_at, before.step) <= (after.beats, after.beat_at, after.step)
        assert (before.closed_at or 0) <= (after.closed_at or 0)
        assert {section.name for section in after.sections} <= {"outer", "inner"}


def test_a_bell_that_rang_a_thousand_times_is_hushed(board: Board) -> None:
    slot = BoardSlot.at(board.address(0))
    for _ in range(5000):
        slot.ring()
    board.hush()
    assert not select.select([board.bell], [], [], 0)[0]
    slot.release()


def test_names_are_cut_to_whole_characters_and_unknown_ones_are_marked() -> None:
    slot = BoardSlot()
    slot.add_name(0, "ß" * 40)
    assert slot.name(0) == "ß" * 23
    assert slot.name(1) == "?"


def test_text_that_all_agreed_on_is_kept_whole_or_not_at_all() -> None:
    slot = BoardSlot()
    slot.agree('{"heartbeat": 1.5}')
    slot.agree("x" * SIZE)
    assert slot.agreed() == '{"heartbeat": 1.5}'


class Stores:
    """The stores of a session, one by one, and how many there were after each of its calls."""

    def __init__(self) -> None:
        self.after: list[list[int]] = [[0] * (END + 1)]  # all words, after so many stores
        self.calls: list[int] = [0]
        self.times: list[float] = [0.0]
        self.time = 1.0

    def __setitem__(self, word: int, value: int) -> None:
        self.times.append(self.time)
        self.after.append(list(self.after[-1]))
        self.after[-1][word] = value

    @property
    def last(self) -> int:
        return len(self.after) - 1


def recorded(calls: list[tuple[str, int]]) -> Stores:
    """What a session stores when it does this, with some time before each of its looks at the clock."""
    stores = Stores()
    session, opened = Session({}), []

    def clock() -> int:
        stores.time += 1
        return int(stores.time * 1e9)

    with pytest.MonkeyPatch.context() as patch:
        set_session_clock(patch, clock)
        for name in ("a", "b", "c"):
            session.section(name)
        session._words = stores
        for call, which in calls:
            if call == "open":
                opened.append(session.section("abc"[which]))
                opened[-1].__enter__()
            elif call == "close" and opened:
                opened.pop(which % len(opened)).__exit__(None, None, None)
            elif call in ("heartbeat", "step", "pause_monitoring", "resume_monitoring"):
                getattr(session, call)()
            elif call == "wait":
                stores.time += 20
            if stores.last > stores.calls[-1]:
                stores.calls.append(stores.last)
    return stores


TIMEOUTS = Timeouts(startup=500, heartbeat=50, outside=10, sections={"a": 30, "b": 90, "c": 10})


def due(words: list[int]) -> float:
    """When a worker with these words is late."""
    slot = BoardSlot()
    for number, name in enumerate("abc"):
        slot.add_name(number, name)
    for word in (BEAT_AT, *ENTRIES, CLOSED_AT, PAUSES, RESUMED_AT):
        slot.words[word] = words[word]
    at = deadline(slot.read(), TIMEOUTS)
    return float("inf") if at is None else at


CALLS = st.lists(
    st.tuples(
        st.sampled_from([*2 * ["wait", "open", "close"], "heartbeat", "pause_monitoring", "resume_monitoring"]),
        st.integers(0, 2),
    ),
    min_size=5,
    max_size=12,
)


@settings(max_examples=200)
@given(CALLS)
@example([("open", 1), ("close", 0), ("wait", 0), ("open", 1), ("close", 0)])
@example([("open", 2), ("pause_monitoring", 0), ("wait", 0), ("resume_monitoring", 0)])
def test_who_reads_upwards_while_a_worker_goes_on_never_finds_it_late_if_it_is_not(
    calls: list[tuple[str, int]],
) -> None:
    stores = recorded(calls)
    true = {count: due(stores.after[count]) for count in stores.calls}
    for first, pause, held_up in product(
        range(stores.last + 1), [*ENTRIES[:3], CLOSED_AT, PAUSES, RESUMED_AT], (0, 1, 3)
    ):
        now = stores.times[first + 1] if first < stores.last else 1e6  # just before the next store
        last = min(first + held_up, stores.last)
        seen = stores.after[first][:pause] + stores.after[last][pause:]  # so many stores in the midst of the reading
        if due(seen) <= now:
            # Then so it was between two calls of the session, somewhere from the one in which the reading began to
            # the one in which it ended.
            between = stores.calls[bisect_right(stores.calls, first) - 1 : bisect_left(stores.calls, last) + 1]
            assert min(true[count] for count in between) <= now


class Busy:
    """Words that change under the reader, a store after each load, for a while."""

    def __init__(self, stores: Stores, quiet_after: int) -> None:
        self._stores, self._left, self.made = stores, quiet_after, 0

    def __getitem__(self, _: slice) -> Busy:
        return self

    def tolist(self) -> list[int]:
        words = []
        for word in range(END):
            words.append(self._stores.after[self.made][word])
            if self._left and self.made < self._stores.last:
                self._left, self.made = self._left - 1, self.made + 1
        return words


@given(CALLS, st.integers(0, 40))
def test_a_reading_that_came_out_twice_is_one_moment(calls: list[tuple[str, int]], changes: int) -> None:
    busy = Busy(recorded(calls), changes)
    words = collect(busy)  # type: ignore[arg-type]
    assert words == busy._stores.after[busy.made][:END]


def test_a_busy_slot_is_read_all_the_same() -> None:
    class Never:
        count = 0

        def __getitem__(self, _: slice) -> Never:
            return self

        def tolist(self) -> list[int]:
            self.count += 1
            return [self.count]

    assert collect(Never()) == [9]  # type: ignore[arg-type]


def test_an_open_section_is_one_word() -> None:
    slot = BoardSlot()
    slot.add_name(0, "forward")
    slot.add_name(1, "loss")
    slot.words[ENTRIES[3]] = 5_000_000_123 & CLOCK_BITS | 1
    slot.words[ENTRIES[7]] = 4_000_000_000 & CLOCK_BITS | 0
    outer, inner = slot.read().sections
    assert (outer.name, inner.name) == ("forward", "loss")
    assert inner.since == pytest.approx(5.0, abs=1e-6)


def test_counts_and_times_of_nothing_are_none() -> None:
    reading = BoardSlot().read()
    assert (reading.pid, reading.beat_at, reading.step, reading.closed_at, reading.request) == (None,) * 5
    assert (reading.beats, reading.sections, dict(reading.longest)) == (0, (), {})
