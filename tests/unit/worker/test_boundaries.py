"""The boundaries between a worker's steps: whenever a change is planned, all ranks halt at the same one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from outlast.board.board import Board
from outlast.board.layout import HALT, PAUSES, VARIABLE
from outlast.checkpoint.trainer import checkpointer as checkpoints
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.core.job.planned_change import Change
from outlast.events.reasons import InheritedChange, Saved
from outlast.protocol.generations import Halted
from outlast.protocol.rules import Rules
from outlast.worker.boundary import Boundaries
from outlast.worker.session import Session

RANKS = 3
RULES = Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2, planned_change_timeout=60.0)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board(RANKS)
    yield made
    made.close()


def until(true: Callable[[], bool]) -> None:
    """Nothing wakes a test either when a word of memory changes."""
    while not true():
        threading.Event().wait(0.001)


class Training:
    """Ranks as threads, each with a board of its own node, that make their steps together as a collective would."""

    def __init__(self, boards: list[Board]) -> None:
        self.boards = boards
        self.halted_at: list[list[int]] = [[] for _ in boards]
        self._collective = threading.Barrier(len(boards))
        self._threads = [
            threading.Thread(target=self._train, args=(rank, board), daemon=True) for rank, board in enumerate(boards)
        ]
        for thread in self._threads:
            thread.start()

    def _train(self, rank: int, board: Board) -> None:
        boundaries = Boundaries(Session({VARIABLE: board.address(0)}))
        boundaries.expect()
        for step in count(1):
            try:
                self._collective.wait()
            except threading.BrokenBarrierError:
                return
            if boundaries.reach() is not None:
                self.halted_at[rank].append(step)
                boundaries.seal(step)

    def end(self) -> None:
        self._collective.abort()
        for board in self.boards:
            board._slots[0].words[HALT] = 0  # as if no change had been planned
        for thread in self._threads:
            thread.join()
        for board in self.boards:
            board.close()


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training([Board(1) for _ in range(RANKS)])
    yield made
    made.end()


@pytest.mark.parametrize("attempt", range(10))
def test_all_ranks_halt_at_the_same_boundary_and_go_no_further(training: Training, attempt: int) -> None:
    boards = training.boards
    until(lambda: all(board.progress()[0].passed for board in boards))
    change, told = Change(RULES, 1), dict.fromkeys(range(RANKS), 0)
    threading.Event().wait(attempt / 1000)
    halt = change.plan(InheritedChange(), {str(rank) for rank in range(RANKS)}, durable=False, now=0.0)
    assert halt is not None
    for board in boards:
        board.halt(halt.at, durable=False)
    while not change.outcome(0.0):
        threading.Event().wait(0.001)
        for rank, board in enumerate(boards):
            (progress,) = board.progress()
            said = Halted(told[rank], progress.able, progress.passed, progress.sealed, progress.step)
            if (news := change.hear(str(rank), said)) is not None:
                told = dict.fromkeys(range(RANKS), news.at)
                for each in boards:
                    each.halt(news.at, durable=False)
    ended = change.outcome(0.0)
    assert ended is not None
    assert ended.saved is Saved.ALL
    (step,) = {steps[-1] for steps in training.halted_at}
    assert [board.progress()[0].passed for board in boards] == [step - 1] * RANKS


def test_one_who_halts_is_not_watched_and_goes_on_when_the_boundary_moves(board: Board) -> None:
    boundaries = Boundaries(Session({VARIABLE: board.address(0)}))
    boundaries.expect()
    assert boundaries.reach() is None
    board.halt(2, durable=True)
    halt = boundaries.reach()
    assert halt is not None
    assert halt.durable
    waiting = threading.Thread(target=boundaries.seal, args=(20,))
    waiting.start()
    slot = board._slots[0]
    until(lambda: board.progress()[0].sealed == 2)
    until(lambda: slot.words[PAUSES] == 1)
    assert (board.progress()[0].passed, board.progress()[0].step) == (1, 20)
    board.halt(3, durable=True)
    waiting.join()
    assert slot.words[PAUSES] == 0
    assert board.progress()[0].passed == 2


def test_who_made_no_checkpointer_comes_to_no_boundary(board: Board) -> None:
    Session({VARIABLE: board.address(0)}).heartbeat()
    assert not board.progress()[0].able


def test_a_save_that_was_to_be_skipped_is_made_before_a_change_and_its_mark_is_that_of_the_call(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that skip and ranks that do not must agree on which save is which."""
    session = Session({VARIABLE: board.address(0)})
    monkeypatch.setattr(checkpoints, "boundaries", Boundaries(session))
    state = {"w": torch.arange(4.0)}
    checkpointer = Checkpointer(tmp_path, every=10)
    saved = [checkpointer.save(step, state) for step in range(10, 14)]
    assert saved == [True, False, False, False]
    board.halt(5, durable=True)

    def move_on() -> None:
        until(lambda: board.progress()[0].sealed == 5)
        board.halt(6, durable=True)

    mover = threading.Thread(target=move_on)
    mover.start()
    assert checkpointer.save(14, state)
    mover.join()
    assert board.progress()[0].step == 14
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000014"]  # it has awaited that
    assert checkpointer._saver.newest is not None
    assert checkpointer._saver.newest[1] == 4
    checkpointer.close()
