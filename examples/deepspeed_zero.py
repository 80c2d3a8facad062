"""DeepSpeed's ZeRO with Outlast's checkpoints.

    outlast run --nproc-per-node=2 --max-restarts=3 examples/deepspeed_zero.py checkpoints/ --stage 2

Kill a worker (`kill -9`): it goes on from the last step, with the very same numbers. It takes as many ranks as before,
so give a number of nodes, and no range. Needs deepspeed; without a GPU, set DS_ACCELERATOR=cpu.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal

import deepspeed
import torch
import torch.distributed as dist

import outlast
from outlast.integrations import deepspeed as zero


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--stage", type=int, default=2)
    options.add_argument("--steps", type=int, default=9)
    options.add_argument("--bf16", action="store_true")
    options.add_argument("--kill-at", type=int, default=0, help="rank 1 kills itself after this step, once")
    args = options.parse_args()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Dropout(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": args.bf16},
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 100},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    ckpt = outlast.Checkpointer(args.directory)
    state = {**zero.state(engine), "epoch": 0}
    start = ckpt.restore(state)
    print(f"rank {rank} goes on after step {start}", flush=True)
    for step in range(start + 1, args.steps + 1):
        torch.manual_seed(1000 * step + rank)  # its own data and dropout, as they would be from a seeded loader
        batch = torch.randn(16, 64, device=engine.device, dtype=torch.bfloat16 if args.bf16 else torch.float32)
        loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
        ckpt.save(step, state, durable=step == args.steps)
        dist.barrier()
        print(f"step {step} rank {rank} loss {loss.item().hex()} lr {engine.get_lr()[0]:.6f}", flush=True)
        if step == args.kill_at and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    ckpt.wait()
    ckpt.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
