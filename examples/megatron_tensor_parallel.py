"""Layers that Megatron-core has split over ranks (tensor parallelism), with Outlast's checkpoints.

    outlast run --nproc-per-node=2 --max-restarts=3 examples/megatron_tensor_parallel.py checkpoints/

Kill a worker (`kill -9`): it goes on from the last step, with the very same numbers. Each rank has a part of every
layer under the same name, hence `outlast.PerRank`; so it takes as many ranks as before. Needs megatron-core.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

import outlast


class Block(torch.nn.Module):
    """Two layers, of which each rank has a part of the width between them."""

    def __init__(self, config: ModelParallelConfig) -> None:
        super().__init__()
        init = torch.nn.init.xavier_normal_
        self.up = ColumnParallelLinear(16, 32, config=config, init_method=init, gather_output=False)
        self.down = RowParallelLinear(
            32, 4, config=config, init_method=init, bias=True, input_is_parallel=True, skip_bias_add=False
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(torch.tanh(self.up(batch)[0]))[0]
        return result


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--steps", type=int, default=9)
    options.add_argument("--kill-at", type=int, default=0, help="rank 1 kills itself after this step, once")
    args = options.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    torch.manual_seed(7)
    model = Block(ModelParallelConfig(tensor_model_parallel_size=world, use_cpu_initialization=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    ckpt = outlast.Checkpointer(args.directory)
    state = {"model": outlast.PerRank(model), "optim": outlast.PerRank(optimizer), "epoch": 0}
    start = ckpt.restore(state)
    print(f"rank {rank} goes on after step {start}", flush=True)
    for step in range(start + 1, args.steps + 1):
        torch.manual_seed(step)  # all ranks of such a group see the same batch
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ckpt.save(step, state, durable=step == args.steps)
        dist.barrier()
        own = sum(weight.detach().double().sum().item() for weight in model.parameters())
        print(f"step {step} rank {rank} loss {loss.item().hex()} own {own.hex()}", flush=True)
        if step == args.kill_at and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    ckpt.wait()
    ckpt.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
