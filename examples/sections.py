"""A training that says what it is at, so that a rank that hangs is found by the part that takes too long.

    outlast run --nproc-per-node=2 --max-restarts=1 --ft-rank-section-timeouts=step:10,checkpoint:60 \
        examples/sections.py --hang-at 30

Rank 1 hangs in step 30 of the first attempt; ten seconds later it is named and ended, and all ranks go on from the last
checkpoint. Without `--ft-…` nobody is ended before the job has been calibrated: after some steps the ranks agree on
timeouts that fit what they have measured, and keep them in the checkpoint for the next run.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import outlast

CALIBRATE_AT = 50  # when everything that happens in this training has happened


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--save-every", type=int, default=20)
    options.add_argument("--hang-at", type=int, help="the step in which rank 1 hangs, the first time")
    options.add_argument("--checkpoint", type=Path, default=Path("sections.pt"))
    args = options.parse_args()

    with outlast.section("setup"):
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step, rank = 0, dist.get_rank()
        if args.checkpoint.exists():
            state = torch.load(args.checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            outlast.calibration.load_state_dict(state["outlast"])
            step = state["step"]
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    print(f"rank {rank} trains from step {step}", flush=True)

    while step < args.steps:
        with outlast.section("step"):
            if first and rank == 1 and step == args.hang_at:
                time.sleep(3600)
            x = torch.randn(32, 16)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            if not torch.isfinite(loss):
                outlast.control("stop", f"the loss is {loss.item()} in step {step}: no restart will help")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        step += 1
        outlast.step(step)
        if step == CALIBRATE_AT:
            outlast.calibrate()
        if rank == 0 and step % args.save_every == 0:
            with outlast.section("checkpoint"):
                draft = args.checkpoint.with_suffix(".draft")
                calibration = outlast.calibration.state_dict()
                torch.save({"model": model.state_dict(), "step": step, "outlast": calibration}, draft)
                draft.replace(args.checkpoint)
    print(f"rank {rank} has trained {step} steps, loss {loss.item():.3f}", flush=True)
    del model  # before its process group, see train.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
