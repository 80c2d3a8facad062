"""What the progress line says, in windows of any width."""

from __future__ import annotations

import msgspec
import pytest

from outlast.core.coordinator.coordinator import Coordinator
from outlast.core.job.view import JobView
from outlast.progress.row import StatusRow, TerminalSize
from outlast.progress.text import progress_text
from outlast.protocol.observers import Detail
from outlast.protocol.paces import Pace
from outlast.protocol.rules import Rules


@pytest.fixture
def view() -> JobView:
    rules = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2)
    coordinator: Coordinator[str] = Coordinator(rules, now=0.0)
    return coordinator.view(Detail.JOB, 0.0)


def running(view: JobView, **changes: object) -> JobView:
    pace = Pace(rank=0, first=0, last=1234, step=0.05)
    return msgspec.structs.replace(view, phase="running", generation=3, progress=pace, wanted=2, members=2, **changes)


def test_it_has_generation_step_pace_and_goodput_and_what_is_amiss(view: JobView) -> None:
    assert progress_text(running(view), 0.973, 79) == (
        "outlast: generation 3 | step 1,234 | 20.0 steps/s | goodput 97.3 %"
    )
    amiss = msgspec.structs.replace(running(view), members=1, restarts=2, allowed=5)
    assert progress_text(amiss, None, 99).endswith("steps/s | 1 node of 2 | restart 2 of 5")
    assert progress_text(view, None, 79).startswith("outlast: no generation yet | ")


def test_it_fits_and_only_whole_parts_are_left_out(view: JobView) -> None:
    whole = progress_text(running(view), 0.9, 200)
    for width in range(1, 80):
        text = progress_text(running(view), 0.9, width)
        assert len(text) <= width
        assert whole.startswith(text)
        assert len(text) in (width, len(whole)) or whole[len(text) :].startswith(" | ")


def test_a_window_that_is_too_small_has_no_line_and_gets_it_back() -> None:
    row = StatusRow(colour=True)
    assert "\x1b[2mstep 1\x1b[0m" in row.show("step 1", TerminalSize(24, 80))
    assert row.show("step 1", TerminalSize(2, 80)) == "\x1b7\x1b[r\x1b8"
    assert row.show("step 1", TerminalSize(2, 80)) == row.release(TerminalSize(24, 80)) == ""
    assert "\x1b[1;9r" in row.show("step 1", TerminalSize(10, 80))
