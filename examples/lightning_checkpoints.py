"""A Lightning training, with Outlast's checkpoints: start it with `outlast run` (or torchrun).

    pip install lightning torchdata
    outlast run --nproc-per-node=2 --max-restarts=3 examples/lightning_checkpoints.py --steps 200

It learns the sum of eight numbers from data that it makes itself. Every step is saved in memory, and every few steps on
disk; whoever starts next goes on from the newest, in the middle of an epoch: its loader has a state.
"""

import argparse
import os
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import outlast
from outlast.integrations.lightning_checkpoints import LightningCheckpoints


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

    def train_dataloader(self) -> StatefulDataLoader:
        numbers = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(numbers, numbers.sum(1, keepdim=True))
        sampler = DistributedSampler(data, self.trainer.world_size, self.trainer.global_rank)
        return StatefulDataLoader(data, batch_size=16, sampler=sampler)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--save-every", type=int, default=20)
    options.add_argument("--output", type=Path, default=Path("adder-checkpoints"))
    args = options.parse_args()

    lightning.seed_everything(0, verbose=False)
    saving = LightningCheckpoints(outlast.Checkpointer(args.output, keep_last=2), durable_every=args.save_every)
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp",
        max_steps=args.steps,
        callbacks=[saving],
        enable_checkpointing=False,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Adder())


if __name__ == "__main__":
    main()
