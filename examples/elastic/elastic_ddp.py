"""The smallest DDP script for a launcher, after PyTorch's tutorial "Getting Started with DDP": one step of a toy model.

    outlast run --nproc-per-node=2 examples/elastic/elastic_ddp.py

Nothing in it knows of Outlast: rank, world and where to meet come from the environment, as torchrun gives them.
"""

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x)))


def demo_basic() -> None:
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    print(f"Start running basic DDP example on rank {rank} of {dist.get_world_size()}.")

    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    ddp_model = DistributedDataParallel(ToyModel().to(device), device_ids=[device] if on_gpu else None)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)

    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10, device=device))
    labels = torch.randn(20, 5, device=device)
    loss_fn(outputs, labels).backward()
    optimizer.step()

    del ddp_model  # before its process group, see ../train.py
    dist.destroy_process_group()
    print(f"Finished running basic DDP example on rank {rank}.")


if __name__ == "__main__":
    demo_basic()
