"""The events of a job, for programs: one JSON line for each decision, and never a reason to stop."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from outlast.coordinator.event_stream import EventStream
from outlast.events.events import VERSION, GenerationFormed, HangNamed, JobEvent
from outlast.events.numbered import NumberedEvent

FORMED = GenerationFormed(generation=2, nodes=("a",), ranks=1, spares=0, restarts=1)
HANG = HangNamed(
    generation=2, ranks=(3,), nodes=("b",), kind="data loader", where="train.py:81", sentence="rank 3 on b is the one"
)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def append(path: Path, *events: JobEvent) -> None:
    stream = EventStream(str(path), job="j")
    for event in events:
        stream.append(NumberedEvent(7, 5.5, 1, event), run="4f")
    stream.close()


def test_each_decision_is_a_line_and_a_coordinator_that_comes_later_appends(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, FORMED)
    append(path, HANG)
    first, hang = lines(path)
    assert first == {
        "version": VERSION,
        "id": 7,
        "time": 5.5,
        "job": "j",
        "run": "4f",
        "term": 1,
        "event": "generation formed",
        "generation": 2,
        "nodes": ["a"],
        "ranks": 1,
        "spares": 0,
        "restarts": 1,
        "restore_step": None,
        "text": "generation 2: 1 node, 1 rank (a)",
    }
    found = (hang["event"], hang["kind"], hang["ranks"], hang["nodes"], hang["where"])
    assert found == ("hang", "data loader", [3], ["b"], "train.py:81")


@pytest.mark.parametrize("what", ["folder", "missing/events.jsonl", "fifo", "/dev/full"])
def test_a_file_that_cannot_be_written_is_said_once(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")  # which nobody reads
    with caplog.at_level(logging.WARNING, "coordinator"):
        append(tmp_path / what, FORMED, FORMED)
    (record,) = caplog.records
    assert "--ft-events sets another file" in record.getMessage()
