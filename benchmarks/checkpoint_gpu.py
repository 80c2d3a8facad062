"""What snapshots cost a training on a GPU, and whether they are right.

One rank of a transformer-like training, fp32 with AdamW. Measured: how fast the state leaves the GPU against what the
link gives to one large pinned buffer; and steps without saves against a snapshot after every step, with the copy beside
training (the default) and before `save` returns, interleaved. Then what was saved is compared, to the bit, with what
there was: after training went on, after somebody changed the state behind our back, and with steps in a CUDA graph.

    outlast run --nproc-per-node 1 benchmarks/checkpoint_gpu.py [--layers 16] [--batch 64] [--steps 20]

Without a launcher it runs, too: the memory is then the worker's own.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import outlast

WIDTH = 2048
ROUNDS = 3


def training(layers: int, batch: int) -> tuple[dict[str, Any], Callable[[], None]]:
    blocks = [
        torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(layers)
    ]
    model = torch.nn.Sequential(*blocks).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(batch, 256, WIDTH, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        outlast.step()

    return {"model": model, "optim": optimizer}, step


def size_of(state: dict[str, Any]) -> int:
    model, optimizer = state["model"], state["optim"]
    kept = [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value)]
    return sum(each.nbytes for each in (*model.state_dict().values(), *kept))


def link(gib: float = 4.0) -> float:
    """GB/s from the GPU into pinned memory, the best of several."""
    source = torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
    target = torch.empty(source.shape, dtype=torch.uint8, pin_memory=True)
    speeds = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        speeds.append(source.nbytes / (time.perf_counter() - began) / 1e9)
    return max(speeds)


def timed(steps: int, step: Callable[[], None], save: Callable[[int], Any] | None) -> tuple[float, float]:
    """Seconds per step, and of them in `save` on the host."""
    torch.cuda.synchronize()
    inside, began = 0.0, time.perf_counter()
    for number in range(steps):
        step()
        if save is not None:
            before = time.perf_counter()
            save(number)
            inside += time.perf_counter() - before
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps, inside / steps


def bare(state: dict[str, Any]) -> Callable[[int], None]:
    """The floor: nothing but the copies, into pinned memory, and a step that waits for them."""
    kept = (value for each in state["optim"].state.values() for value in each.values())
    sources = [each for each in (*state["model"].parameters(), *kept) if each.is_cuda]
    targets = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in sources]
    stream, done = torch.cuda.Stream(), torch.cuda.Event()

    def copy(_: int) -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
        done.record(stream)

    state["optim"].register_step_pre_hook(lambda *_: torch.cuda.current_stream().wait_event(done))
    return copy


def values(state: dict[str, Any]) -> list[torch.Tensor]:
    kept = state["optim"].state_dict()["state"].values()
    tensors = [
        *state["model"].state_dict().values(),
        *(v for each in kept for v in each.values() if torch.is_tensor(v)),
    ]
    return [each.detach().clone() for each in tensors]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check(name: str, right: bool) -> None:
    print(f"{'right' if right else 'WRONG'}: {name}", flush=True)
    if not right:
        raise SystemExit(1)


def exact(directory: str) -> None:
    """Small models, every case."""
    state, step = training(2, 2)
    ckpt = outlast.Checkpointer(f"{directory}/exact", keep_last=2)
    known = {}
    for number in range(1, 9):
        step()
        known[number] = values(state)
        ckpt.save(number, state)
    for _ in range(3):
        step()  # goes on while the last one is copied
    check("training went on after the save", ckpt.restore(state) == 8 and same(values(state), known[8]))

    step()
    ckpt.save(9, state)
    step()
    known[9] = []
    step()
    good = values(state)
    ckpt.save(10, state)
    torch.cuda._sleep(10_000_000)
    step()
    ckpt.save(11, state)
    with torch.no_grad():
        next(iter(state["model"].parameters())).add_(1.0)  # before the copy is done, and not by the optimizer
    step()
    restored = ckpt.restore(state)
    fine = restored == 10 and same(values(state), good)
    check(f"changed behind our back: step {restored} restored", fine or restored == 11)

    state, step = graphed()
    ckpt = outlast.Checkpointer(f"{directory}/graph", keep_last=2)
    for number in range(1, 9):
        step(number)
        wanted = values(state)
        ckpt.save(number, state)
    for number in range(9, 12):
        step(number)
    check("steps in a CUDA graph", ckpt.restore(state) == 8 and same(values(state), wanted))


def graphed() -> tuple[dict[str, Any], Callable[[int], None]]:
    """SGD, which can be captured without saying so: eager at first, then one graph."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    data = torch.randn(64, 4096, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def eager() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(data).square().mean().backward()
        optimizer.step()

    def step(number: int) -> None:
        if number < 4:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                eager()
            torch.cuda.current_stream().wait_stream(side)
        elif number == 4:
            with torch.cuda.graph(graph):
                eager()
            graph.replay()
        else:
            graph.replay()

    return {"model": model, "optim": optimizer}, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="per round")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    if "RANK" in os.environ:
        dist.init_process_group("cpu:gloo,cuda:nccl")
    with tempfile.TemporaryDirectory() as directory:
        exact(directory)
        state, step = training(arguments.layers, arguments.batch)
        for _ in range(3):
            step()
        size = size_of(state)
        fastest = link()
        print(f"{torch.cuda.get_device_name()}: state {size / 1e9:.1f} GB, link {fastest:.1f} GB/s", flush=True)
        blocking = outlast.Checkpointer(f"{directory}/blocking", overlap=False)
        first = time.perf_counter()
        blocking.save(0, state)
        blocking.save(1, state)
        print(f"the first two saves, which make the memory: {time.perf_counter() - first:.1f} s", flush=True)
        torch.cuda.synchronize()
        copies = []
        for number in range(5):
            began = time.perf_counter()
            blocking.save(number, state)
            copies.append(size / (time.perf_counter() - began) / 1e9)
        best = statistics.median(copies)
        print(f"save, waiting: {best:.1f} GB/s, {best / fastest:.0%} of the link", flush=True)
        results: dict[str, list[tuple[float, float]]] = {}

        def compare(name: str, save: Callable[[int], Any]) -> None:
            for number in range(3):
                step()
                save(number)
            for _ in range(ROUNDS):
                results.setdefault("no saves", []).append(timed(arguments.steps, step, None))
                results.setdefault(name, []).append(timed(arguments.steps, step, save))

        compare("a snapshot per step, waiting", lambda number: blocking.save(number, state))
        blocking.close()
        beside = outlast.Checkpointer(f"{directory}/beside")
        compare("a snapshot per step, beside training", lambda number: beside.save(number, state))
        beside.close()
        compare("bare copies beside training (the floor)", bare(state))
        plain = statistics.median(each for each, _ in results["no saves"])
        for name, rounds in results.items():
            each, inside = (statistics.median(part) for part in zip(*rounds, strict=True))
            slower = each / plain - 1
            print(
                f"{name}: {each * 1e3:.1f} ms a step ({slower:+.1%}), {inside * 1e3:.1f} ms of it in save", flush=True
            )
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
