"""What is made of a worker's end reaches the job, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import pytest

from outlast.agent.postmortem import gpus
from outlast.agent.postmortem.investigation import Investigation
from outlast.agent.postmortem.verdicts import Judge
from outlast.core.node.inputs import Decided
from outlast.protocol.generations import Assignment


def test_what_is_pending_is_decided_also_where_to_ask_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> tuple[str, ...]:
        raise RuntimeError("nobody foresaw it")

    monkeypatch.setattr(gpus, "DRIVER", tmp_path)
    monkeypatch.setattr(gpus, "states", broken)
    fed: list[Decided] = []
    work: list[Coroutine[None, None, None]] = []
    inquest = Investigation("a", "j", Judge(""), None, feed=fed.append, run=work.append)
    inquest.begin(Assignment(1, 0, 1, 0, 1, 0, 1, "h", 1, 0))
    failure = inquest.failure(0, 1, -11, written=False)
    assert inquest.judged(failure, first=True).pending
    with pytest.raises(RuntimeError):
        asyncio.run(work[0])
    inquest.close()
    assert [(each.failure.rank, each.failure.pending) for each in fed] == [(0, False)]
