"""The stacks of a hang as lines for people: in `outlast why --stacks`, on the page and in the report."""

from __future__ import annotations

from collections.abc import Iterable

from outlast.events.events import HangNamed, RankStack
from outlast.events.phrases import count, listed

_STATES = {"R": "running", "S": "sleeping", "D": "in uninterruptible sleep", "T": "stopped", "t": "traced", "Z": "dead"}


def stack_lines(hang: HangNamed) -> list[str]:
    """All of them, the culprits first.

    >>> stack = RankStack(1, (3,), ("b",), culprit=True, state="S", frames=("load (train.py:8)",))
    >>> stack_lines(HangNamed(generation=1, ranks=(3,), nodes=("b",), kind="", where="", sentence="", stacks=(stack,)))
    ['rank 3 on b, which the others wait for, sleeping:', '  load (train.py:8)']
    """
    return [line for stack in hang.stacks for line in (_head(stack), *_frames(stack.frames))]


def _head(stack: RankStack) -> str:
    ranks = listed(list(map(str, stack.ranks)))
    who = f"rank {ranks}" if stack.count == 1 else f"{count(stack.count, 'rank')} ({ranks})"
    blamed = ", which the others wait for" if stack.culprit else ""
    state = f", {_STATES.get(stack.state, stack.state)}" if stack.state else ""
    return f"{who} on {listed(stack.nodes)}{blamed}{state}:"


def _frames(frames: Iterable[str]) -> list[str]:
    return [f"  {frame}" for frame in frames] or ["  no stack could be seen"]
