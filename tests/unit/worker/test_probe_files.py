"""The probe of `outlast rehearse`: what it writes down of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.worker.probe.files import FileProbe
from outlast.worker.probe.plan import ProbeFaults
from outlast.worker.probe.recorder import ProbeRecorder


class FakeCheckpointer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, step: int, state: Any, **options: Any) -> bool:  # noqa: ARG002
        return step % 2 == 0

    def restore(self, state: Any, **options: Any) -> int:  # noqa: ARG002
        return 4


@pytest.fixture
def records(tmp_path: Path) -> Any:
    recorder = ProbeRecorder(tmp_path, 0, 1)
    kind = type("Checkpointer", (FakeCheckpointer,), {})
    FileProbe(recorder, ProbeFaults(recorder), lambda: 3).install_checkpointer(SimpleNamespace(Checkpointer=kind))
    checkpoints = kind(tmp_path / "c")
    checkpoints.save(1, {"model": 1})
    checkpoints.save(2, {"model": 1})
    checkpoints.restore({})
    [path] = tmp_path.glob("rank-0-*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_saves_and_restores_of_our_checkpointer_are_told_with_their_directory(records: Any, tmp_path: Path) -> None:
    assert [(each["kind"], each["path"], each["step"]) for each in records] == [
        ("save", str(tmp_path / "c"), 3),
        ("load", str(tmp_path / "c"), 3),
    ]
    assert records[0]["keys"] == ["model"]
