"""Hugging Face's Trainer, that may kill itself: `huggingface_trainer.py DIRECTORY --steps 9 --kill-at 6`."""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import outlast
from outlast.integrations.huggingface import TrainerCheckpoints


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = nn.functional.mse_loss(self.layers(x), labels)
        self.losses.append(loss.item())
        return {"loss": loss}


class Tell(TrainerCallback):  # type: ignore[misc]
    def __init__(self, model: Model, kill_at: int) -> None:
        self.model, self.kill_at = model, kill_at

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        print(f"step {state.global_step} loss {self.model.losses[-1].hex()}", flush=True)
        if state.global_step == self.kill_at and os.environ.get("OUTLAST_GENERATION") == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--steps", type=int)
    options.add_argument("--kill-at", type=int, default=0)
    args = options.parse_args()
    torch.manual_seed(3)
    numbers = torch.randn(40, 4)
    data = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in numbers]
    model = Model()
    checkpoints = TrainerCheckpoints(outlast.Checkpointer(args.directory))
    settings = TrainingArguments(
        output_dir=f"{args.directory}-output",
        max_steps=args.steps,
        save_strategy="no",
        per_device_train_batch_size=10,  # four steps an epoch
        logging_steps=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = Trainer(model, settings, train_dataset=data, callbacks=[checkpoints, Tell(model, args.kill_at)])
    checkpoints.train(trainer)
    # What was logged before is known again; of a step that is logged after it was saved, it is not.
    assert {2, 4, 8} <= {entry["step"] for entry in trainer.state.log_history if "loss" in entry}


if __name__ == "__main__":
    main()
