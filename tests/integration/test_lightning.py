"""The Lightning callback, with real trainers. Needs Lightning, which the tests do not install: else it is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlast.board.board import Board
from outlast.board.readings import Reading
from outlast.worker.session import Session

pytest.importorskip("lightning.pytorch")
pytestmark = [pytest.mark.filterwarnings("default")]

BATCHES = 4


@pytest.fixture
def session(board: Board) -> Session:
    return Session({"OUTLAST_BOARD": board.address(0)})


def trainer(path: Path, callback: Any, **options: Any) -> Any:
    from lightning.pytorch import Trainer

    return Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=BATCHES,
        limit_val_batches=2,
        limit_test_batches=2,
        default_root_dir=path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
        **options,
    )


def model(**methods: Any) -> Any:
    from lightning.pytorch.demos.boring_classes import BoringModel

    return type("Model", (BoringModel,), methods)()


def callback(session: Session) -> Any:
    from outlast.integrations.lightning import OutlastCallback

    return OutlastCallback(session=session)


def test_a_fit_has_steps_and_sections_and_is_calibrated_in_the_end(
    tmp_path: Path, board: Board, session: Session
) -> None:
    during: list[Reading] = []

    def training_step(self: Any, batch: Any, index: int) -> Any:
        during.append(board.read(0))
        return super(type(self), self).training_step(batch, index)

    trainer(tmp_path, callback(session)).fit(model(training_step=training_step))
    after = board.read(0)
    assert [[section.name for section in reading.sections] for reading in during] == [["step"]] * BATCHES
    assert after.step == BATCHES
    assert after.beats > BATCHES  # those of validation
    assert {"section:setup", "section:step", "section:validation", "section:checkpoint"} <= set(after.longest)
    assert after.sections == ()
    assert after.calibrations == 1
    assert after.paused


def test_the_trainer_is_as_before_when_it_has_ended(tmp_path: Path, session: Session) -> None:
    made = trainer(tmp_path, callback(session))
    made.fit(model())
    assert "save_checkpoint" not in vars(made)


def test_an_exception_leaves_no_section_open(tmp_path: Path, board: Board, session: Session) -> None:
    def training_step(_self: Any, _batch: Any, _index: int) -> Any:
        raise ValueError("a bad batch")

    with pytest.raises(ValueError, match="a bad batch"):
        trainer(tmp_path, callback(session)).fit(model(training_step=training_step))
    assert board.read(0).sections == ()


def test_a_second_call_of_the_trainer_is_watched_again(tmp_path: Path, board: Board, session: Session) -> None:
    during: list[Reading] = []

    def test_step(self: Any, batch: Any, index: int) -> Any:
        during.append(board.read(0))
        return super(type(self), self).test_step(batch, index)

    made, network = trainer(tmp_path, callback(session)), model(test_step=test_step)
    made.fit(network)
    made.test(network, verbose=False)
    assert [([section.name for section in reading.sections], reading.paused) for reading in during] == [
        (["test"], False)
    ] * 2
    assert board.read(0).paused


def test_what_was_measured_is_in_the_checkpoint_and_found_again(tmp_path: Path, board: Board, session: Session) -> None:
    trainer(tmp_path, callback(session)).fit(model())
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    other = Board(1)
    try:
        again = callback(Session({"OUTLAST_BOARD": other.address(0)}))
        made = trainer(tmp_path, again)
        made.fit_loop.max_epochs = 2
        made.fit(model(), ckpt_path=checkpoint)
        first, second = board.read(0), other.read(0)
        assert second.step == 2 * BATCHES
        assert second.longest["section:step"] >= first.longest["section:step"]
        assert second.calibrations == 2  # of what was loaded, and at the end
    finally:
        other.close()
