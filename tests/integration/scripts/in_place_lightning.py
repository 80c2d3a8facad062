"""Lightning inside a restartable function, its module outside: `in_place_lightning.py FOLDER FAULTS`, of rank 1."""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning
import torch
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import outlast
from outlast.integrations.lightning_checkpoints import LightningCheckpoints

FOLDER, FAULTS = sys.argv[1], int(sys.argv[2])
STEPS, FAULT_AT = 6, 3


class Adder(lightning.LightningModule):
    """Learns the sum of some numbers; fails once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        numbers, sums = batch
        return torch.nn.functional.mse_loss(self.layer(numbers), sums)

    def on_train_batch_end(self, *_: Any) -> None:
        step, rank = self.trainer.global_step, self.trainer.global_rank
        print(f"rank {rank} pid {os.getpid()} makes step {step}", flush=True)
        torch.distributed.barrier()  # the fault finds that all have saved
        if (rank, step) == (1, FAULT_AT) and int(os.environ["OUTLAST_GENERATION"]) <= FAULTS:
            raise ValueError("an error of the test's")

    def train_dataloader(self) -> StatefulDataLoader:
        numbers = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(numbers, numbers.sum(1, keepdim=True))
        sampler = DistributedSampler(data, self.trainer.world_size, self.trainer.global_rank)
        return StatefulDataLoader(data, batch_size=16, sampler=sampler)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


lightning.seed_everything(0, verbose=False)
module = Adder()


@outlast.restartable
def train() -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=STEPS,
        callbacks=[LightningCheckpoints(outlast.Checkpointer(FOLDER), durable_every=100)],
        enable_checkpointing=False,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module)


train()
# In one write: `print` makes two, and the other rank's may come between them.
sys.stdout.write(f"rank {os.environ['RANK']} ends with {[each.tolist() for each in module.parameters()]}\n")
