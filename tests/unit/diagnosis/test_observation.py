"""What agents tell of their ranks: small, and enough to come to the same verdict."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from hangs import KINDS
from outlast.diagnosis.culprit import name
from outlast.diagnosis.observation import PLACES, Observation, told
from outlast.diagnosis.stack import Child, Frame, Stack
from outlast.protocol.hangs import Seen
from outlast.protocol.messages import FromAgent
from outlast.transport.wire import MAX_FRAME

HERE = Path(__file__).parent


def by_node(ranks: list[Observation]) -> list[Observation]:
    """What the coordinator has, when each node has told."""
    nodes = dict.fromkeys(each.node for each in ranks)
    return [each for node in nodes for each in told(other for other in ranks if other.node == node)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["signal", "py-spy"])
def test_what_is_told_leads_to_the_same_verdict_as_what_was_seen(how: str, kind: str) -> None:
    case = json.loads((HERE / "hangs" / f"{how}.json").read_text())[kind]
    ranks = msgspec.convert(case["ranks"], list[Observation])
    assert name(by_node(ranks)) == name(ranks)


def deep(rank: int, line: int = 1, letter: str = "d") -> Observation:
    names = letter * 500
    frames = tuple(Frame(names, f"/{names}/file{n % 7}.py"[-512:], line + n, names) for n in range(40))
    children = tuple(Child(rank * 100 + n, "pt_data_worker", "S") for n in range(16))
    stack = Stack(frames=frames, state="S", wchan="futex_wait", children=children, kernel=("k" * 100,) * 8, age=rank)
    return Observation(
        rank=rank, node="a", step=7, beat_age=30.0 + rank / 10, sections=(("step", 30.0 + rank),), stack=stack
    )


def test_ranks_at_the_same_place_are_told_as_one() -> None:
    (one,) = told(map(deep, range(8)))
    assert one.ranks == tuple(range(8))


def test_ranks_that_stopped_long_after_another_are_not_taken_for_the_same() -> None:
    still = msgspec.structs.replace(deep(1), beat_age=0.1)
    assert [each.ranks for each in told([deep(0), still, deep(2)])] == [(1,), (0, 2)]


@pytest.mark.parametrize("letter", ["d", "字", "🚀"])
def test_an_answer_fits_into_a_message_whatever_its_ranks_do(letter: str) -> None:
    """A thousand ranks, each somewhere else: where the fewest are is told, and where the most are."""
    ranks = [deep(rank, line=rank if rank < 900 else 5000, letter=letter) for rank in range(1000)]
    answer = Seen(1, 1, told(ranks))
    data = msgspec.msgpack.encode(answer)
    assert len(data) < MAX_FRAME
    assert 1 < len(answer.observations) <= PLACES
    assert answer.observations[-1].ranks == tuple(range(900, 1000))
    assert msgspec.msgpack.decode(data, type=FromAgent) == answer


def test_a_large_job_is_compared_in_time_that_grows_with_it_and_no_faster() -> None:
    """80,000 ranks, one of which sleeps: a comparison of each with each would not end."""
    c10d = "/venv/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
    waits = Stack(frames=(Frame("all_reduce", c10d, 1), Frame("train", "/home/train.py", 50)), state="S")
    sleeps = Stack(frames=(Frame("load", "/home/train.py", 81),), state="S")
    ranks = [
        Observation(rank=8 * n, node=f"n{n}", also=tuple(range(8 * n + 1, 8 * n + 8)), step=3, stack=waits)
        for n in range(9_999)
    ]
    verdict = name([*ranks, Observation(rank=79_999, node="n9999", step=3, stack=sleeps)])
    assert verdict.sentence == (
        "rank 79999 on n9999 blocks the others: stuck in load at train.py:81; 79992 ranks wait in all_reduce"
    )
