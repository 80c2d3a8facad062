"""A Lightning training, made to outlast its workers: start it with `outlast run` (or torchrun).

    pip install lightning
    outlast run --nproc-per-node=2 --max-restarts=3 examples/lightning_ddp.py --steps 200

It learns the sum of eight numbers from data that it makes itself. Lightning saves every few steps, and whoever starts
next goes on from the last checkpoint.
"""

import argparse
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Adder(lightning.LightningModule):
    """A small network, and one line for every step, from rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        numbers, sums = batch
        return nn.functional.mse_loss(self.layers(numbers), sums)

    def on_train_batch_end(self, *_) -> None:
        if self.trainer.is_global_zero:
            print(f"step {self.trainer.global_step} of {self.trainer.max_steps}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--save-every", type=int, default=20)
    options.add_argument("--output", type=Path, default=Path("adder"))
    args = options.parse_args()

    numbers = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(numbers, numbers.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    saving = ModelCheckpoint(
        args.output, every_n_train_steps=args.save_every, save_last=True, enable_version_counter=False
    )
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp",
        max_steps=args.steps,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = args.output / "last.ckpt"
    if os.environ.get("RANK", "0") == "0":
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        print(f"training from {last if last.exists() else 'the beginning'} (restarts so far: {restarts})", flush=True)
    trainer.fit(Adder(), loader, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()
