"""An elastic classifier with checkpoints and evaluation, after the ImageNet example of PyTorch's elastic quickstart.

    outlast run --nnodes=1:4 --nproc-per-node=2 --max-restarts=3 \\
        --rdzv-backend=c10d --rdzv-endpoint=$HOST:29400 examples/elastic/main.py --epochs 5

Small pictures that it makes itself stand for ImageNet. What a worker raises is recorded by torch's @record, for the
launcher's summary. Nothing in it knows of Outlast.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES, SIDE = 4, 8


def pictures(count: int, seed: int) -> TensorDataset:
    """Noise with one bright quarter, which is the class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    images = torch.rand(count, 1, SIDE, SIDE, generator=random)
    half = SIDE // 2
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = half * (label // 2), half * (label % 2)
        image[0, row : row + half, column : column + half] += 0.5
    return TensorDataset(images, labels)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Go on from the checkpoint, if there is one; the first epoch to train."""
    if not path.is_file():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def save_checkpoint(path: Path, **state: object) -> None:
    """To a draft first, then moved: the job may be interrupted while it writes."""
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    draft.replace(path)


def validate(model: nn.Module, data: DataLoader, device: torch.device) -> float:
    """The share of pictures that are told right, over all ranks."""
    model.eval()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, labels in data:
            right = model(images.to(device)).argmax(1) == labels.to(device)
            counts += torch.stack([right.sum(), torch.tensor(len(right), device=device)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=5, type=int)
    parser.add_argument("--batch-size", default=32, type=int, help="per worker")
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument(
        "--dist-backend", choices=["nccl", "gloo"], default="nccl" if torch.cuda.is_available() else "gloo"
    )
    parser.add_argument("--checkpoint-file", default=Path("checkpoint.pt"), type=Path)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = args.dist_backend == "nccl"
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    dist.init_process_group(backend=args.dist_backend, init_method="env://")

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * (SIDE - 2) ** 2, CLASSES))
    model = DistributedDataParallel(net.to(device), device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    start = load_checkpoint(args.checkpoint_file, model, optimizer, device)

    training, testing = pictures(2048, seed=1), pictures(512, seed=2)
    sampler = DistributedSampler(training)
    train_loader = DataLoader(training, args.batch_size, sampler=sampler)
    test_loader = DataLoader(testing, args.batch_size, sampler=DistributedSampler(testing, shuffle=False))
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = validate(model, test_loader, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {accuracy:.0%} of the pictures told right")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(args.checkpoint_file, epoch=epoch + 1, **state)
    del model  # before its process group, see ../train.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
