"""A function under `outlast.Wrapper`: rank 1 raises in generation 1, then it finishes."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import outlast
from outlast.worker.wrapper import WrapperState


def say(what: str) -> None:
    # In one write: `print` makes two, and another rank's may come between them.
    sys.stdout.write(f"rank {os.environ['RANK']} pid {os.getpid()} {what}\n")
    sys.stdout.flush()


def initialize(state: WrapperState) -> None:
    say(f"initializes iteration {state.iteration}")


def finalize(state: WrapperState) -> None:
    say(f"finalizes iteration {state.iteration}: {state.fn_exception or 'no exception'}")


@outlast.Wrapper(initialize=initialize, finalize=finalize, health_check=lambda state: say(f"is well, {state.rank}"))
def train(call: outlast.CallWrapper | None = None) -> None:
    assert call is not None
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    call.ping()
    if call.iteration == 0 and dist.get_rank() == 1:
        raise ValueError("a fault of the test's")
    if call.iteration == 0:
        dist.all_reduce(torch.ones(1))
    say(f"done in iteration {call.iteration}")
    dist.destroy_process_group()


train()
