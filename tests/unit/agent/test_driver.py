"""What the agent does when it cannot carry out one of its decisions."""

from __future__ import annotations

import asyncio

import pytest

from outlast.agent.driver import NodeDriver
from outlast.core.node.commands import Command, Lease, Retire
from outlast.core.node.inputs import Event
from outlast.core.node.node import Node
from outlast.core.tick import Tick


class Decided(Node):
    def handle(self, event: Event, now: float) -> list[Command]:  # noqa: ARG002
        return [Lease(1.0), Retire()]


def test_the_rest_of_a_batch_is_carried_out_and_the_agent_ends_with_the_error() -> None:
    done: list[Command] = []

    def carry_out(command: Command) -> None:
        if isinstance(command, Lease):
            raise ValueError("it does not fit")
        done.append(command)

    async def body() -> None:
        driver = NodeDriver(Decided("a"), carry_out)
        driver.feed(Tick())
        with pytest.raises(ValueError, match="it does not fit"):
            await driver.over

    asyncio.run(body())
    assert done == [Retire()]
