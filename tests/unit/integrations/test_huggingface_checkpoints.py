"""The callback for Hugging Face's Trainer, in one process. Needs transformers and accelerate: else it is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import outlast

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(data).square().mean()}


class StopEarly(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 3


def test_a_training_that_is_stopped_early_is_on_disk_and_one_that_is_done_stays_so(tmp_path: Path) -> None:
    from outlast.integrations.huggingface import TrainerCheckpoints

    for steps in (10, 3):  # and once more, when nothing is left to train
        checkpointer = outlast.Checkpointer(tmp_path / "ck", every=100)
        checkpoints = TrainerCheckpoints(checkpointer)
        trainer = transformers.Trainer(
            Model(),
            transformers.TrainingArguments(
                str(tmp_path), save_strategy="no", report_to=[], use_cpu=True, max_steps=steps
            ),
            train_dataset=[{"data": torch.ones(2)} for _ in range(16)],
            callbacks=[checkpoints, StopEarly()],
        )
        checkpoints.train(trainer)
        assert trainer.state.global_step == 3
        checkpointer.close()
        assert [each.name for each in (tmp_path / "ck").glob("step-*")] == ["step-00000003"]


class Patience(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):  # type: ignore[misc, name-defined]
    """Counts, as EarlyStoppingCallback does; is stopped after some steps of one run."""

    def __init__(self, stop_at: int) -> None:
        self.counter, self.stop_at = 0, stop_at

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        self.counter += 1
        control.should_training_stop = state.global_step == self.stop_at

    def state(self) -> dict[str, Any]:
        return {"args": {"stop_at": self.stop_at}, "attributes": {"counter": self.counter}}


def test_what_callbacks_have_counted_goes_on(tmp_path: Path) -> None:
    """An early stopping began to count anew with each restart."""
    from outlast.integrations.huggingface import TrainerCheckpoints

    for stop_at in (3, 5):
        checkpointer = outlast.Checkpointer(tmp_path / "ck")
        checkpoints, patience = TrainerCheckpoints(checkpointer), Patience(stop_at)
        trainer = transformers.Trainer(
            Model(),
            transformers.TrainingArguments(str(tmp_path), save_strategy="no", report_to=[], use_cpu=True, max_steps=9),
            train_dataset=[{"data": torch.ones(2)} for _ in range(80)],
            callbacks=[patience, checkpoints],
        )
        checkpoints.train(trainer)
        checkpointer.close()
        assert (patience.counter, patience.stop_at) == (stop_at, stop_at)
