"""A worker that tries out what training does: `warm_probe.py DIRECTORY` leaves what came of it in DIRECTORY.

Under Outlast its first generation then waits to be killed; the second one comes to its end.
"""

import sys

WARM = "torch" in sys.modules

import json  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from pathlib import Path  # noqa: E402

import warm_facts  # noqa: E402


class Own:
    """A class of the script's, for what others load."""

    def __init__(self, value: int) -> None:
        self.value = value


def double(numbers: "multiprocessing.Queue[object]", value: int) -> None:
    numbers.put([2 * value, __name__ != "__main__" or multiprocessing.current_process().name != "MainProcess"])


def processes() -> dict[str, object]:
    """A child by each of multiprocessing's methods."""
    found = {}
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        numbers = context.Queue()
        child = context.Process(target=double, args=[numbers, 21])
        child.start()
        found[method] = [numbers.get(timeout=60), child.join(60), child.exitcode]
    found["default"] = multiprocessing.get_start_method()
    found["parent"] = multiprocessing.parent_process() is None
    return found


def training(directory: Path) -> dict[str, object]:
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(7)
    data = DataLoader(TensorDataset(torch.arange(8.0).reshape(8, 1)), batch_size=2, num_workers=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in data:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    big = torch.ones(512, 512)
    own = directory / f"own-{os.getpid()}.pt"
    torch.save(Own(7), own)
    store = f"file://{directory}/store-{os.getpid()}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    reduced = torch.ones(3)
    dist.all_reduce(reduced)
    dist.destroy_process_group()
    return {
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "random": torch.rand(3).tolist(),
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "product": float((big @ big).sum()),
        "array": float((np.ones((512, 512)) @ np.ones((512, 512))).sum()),
        "threads that computed": sum(1 for _ in Path("/proc/self/task").iterdir()) >= torch.get_num_threads(),
        "cuda": [torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda._is_in_bad_fork()],
        "loaded": torch.load(own, weights_only=False).value,
        "reduced": reduced.tolist(),
        "modes": [
            torch.is_grad_enabled(),
            torch.get_default_dtype().itemsize,
            torch.are_deterministic_algorithms_enabled(),
        ],
    }


def main(directory: Path) -> None:
    generation = os.environ.get("OUTLAST_GENERATION", "plain")
    done = {"processes": processes(), "training": training(directory), "warm": {"warm": WARM}}
    facts = {**warm_facts.facts(), **done}
    del facts["main"]  # they are those of another module
    path = directory / generation
    path.with_suffix(".new").write_text(json.dumps(facts))
    path.with_suffix(".new").rename(path)
    os.write(1, f"generation {generation} is done, pid {os.getpid()}\n".encode())
    if generation == "1":
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
