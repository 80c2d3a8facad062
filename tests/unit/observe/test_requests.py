"""One request of an observer on one connection."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outlast.observe import client
from outlast.protocol.observers import AnswerKind, Detail, Portion, ReadView


def line() -> Any:
    """A connection on which nothing is sent."""
    closed = asyncio.get_running_loop().create_future()
    return client._Line(cast(Any, SimpleNamespace(closed=closed, send=lambda _: None)))


def test_an_interruption_counts_also_when_it_comes_together_with_the_answer() -> None:
    async def interrupted() -> None:
        made = line()
        request = asyncio.create_task(made.request(ReadView(Detail.JOB)))
        await asyncio.sleep(0)
        made.receive(Portion(next(iter(AnswerKind)), b"", last=True))
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(interrupted())


def test_silence_is_a_lost_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWERED", 0.01)

    async def silent() -> None:
        with pytest.raises(client._LineLost, match="said nothing"):
            await line().request(ReadView(Detail.JOB))

    asyncio.run(silent())
