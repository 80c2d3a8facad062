"""A Lightning training that may kill itself: `lightning_module.py DIRECTORY --steps 9 --kill-at 6`."""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import outlast
from outlast.integrations.lightning_checkpoints import LightningCheckpoints


class Model(LightningModule):  # type: ignore[misc]
    def __init__(self, kill_at: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.kill_at = kill_at
        self.loss = ""

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[0].sum(1, keepdim=True))
        self.loss = loss.item().hex()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        print(f"step {self.trainer.global_step} loss {self.loss}", flush=True)
        if self.trainer.global_step == self.kill_at and os.environ.get("OUTLAST_GENERATION") == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--steps", type=int)
    options.add_argument("--kill-at", type=int, default=0)
    args = options.parse_args()
    seed_everything(3, verbose=False)
    loader = StatefulDataLoader(TensorDataset(torch.randn(40, 4)), batch_size=10, shuffle=True)  # four steps an epoch
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=args.steps,
        callbacks=[LightningCheckpoints(outlast.Checkpointer(args.directory))],
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(args.kill_at), loader)


if __name__ == "__main__":
    main()
