"""Real processes: every sample once per epoch after kill -9, and the loss curve of one world size on others."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs import SCRIPTS, free_port, job, node
from processes import Process

SCRIPT = SCRIPTS / "exactly_once.py"
LENGTH, EPOCHS, BATCH = 103, 2, 12  # nine steps an epoch, the last one with 7 samples


def checkpoint(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def train(path: Path, ranks: int, *args: str | int) -> None:
    """One run to its end, on so many ranks."""
    with job(f"--nproc-per-node={ranks}", script=SCRIPT, args=["--checkpoint", str(path), *map(str, args)]) as process:
        assert process.wait(150) == 0, process.output


def is_exact(history: list[tuple[int, list[int]]], *, length: int = LENGTH, epochs: int = EPOCHS) -> None:
    for epoch in range(epochs):
        counts = Counter(sample for of, samples in history if of == epoch for sample in samples)
        assert counts == dict.fromkeys(range(length), 1)


def makes_steps(process: Process, life: int, steps: int) -> bool:
    """Await so many steps of a life; False if it has come to the end before."""
    pattern = rf"life {life} made step|ended at step"
    return all("made" in process.wait_for(pattern, 150)[0] for _ in range(steps))


def interrupt(process: Process) -> None:
    """End the job as Ctrl-C does: nothing is left of it but its checkpoint."""
    process.signal(signal.SIGINT)
    process.wait()


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_loss_on_4_then_2_then_3_ranks_is_that_on_4(tmp_path: Path) -> None:
    train(tmp_path / "steady.pt", 4)
    elastic = tmp_path / "elastic.pt"
    train(elastic, 4, "--steps", 5)
    train(elastic, 2, "--steps", 11)  # into the second epoch
    train(elastic, 3)
    one, other = checkpoint(tmp_path / "steady.pt"), checkpoint(elastic)
    assert len(one["losses"]) == 18
    assert other["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert [tuple(each) for each in other["history"]] == [tuple(each) for each in one["history"]]
    assert other["scheduler"]["last_epoch"] == one["scheduler"]["last_epoch"] == 18
    for name, tensor in one["model"].items():
        torch.testing.assert_close(other["model"][name], tensor, rtol=1e-3, atol=1e-5)
    is_exact(other["history"])


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_each_sample_once_in_a_random_story(tmp_path: Path, story: int) -> None:
    """Lives on other numbers of ranks, each with workers that are killed at any instant; `--stories` asks for more."""
    draw, path = random.Random(story), tmp_path / "state.pt"
    length, batch, epochs = draw.randint(60, 110), draw.randint(5, 13), draw.randint(2, 3)
    args = ["--length", length, "--global-batch", batch, "--micro-batch", draw.randint(1, 5), "--epochs", epochs]
    args += ["--loaders", draw.randint(0, 2), "--save-every", draw.randint(1, 4), "--checkpoint", path]
    for _ in range(2):
        ranks = draw.randint(1, 3)
        flags = (f"--nproc-per-node={ranks}", "--max-restarts=3", "--ft-crash-loop=0")
        with job(*flags, script=SCRIPT, args=list(map(str, args))) as process:
            for life in range(1, draw.randint(1, 2) + 1):
                victim = process.wait_for(rf"rank {draw.randrange(ranks)} of .* begins life {life}: pid (\d+)", 150)
                if not makes_steps(process, life, draw.randint(1, 4)):
                    break
                threading.Event().wait(draw.random() * 0.1)
                with suppress(ProcessLookupError):  # it may have come to the end
                    os.kill(int(victim[1]), signal.SIGKILL)
            interrupt(process)
    train(path, draw.randint(1, 4), *args)
    history = checkpoint(path)["history"]
    assert len(history) == epochs * -(-length // batch)
    is_exact(history, length=length, epochs=epochs)


@pytest.mark.timeout(400)
def test_each_sample_once_when_a_node_is_lost(tmp_path: Path) -> None:
    """Two ranks, then the one that is left, then three in a new job."""
    path, port = tmp_path / "state.pt", free_port()
    flags = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=0", "--ft-last-call=60"]
    args = ["--checkpoint", path, "--wait-at", "4", "--save-every", "3"]
    with node("a", port, *flags, script=SCRIPT, args=args) as first:
        first.wait_for("joined the job")
        with node("b", port, *flags, script=SCRIPT, args=args) as second:
            first.wait_for(r"rank \d of 2 waits", 150)
            second.signal(signal.SIGKILL)
            first.wait_for("rank 0 of 1 waits", 150)
            interrupt(first)
    train(path, 3)
    is_exact(checkpoint(path)["history"])
