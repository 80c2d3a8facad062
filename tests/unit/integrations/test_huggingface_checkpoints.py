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
