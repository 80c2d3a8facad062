"""The events of a job, for programs: one JSON line for each decision, and never a reason to stop."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from outlast.coordinator.event_stream import EventStream
from outlast.core.job.commands import Note, NoteKind
from outlast.diagnosis.culprit import HangKind as Hang
from outlast.diagnosis.culprit import HangVerdict
from outlast.protocol.succession import Term

NOTE = Note("generation 2: 1 node, 1 rank (a)", NoteKind.GENERATION, 2)
VERDICT = HangVerdict((3,), Hang.DATA_LOADER, "rank 3 on b is the one", "train.py:81", ("b",))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def append(path: Path, *notes: Note) -> None:
    stream = EventStream(str(path), job="j")
    for note in notes:
        stream.append(note, run="4f", term=Term(1, "a"))
    stream.close()


def test_each_decision_is_a_line_and_a_coordinator_that_comes_later_appends(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, NOTE)
    append(path, Note("generation 2: rank 3 on b is the one", NoteKind.HANG, 2, VERDICT))
    first, hang = lines(path)
    assert first.pop("time")
    assert first == {
        "job": "j",
        "run": "4f",
        "term": 1,
        "generation": 2,
        "kind": "generation",
        "text": "generation 2: 1 node, 1 rank (a)",
    }
    found = (hang["kind"], hang["hang"], hang["ranks"], hang["nodes"], hang["where"])
    assert found == ("hang", "data loader", [3], ["b"], "train.py:81")


@pytest.mark.parametrize("what", ["folder", "missing/events.jsonl", "fifo", "/dev/full"])
def test_a_file_that_cannot_be_written_is_said_once(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")  # which nobody reads
    with caplog.at_level(logging.WARNING, "coordinator"):
        append(tmp_path / what, NOTE, NOTE)
    (record,) = caplog.records
    assert "--ft-events sets another file" in record.getMessage()
