"""A training for chaos: two ranks or more that exchange gradients at every step, and save each one."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import outlast


def main(directory: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoints = outlast.Checkpointer(directory, keep_last=3)
    state = {"model": model, "optimizer": optimizer}
    step = checkpoints.restore(state)
    while True:
        step += 1
        loss = model(torch.ones(1, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if dist.get_rank() == 0 and not loss.isfinite():
            print("the loss is not finite", flush=True)
        checkpoints.save(step, state, durable=step % 20 == 0)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
