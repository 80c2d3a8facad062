"""What is made of a worker's end reaches the job, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from launches import assignment
from outlast.agent.output.disk import Disk
from outlast.agent.postmortem import gpus
from outlast.agent.postmortem.investigation import Investigation
from outlast.agent.postmortem.verdicts import Judge
from outlast.core.node.inputs import Decided
from outlast.system.tasks import Tasks


def test_what_is_pending_is_decided_also_where_to_ask_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> tuple[str, ...]:
        raise RuntimeError("nobody foresaw it")

    monkeypatch.setattr(gpus, "DRIVER", tmp_path)
    monkeypatch.setattr(gpus, "states", broken)
    fed: list[Decided] = []
    errors: list[BaseException] = []

    async def play() -> None:
        tasks = Tasks(errors.append)
        inquest = Investigation("a", "j", Judge(""), None, disk=Disk(), feed=fed.append, tasks=tasks)
        inquest.begin(assignment(first_rank=0))
        failure = inquest.failure(0, 1, -11, written=False)
        assert inquest.judged(failure, first=True).pending
        await tasks.wait()
        inquest.close()

    asyncio.run(play())
    assert [str(error) for error in errors] == ["nobody foresaw it"]
    assert [(each.failure.rank, each.failure.pending) for each in fed] == [(0, False)]
