"""The stacks that a hang's event carries: bounded, alike ones once, the culprits first; and how they are shown."""

from __future__ import annotations

import msgspec

from outlast.core.hangs.inquiry import Inquiry
from outlast.core.hangs.stacks import MOST_FRAMES, MOST_RANKS, MOST_STACKS, rank_stacks
from outlast.dashboard.story import row
from outlast.diagnosis.observation import Observation
from outlast.diagnosis.stack import Frame, Stack
from outlast.events.events import HangNamed
from outlast.events.numbered import NumberedEvent
from outlast.events.stacks import stack_lines
from outlast.protocol.hangs import Overdue, Seen

LIBRARY = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WAITS = Stack(frames=(Frame("all_reduce", LIBRARY, 9), Frame("main", "/home/me/train.py", 40)), state="S")
SLEEPS = Stack(frames=(Frame("load", "/home/me/train.py", 8), Frame("main", "/home/me/train.py", 39)), state="S")


def test_the_verdict_of_an_inquiry_comes_with_the_culprits_stack_first() -> None:
    inquiry = Inquiry(generation=1)
    inquiry.hear("a", Overdue(1, ending=True))
    seen = {
        "a": Observation(rank=0, node="a", also=(1,), stack=WAITS, late=True),
        "b": Observation(rank=2, node="b", stack=WAITS),
        "c": Observation(rank=3, node="c", stack=SLEEPS, late=True),
    }
    inquiry.begin(seen, now=1.0)
    for node, observed in seen.items():
        inquiry.take(node, Seen(1, 1, (observed,)))
    result = inquiry.conclude()
    assert result is not None
    culprit, others = result.stacks
    assert (culprit.culprit, culprit.ranks, culprit.nodes) == (True, (3,), ("c",))
    assert culprit.frames == ("load (/home/me/train.py:8)", "main (/home/me/train.py:39)")
    assert (others.culprit, others.count, others.ranks, others.nodes) == (False, 3, (0, 1, 2), ("a", "b"))


def test_whatever_ranks_do_the_stacks_stay_small() -> None:
    def deep(rank: int) -> Stack:
        return Stack(frames=tuple(Frame(f"f{rank}" * 100, "/x" * 250, i) for i in range(40)), state="R")

    seen = [Observation(rank=i, node=f"n{i}", stack=deep(i)) for i in range(100)]
    seen.append(Observation(rank=100, node="many", also=tuple(range(101, 9000)), stack=WAITS))
    stacks = rank_stacks(seen, culprits={50})
    assert len(stacks) == MOST_STACKS
    assert stacks[0].ranks == (50,)
    assert (stacks[1].count, len(stacks[1].ranks)) == (8900, MOST_RANKS)
    assert max(len(each.frames) for each in stacks) == MOST_FRAMES
    assert max(len(frame) for each in stacks for frame in each.frames) <= 200
    assert len(msgspec.json.encode(stacks)) < 32 << 10


def test_a_node_that_said_nothing_has_no_stack() -> None:
    assert rank_stacks([Observation(rank=0, node="a")], culprits={0}) == ()


def test_the_page_shows_the_stacks_as_details_of_the_event() -> None:
    stacks = rank_stacks([Observation(rank=3, node="c", stack=SLEEPS)], culprits={3})
    hang = HangNamed(
        generation=1, ranks=(3,), nodes=("c",), kind="k", where="w", sentence="rank 3 hangs", stacks=stacks
    )
    shown = row(NumberedEvent(1, 5.0, 1, hang))
    assert shown.text == "generation 1: rank 3 hangs"
    assert shown.detail.splitlines() == stack_lines(hang)
    assert shown.detail.splitlines()[1] == "  load (/home/me/train.py:8)"


def test_an_event_of_before_has_no_stacks_and_is_read_all_the_same() -> None:
    old = {"event": "hang", "generation": 1, "ranks": [3], "nodes": ["c"], "kind": "k", "where": "w", "sentence": "s"}
    assert stack_lines(msgspec.convert(old, HangNamed)) == []
