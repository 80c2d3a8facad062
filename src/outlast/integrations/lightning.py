"""Lightning: a callback that tells Outlast how training gets on.

    from outlast.integrations.lightning import OutlastCallback

    trainer = Trainer(callbacks=[OutlastCallback()])

Sections are `setup`, `step` (one training batch), `validation`, `test`, `predict` and `checkpoint`: the names for
`--ft-rank-section-timeouts`. Every batch is a heartbeat. What was measured is part of Lightning's checkpoints, so the
next run knows it; when training has ended, timeouts are calibrated, and the rank is no longer watched.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from outlast.worker.session import Session
from outlast.worker.session import session as own_session

LIBRARIES = ("lightning.pytorch", "pytorch_lightning")  # the same, under its new and its old name


def callback_class() -> Any:
    """That of the library which the script uses already, or else which is installed."""
    for name in sorted(LIBRARIES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # it is there, but something that it needs is not
    raise ModuleNotFoundError("outlast.integrations.lightning needs Lightning: pip install lightning", name="lightning")


class OutlastCallback(callback_class()):  # type: ignore[misc]
    """Heartbeats, steps and sections for a Lightning trainer; costs a few microseconds per batch.

    `calibrate`: make timeouts from what was measured when `fit` has ended.
    """

    def __init__(self, *, calibrate: bool = True, session: Session = own_session) -> None:
        super().__init__()
        self._session = session
        self._calibrate = calibrate
        self._rests = False
        self._replaced: Callable[..., Any] | None = None  # what hid the trainer's own method before us
        self._saves: Callable[..., Any] | None = None

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:  # noqa: ARG002  (given by this name)
        if self._rests:
            self._session.resume_monitoring()
            self._rests = False
        self._session.start_section("setup")
        # There is a hook before a checkpoint is written, and none after it.
        self._replaced = trainer.__dict__.get("save_checkpoint")
        save = trainer.save_checkpoint

        @wraps(save)
        def save_in_section(*args: Any, **options: Any) -> Any:
            with self._session.section("checkpoint"):
                return save(*args, **options)

        trainer.save_checkpoint = self._saves = save_in_section

    def teardown(self, trainer: Any, _module: Any, stage: str) -> None:  # noqa: ARG002  (given by this name)
        self._release(trainer)
        self._session.end_all_sections()
        self._rest()

    def on_exception(self, trainer: Any, _module: Any, _exception: BaseException) -> None:
        self._release(trainer)
        self._session.end_all_sections()

    def on_sanity_check_start(self, _trainer: Any, _module: Any) -> None:
        self._session.end_section("setup")

    def on_train_start(self, _trainer: Any, _module: Any) -> None:
        self._session.end_section("setup")

    def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, _index: int) -> None:
        self._session.start_section("step")

    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, _index: int) -> None:
        self._session.end_section("step")
        self._session.step(trainer.global_step)

    def on_validation_start(self, _trainer: Any, _module: Any) -> None:
        self._begin("validation")

    def on_validation_batch_end(self, *_: Any) -> None:
        self._session.heartbeat()

    def on_validation_end(self, _trainer: Any, _module: Any) -> None:
        self._session.end_section("validation")

    def on_test_start(self, _trainer: Any, _module: Any) -> None:
        self._begin("test")

    def on_test_batch_end(self, *_: Any) -> None:
        self._session.heartbeat()

    def on_test_end(self, _trainer: Any, _module: Any) -> None:
        self._session.end_section("test")

    def on_predict_start(self, _trainer: Any, _module: Any) -> None:
        self._begin("predict")

    def on_predict_batch_end(self, *_: Any) -> None:
        self._session.heartbeat()

    def on_predict_end(self, _trainer: Any, _module: Any) -> None:
        self._session.end_section("predict")

    def on_fit_end(self, _trainer: Any, _module: Any) -> None:
        self._session.end_all_sections()
        if self._calibrate:
            self._session.calibrate()

    def state_dict(self) -> dict[str, Any]:
        return {"calibration": self._session.calibration.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._session.calibration.load_state_dict(state_dict["calibration"])

    def _begin(self, section: str) -> None:
        self._session.end_section("setup")
        self._session.start_section(section)

    def _release(self, trainer: Any) -> None:
        """Take our hands off the trainer, unless another one's are on top of ours."""
        if self._saves is not None and trainer.__dict__.get("save_checkpoint") is self._saves:
            del trainer.save_checkpoint
            if self._replaced is not None:
                trainer.save_checkpoint = self._replaced
        self._saves = None

    def _rest(self) -> None:
        """What the script does after training may take as long as it likes."""
        if not self._rests:
            self._session.pause_monitoring()
            self._rests = True
