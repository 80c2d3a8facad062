"""An owner for an agent's link: takes the first coordinator that answers, and notes what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outlast.launch import Endpoint
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.succession import Standing

TOKEN = "a secret of sixteen characters or more"


class Seeker:
    """`changed` is set when it looks for places, is connected or disconnected."""

    def __init__(self, places: Sequence[Endpoint], *, job: str = "") -> None:
        self.looked = self.connections = self.ends = 0
        self.changed = asyncio.Event()
        self._places = places
        self._job = job

    async def until(self, count: str, number: int) -> None:
        while getattr(self, count) < number:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 60.0)

    def places(self) -> Sequence[Endpoint]:
        self.looked += 1
        self.changed.set()
        return self._places

    def token(self) -> str:
        return TOKEN

    def is_ours(self, standing: Standing) -> bool:
        return not self._job or standing.job == self._job

    def choose(self, standings: Sequence[Standing]) -> int | None:
        return 0 if standings else None

    def obeyed(self) -> float:
        return 0.0

    def connected(self, standing: Standing) -> None:  # noqa: ARG002
        self.connections += 1
        self.changed.set()

    def received(self, message: FromCoordinator) -> None:
        pass

    def disconnected(self) -> None:
        self.ends += 1
        self.changed.set()
