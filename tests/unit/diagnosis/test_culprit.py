"""Who made a job hang, by what was seen of its ranks: real stacks of real hangs, and those that are hard to make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hangs import KINDS, right
from outlast.board.board import Board
from outlast.board.readings import OpenSection, Reading
from outlast.diagnosis.culprit import HangKind, HangVerdict, name, waiting
from outlast.diagnosis.observation import Observation
from outlast.diagnosis.stack import Frame, Stack

# Made by `benchmarks/culprits.py --record` with torch 2.13 over gloo, of `integration/hangs/train.py`.
RECORDED: dict[str, dict[str, Any]] = {
    how: json.loads((Path(__file__).parent / "hangs" / f"{how}.json").read_text()) for how in ("signal", "py-spy")
}
C10D = "/venv/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/venv/lib/python3/site-packages/torch/distributed/c10d_logger.py"
TRAIN = "/home/user/train.py"
MAIN = Frame("main", TRAIN, 90)


def stack(*frames: Frame, state: str = "S", wchan: str = "futex_do_wait") -> Stack:
    return Stack(frames=(*frames, MAIN), state=state, wchan=wchan, how="py-spy")


def collective(function: str = "all_reduce", line: int = 50) -> Stack:
    return stack(Frame(function, C10D, 3252), Frame("wrapper", LOGGER, 83), Frame("train", TRAIN, line))


def busy(line: int = 81, function: str = "load", source: str = "", **options: str) -> Stack:
    return stack(Frame(function, TRAIN, line, source), **options)


def judged(*stacks: Stack | None, steps: list[int | None] | None = None, late: tuple[int, ...] = ()) -> HangVerdict:
    known = steps or [None] * len(stacks)
    return name(
        [
            Observation(rank=rank, node=f"node-{rank // 2}", stack=each, step=known[rank], late=rank in late)
            for rank, each in enumerate(stacks)
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", RECORDED)
def test_a_recorded_hang_gets_the_right_name(how: str, kind: str) -> None:
    case = RECORDED[how][kind]
    ranks = msgspec.convert(case["ranks"], list[Observation])
    verdict = name(ranks)
    assert right(kind, case["culprit"], verdict.culprits, verdict.kind), verdict


@pytest.mark.parametrize("how", RECORDED)
def test_the_order_in_which_ranks_are_heard_of_does_not_matter(how: str) -> None:
    for case in RECORDED[how].values():
        ranks = msgspec.convert(case["ranks"], list[Observation])
        assert name(ranks) == name(ranks[::-1])


def test_the_sentence_says_who_where_and_who_waits() -> None:
    case = RECORDED["py-spy"]["data_loader"]
    verdict = name(msgspec.convert(case["ranks"], list[Observation]))
    rank = case["culprit"]
    assert verdict.sentence == (
        f"rank {rank} on node-{rank // 2} blocks the others: "
        f"stuck in DataLoader.__next__ at {verdict.where}; 3 ranks wait in all_reduce"
    )
    assert verdict.where.startswith("train.py:")


def test_a_rank_that_still_imports_torch_does_not_wait() -> None:
    operators = "/venv/lib/python3/site-packages/torch/_ops.py"
    assert waiting(stack(Frame("__getattr__", operators, 1), state="R")) is None
    assert waiting(stack(Frame("__call__", operators, 1))) is not None


def test_nobody_is_said_to_wait_where_nobody_does() -> None:
    sentence = judged(stack(Frame("load", "/src/train.py", 7)), stack(Frame("load", "/src/train.py", 7))).sentence
    assert sentence.startswith("ranks 0, 1 on ")
    assert "wait for" not in sentence


def test_a_process_in_uninterruptible_sleep_is_the_one() -> None:
    verdict = judged(collective(), Stack(state="D", wchan="nfs_wait_bit_killable"), collective())
    assert (verdict.culprits, verdict.kind) == ((1,), HangKind.UNINTERRUPTIBLE)
    assert "uninterruptible sleep in the kernel (nfs_wait_bit_killable)" in verdict.sentence


def test_a_process_that_is_gone_is_the_one() -> None:
    verdict = judged(collective(), Stack(trouble="the process has ended"), Stack(state="Z"))
    assert (verdict.culprits, verdict.kind) == ((1, 2), HangKind.GONE)


def test_a_stopped_rank_is_named_also_when_another_one_is_busy() -> None:
    verdict = judged(collective(), busy(), Stack(state="T"))
    assert (verdict.culprits, verdict.kind) == ((2,), HangKind.STOPPED)


def test_a_rank_of_which_nothing_is_known_is_the_one_if_all_others_wait() -> None:
    verdict = judged(collective(), collective(), None)
    assert (verdict.culprits, verdict.kind) == ((2,), HangKind.ALONE)
    assert "nothing could be seen (its node gave no stacks in time)" in verdict.sentence


def test_a_rank_without_frames_is_not_preferred_to_one_that_is_seen_to_be_busy() -> None:
    verdict = judged(collective(), busy(), Stack(state="S", trouble="py-spy may not read its memory"))
    assert verdict.culprits == (1,)


def test_when_nothing_is_seen_of_anybody_nobody_is_blamed() -> None:
    verdict = judged(None, None)
    assert (verdict.culprits, verdict.kind) == ((), HangKind.UNKNOWN)
    assert verdict.sentence == "nothing was seen of ranks 0, 1 on node-0: its node gave no stacks in time"


def test_of_several_that_do_not_wait_those_behind_are_named() -> None:
    verdict = judged(collective(), busy(81), busy(95), collective(), steps=[7, 6, 7, 7])
    assert verdict.culprits == (1,)


def test_all_that_do_not_wait_are_named_if_their_steps_do_not_tell() -> None:
    verdict = judged(collective(), busy(81), busy(95), collective(), steps=[7, 7, 7, 7])
    assert verdict.culprits == (1, 2)
    assert "rank 1 stuck in load at train.py:81" in verdict.sentence
    assert "rank 2 stuck in load at train.py:95" in verdict.sentence


def test_two_against_two_in_different_collectives_is_told_without_blame() -> None:
    verdict = judged(collective(), collective(), collective("barrier", 60), collective("barrier", 60))
    assert (verdict.culprits, verdict.kind) == ((), HangKind.MISMATCH)
    assert "ranks 0, 1 on node-0 wait in all_reduce; ranks 2, 3 on node-1 wait in barrier" in verdict.sentence


def test_in_the_same_call_but_of_another_step_is_a_mismatch() -> None:
    verdict = judged(collective(), collective(), collective(), steps=[7, 8, 7])
    assert (verdict.culprits, verdict.kind) == ((1,), HangKind.MISMATCH)
    assert "of step 8" in verdict.sentence


def test_everybody_in_the_same_call_of_the_same_step_is_nobodys_fault() -> None:
    verdict = judged(collective(), collective(), steps=[7, 7])
    assert (verdict.culprits, verdict.kind) == ((), HangKind.EVERYBODY)
    assert "check the network or a device" in verdict.sentence


def test_ranks_that_wait_for_a_gpu_at_one_line_wait_for_the_one_that_is_elsewhere() -> None:
    """As with NCCL: kernels are begun without waiting, and it is the next look at a number that waits."""
    item = busy(60, "train", "total += loss.item()", state="R", wchan="")
    verdict = judged(item, item, busy(81), item)
    assert (verdict.culprits, verdict.where) == ((2,), "train.py:81")
    assert verdict.sentence.endswith("3 ranks wait at train.py:60")


def test_ranks_that_spin_at_one_line_are_not_blamed_for_the_one_elsewhere() -> None:
    spinning = busy(60, "train", "outputs = model(batch)", state="R", wchan="")
    verdict = judged(spinning, spinning, busy(81), spinning)
    assert verdict.culprits == (2,)


def test_a_wait_for_an_event_of_its_own_is_not_a_wait_for_others() -> None:
    verdict = judged(collective(), busy(81, source="done.wait()"), collective())
    assert (verdict.culprits, verdict.kind) == ((1,), HangKind.USER_CODE)


def test_a_backward_pass_that_computes_does_not_wait() -> None:
    frames = (Frame("_engine_run_backward", "/venv/lib/python3/site-packages/torch/autograd/graph.py", 979),)
    assert waiting(stack(*frames, Frame("train", TRAIN, 3), state="R")) is None
    assert waiting(stack(*frames, Frame("train", TRAIN, 3), state="S")) is not None


def test_a_single_rank_is_blamed_for_where_it_is() -> None:
    verdict = judged(busy(81, wchan="wait_for_partner"))
    assert (verdict.culprits, verdict.kind) == ((0,), HangKind.FILE)
    assert verdict.sentence == "rank 0 on node-0 hangs: stuck on a file or pipe in load at train.py:81"


def test_ranks_that_do_not_train_together_are_told_by_who_is_late() -> None:
    verdict = judged(busy(10), busy(20), late=(1,))
    assert verdict.culprits == (1,)


def test_a_section_called_checkpoint_says_what_the_code_does_not() -> None:
    saving = Observation(rank=0, node="a", stack=busy(), sections=(("save checkpoint", 12.0),))
    verdict = name([saving, Observation(rank=1, node="b", stack=collective("barrier"))])
    assert (verdict.culprits, verdict.kind) == ((0,), HangKind.CHECKPOINT)


def test_many_ranks_make_no_long_sentence() -> None:
    verdict = judged(*[busy() for _ in range(100)], *[collective() for _ in range(900)])
    assert len(verdict.culprits) == 100
    assert len(verdict.sentence) < 300
    assert "and 92 more" in verdict.sentence


def test_what_the_board_says_becomes_ages() -> None:
    reading = Reading(
        read_at=50.0, born_at=1.0, step=7, beat_at=20.0, sections=(OpenSection("step", 30.0),), longest={}
    )
    seen = Observation.of(3, "node-1", reading, None, late=True)
    assert (seen.step, seen.sections, seen.beat_age, seen.late) == (7, (("step", 20.0),), 30.0, True)


def test_an_observation_travels_as_a_message() -> None:
    board = Board(1)
    try:
        seen = Observation.of(0, "node-0", board.read(0), collective())
    finally:
        board.close()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=Observation) == seen
