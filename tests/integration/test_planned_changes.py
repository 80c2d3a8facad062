"""Planned changes with real processes: nodes join and drain, a person asks for a restart, and no step is lost."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from checkpoints.train import digest, make, train
from jobs import free_port, node
from processes import Process, outlast

TRAIN = Path(__file__).parent / "checkpoints" / "train.py"
LONG = 120.0  # torch is imported, on machines with little to spare


def truth(steps: int) -> dict[int, str]:
    """The states of a training that nothing happens to."""
    state, states = make("plain"), {}
    for step in range(1, steps + 1):
        train(state, step)
        states[step] = digest(state)
    return states


def trained(*nodes: Process) -> list[int]:
    """Every step that was trained, in whichever generation, once for each time."""
    return sorted(int(step) for each in nodes for step in re.findall(r"trained (\d+) on \d", each.output))


@pytest.mark.timeout(600)
def test_nodes_join_and_drain_and_no_step_is_trained_twice_or_lost(tmp_path: Path) -> None:
    """Nothing is saved but for the changes: without their own save, each of them would begin anew."""
    port, enough, directory = free_port(), tmp_path / "enough", tmp_path / "checkpoints"
    flags = ("--nnodes=1:2", "--nproc-per-node=1", "--ft-use-infra-group-rank=false", "--ft-last-call=0")
    args = [directory, "--kind=fsdp", "--every=1000000", "--until", enough]
    with ExitStack() as stack:
        a = stack.enter_context(node("a", port, *flags, script=TRAIN, args=args))
        changes = count(1)

        def changed(why: str, *, ranks: int, where: str) -> None:
            """Await that the generation has ended for this, and that the next one trains."""
            number = next(changes)
            told = rf"generation {number} ends: .*{why}.*; all ranks have saved step (\d+)"
            step = int(a.wait_for(told, LONG, anywhere=True)[1])
            a.wait_for(rf"step {step} is restored from .*{where}", LONG, anywhere=True)
            a.wait_for(rf"trained {step + 1} on {ranks}", LONG, anywhere=True)

        a.wait_for("trained 3 on 1", LONG)
        b = stack.enter_context(node("b", port, *flags, script=TRAIN, args=args))
        changed("joined", ranks=2, where="memory")
        restart = outlast("restart", f"--rdzv-endpoint=127.0.0.1:{port}")
        assert restart.wait(LONG) == 0, restart.output
        changed("asked for a restart", ranks=2, where="memory")
        b.signal(signal.SIGTERM)
        changed("node b is draining", ranks=1, where="step-")
        assert b.wait(LONG) == 1
        enough.touch()
        assert a.wait(LONG) == 0, a.output
    steps = trained(a, b)
    assert steps == list(range(1, steps[-1] + 1))
    states = truth(steps[-1])
    told = re.findall(r"(?:restored|step) (\d+) (\w{12})\b", a.output)
    assert len(told) > 3
    assert {int(step): word for step, word in told} == {int(step): states[int(step)] for step, _ in told}
