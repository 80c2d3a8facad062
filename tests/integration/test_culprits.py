"""Real hangs of four ranks, and who is named. The whole suite, of many kinds, is `benchmarks/culprits.py`."""

from __future__ import annotations

import asyncio

import pytest

from hangs import Hang
from outlast.agent.monitoring import stacks


@pytest.mark.parametrize(
    ("kind", "culprit"), [("holds_the_gil", 3), ("stopped", 0), ("data_loader", 1), ("crossed_receives", 2)]
)
def test_the_one_who_made_the_job_hang_is_named(kind: str, culprit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_tool", lambda: "")  # what every installation has

    async def judge() -> None:
        await hang.settle()
        verdict = await hang.judge()
        assert hang.right(verdict), verdict

    with Hang(kind, culprit) as hang:
        asyncio.run(judge())
