"""A worker can write anything to its part of the board: its agent reads numbers and texts that it can send, always."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.board.board import Board
from outlast.board.layout import BOUNDARIES, ENTRIES, NAMES, REQUEST, SIZE, STEP, STEP_AT, WAITED, WORDS_FROM
from outlast.board.slot import BoardSlot
from outlast.protocol.fields import Count, Name, Reason, Time

WORDS = st.dictionaries(
    st.integers(0, WORDS_FROM // 8 - 1), st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 33, 255, 2**53 + 1])
)
LAST_WORDS = st.binary(max_size=200) | st.text(max_size=50).map(str.encode)


def sendable(value: object, kind: object) -> None:
    msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


@given(WORDS, LAST_WORDS)
@example({NAMES: 33, STEP_AT: 1}, b"")
@example({NAMES: -5, WAITED: -7, STEP_AT: -1, STEP: -1}, b"")
@example({BOUNDARIES: 2**62, BOUNDARIES + 2: -1}, b"nan\x1eE\x1em\x1et")
@example({ENTRIES[0]: -1, REQUEST: -1}, b"1e400\x1eE\x1em\x1et")
@example({REQUEST: 2**63 - 1}, b"soon\x1eE\x1em\x1et")
def test_whatever_is_written_there_can_be_read_and_sent(words: dict[int, int], last_words: bytes) -> None:
    board = Board(1)
    try:
        slot = BoardSlot.at(board.address(0))
        for word, value in words.items():
            slot.words[word] = value
        slot.memory[WORDS_FROM : WORDS_FROM + len(last_words)] = last_words
        look(board)
        slot.release()
    finally:
        board.close()


@given(st.integers(0, 2**32))
def test_noise_can_be_read_and_sent(seed: int) -> None:
    board = Board(1)
    try:
        slot = BoardSlot.at(board.address(0))
        slot.memory[:] = Random(seed).randbytes(SIZE)
        look(board)
        slot.release()
    finally:
        board.close()


def look(board: Board) -> None:
    reading = board.read(0)
    sendable(reading.step, Count | None)
    sendable(reading.pid, Count | None)
    sendable(dict(reading.longest), dict[Name, Time])
    for section in reading.sections:
        sendable(section.name, Name)
        sendable(section.since, Time)
    if reading.request is not None:
        sendable(reading.request.reason, Reason)
    if (totals := board.totals(0)) is not None:
        sendable(totals.step, Count)
        sendable(totals.waited, Name)
        assert all(spent.after(None)[1] >= 0 for spent in totals.spent.values())
    (progress,) = board.progress()
    sendable([progress.passed, progress.sealed], list[Count])
    sendable(progress.step, Count | None)
    if (said := board.last_words(0)) is not None:
        sendable(said.at, Time)
        sendable([said.exception, said.message, said.traceback], list[str])
