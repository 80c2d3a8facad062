"""What the agent does when it cannot carry out one of its decisions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from outlast.agent.agent import Agent
from outlast.core.node.commands import Command, Lease, Retire
from outlast.core.tick import Tick
from outlast.protocol.membership import Over


def test_the_rest_of_a_batch_is_carried_out_and_the_agent_ends_with_the_error() -> None:
    done: list[Command] = []

    def carry_out(command: Command) -> None:
        if isinstance(command, Lease):
            raise ValueError("it does not fit")
        done.append(command)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Over] = loop.create_future()
        decisions = SimpleNamespace(handle=lambda *_: [Lease(1.0), Retire()], deadline=lambda: None)
        agent = Agent.__new__(Agent)  # its decisions and its deeds are all that this is about
        vars(agent).update(_done=over, _node=decisions, _carry_out=carry_out, _timer=None, _loop=loop)
        agent._feed(Tick())
        with pytest.raises(ValueError, match="it does not fit"):
            await over

    asyncio.run(body())
    assert done == [Retire()]
