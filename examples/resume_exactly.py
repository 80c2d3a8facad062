"""A training that goes on exactly where it was: `outlast run --nproc-per-node=2 --max-restarts=3 resume_exactly.py`.

Kill it as often as you like. Every sample is trained once per epoch, and the last line, a checksum of the model, is the
same as that of a run that nothing happened to.
"""

import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import outlast

EPOCHS = 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(4096, 16)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    checkpointer = outlast.Checkpointer("checkpoints/")
    loader = outlast.ElasticLoader(dataset, global_batch=64)
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    step = checkpointer.restore(state)  # the newest step that all ranks have; 0: there is none yet
    say(f"training from step {step}")

    for _ in range(loader.epoch, EPOCHS):
        for (x, y), weights in loader:
            losses = (model(x) - y).square().mean(1)
            (losses * weights).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            checkpointer.save(step, state, durable=step % 100 == 0)  # each step to memory, each hundredth to disk
            if step % 50 == 0:
                say(f"step {step}: loss {losses.mean().item():.4f}")
            time.sleep(0.02)  # a real model takes longer than this one

    checkpointer.wait()
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    say(f"finished at step {step}; checksum of the model: {zlib.crc32(weights):08x}")
    del model, state, checkpointer  # before the process group (docs/hangs.md)
    dist.destroy_process_group()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
