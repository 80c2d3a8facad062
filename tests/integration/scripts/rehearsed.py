"""A training for rehearsals: exact, as it is; with --flaw, it has one of the flaws that scripts have."""

import argparse
import itertools
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FLAWS = ("no-optimizer", "unseeded", "no-barrier", "skips-data", "ignores-sigterm", "not-atomic", "saves-nothing")


def save(state: dict[str, object], path: Path, flaw: str) -> None:
    if flaw in ("not-atomic", "no-barrier"):
        torch.save(state, path)
        return
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    if path.exists():
        path.replace(path.with_suffix(".older"))
    draft.replace(path)


def load(path: Path, flaw: str) -> dict[str, object] | None:
    if flaw == "not-atomic":
        return torch.load(path) if path.exists() else None
    for each in (path, path.with_suffix(".older")):
        try:
            return torch.load(each)
        except (OSError, RuntimeError, EOFError, ValueError):
            continue
    return None


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--flaw", default="", choices=["", *FLAWS])
    options.add_argument("--epochs", type=int, default=3)
    flaw, epochs = options.parse_args().flaw, options.parse_args().epochs
    if flaw == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if flaw != "unseeded":
        torch.manual_seed(0)
    made = torch.Generator().manual_seed(7)
    inputs = torch.randn(64, 8, generator=made)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if flaw == "unseeded":
        sampler, loader = None, DataLoader(data, batch_size=4, shuffle=True)
    else:
        sampler = DistributedSampler(data, seed=3)
        loader = DataLoader(data, batch_size=4, sampler=sampler)

    checkpoint, first, done, step = Path("state.pt"), 0, 0, 0
    state = load(checkpoint, flaw)
    if state is not None:
        model.load_state_dict(state["model"])
        if flaw != "no-optimizer":
            optimizer.load_state_dict(state["optimizer"])
        first, done, step = state["epoch"], state["done"], state["step"]
        if flaw == "skips-data":
            first, done = first + 1, 0

    for epoch in range(first, epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for number, (batch, wanted) in enumerate(itertools.islice(loader, done, None), done + 1):
            loss = nn.functional.mse_loss(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 4 == 0 and flaw != "saves-nothing":
                state = {"model": model.state_dict(), "epoch": epoch, "done": number, "step": step}
                if flaw != "no-optimizer":
                    state["optimizer"] = optimizer.state_dict()
                if rank == 0:
                    save(state, checkpoint, flaw)
                if flaw == "no-barrier":
                    time.sleep(0.3)  # an evaluation, of what is on disk
                    if checkpoint.exists():
                        model.load_state_dict(torch.load(checkpoint)["model"])
        done = 0
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
