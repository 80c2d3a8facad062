"""A trainer with snapshots, after PyTorch's tutorial "Fault-tolerant Distributed Training with torchrun".

    outlast run --nproc-per-node=2 --max-restarts=3 examples/elastic/multigpu_torchrun.py 50 10

Whenever a worker fails, all of them start again and go on from the last snapshot. Nothing in it knows of Outlast.
"""

import argparse
import os
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    """Trains from the snapshot, if there is one, and leaves one every few epochs."""

    def __init__(
        self,
        model: torch.nn.Module,
        train_data: DataLoader,
        optimizer: torch.optim.Optimizer,
        save_every: int,
        snapshot: Path,
    ) -> None:
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local_rank) if on_gpu else torch.device("cpu")
        self.model = model.to(self.device)
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.snapshot = snapshot
        self.epochs_run = 0
        if snapshot.exists():
            self.load_snapshot()
        self.model = DistributedDataParallel(self.model, device_ids=[self.local_rank] if on_gpu else None)

    def load_snapshot(self) -> None:
        state = torch.load(self.snapshot, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["MODEL_STATE"])
        self.epochs_run = state["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def save_snapshot(self, epoch: int) -> None:
        draft = self.snapshot.with_suffix(".draft")
        torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}, draft)
        draft.replace(self.snapshot)
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot}")

    def run_epoch(self, epoch: int) -> None:
        print(f"[rank {self.global_rank}] Epoch {epoch} | Steps: {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.model(source.to(self.device)), targets.to(self.device))
            loss.backward()
            self.optimizer.step()

    def train(self, max_epochs: int) -> None:
        for epoch in range(self.epochs_run, max_epochs):
            self.run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self.save_snapshot(epoch)


def main() -> None:
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=32, type=int, help="Input batch size on each device (default: 32)")
    parser.add_argument("--snapshot", default=Path("snapshot.pt"), type=Path, help="Where the snapshot lies")
    args = parser.parse_args()

    init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.rand(2048, 20), torch.rand(2048, 1))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = DataLoader(dataset, batch_size=args.batch_size, shuffle=False, sampler=DistributedSampler(dataset))
    Trainer(model, data, optimizer, args.save_every, args.snapshot).train(args.total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    main()
