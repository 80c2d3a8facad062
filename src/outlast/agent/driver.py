"""The node's decisions at work: what happens goes in with the time, and what comes out is carried out, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outlast.agent.monitoring.watch import HELD_UP
from outlast.core.node.commands import Command
from outlast.core.node.inputs import Event
from outlast.core.node.node import Node
from outlast.core.tick import Tick
from outlast.protocol.membership import Over
from outlast.system.clock import now

log = logging.getLogger("agent")


class NodeDriver:
    """Drives one node until `over` is done. Made within a running event loop.

    `held_up` is called when this process must have been stopped for a while.
    """

    def __init__(
        self, node: Node, carry_out: Callable[[Command], None], *, held_up: Callable[[], None] = lambda: None
    ) -> None:
        self.node = node
        self.over: asyncio.Future[Over] = asyncio.get_running_loop().create_future()
        self._carry_out = carry_out
        self._held_up = held_up
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, event: Event) -> None:
        """Something has happened."""
        if self.over.done():
            return
        for command in self.node.handle(event, now()):
            self._attempt(command)
        self.rest()
        deadline = self.node.deadline()
        if deadline is not None and not self.over.done():
            self._timer = asyncio.get_running_loop().call_later(deadline - now(), self._tick, deadline)

    def end(self, over: Over) -> None:
        """This node has nothing left to do."""
        if not self.over.done():
            self.over.set_result(over)

    def fail(self, error: BaseException) -> None:
        """What this agent does no longer follows its decisions: it ends."""
        if not self.over.done():
            self.over.set_exception(error)

    def rest(self) -> None:
        """Wake no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _attempt(self, command: Command) -> None:
        try:
            self._carry_out(command)
        except Exception as error:  # the rest is carried out: workers may have to be stopped
            log.exception("could not carry out %s", type(command).__name__)
            self.fail(error)

    def _tick(self, due: float) -> None:
        if now() - due > HELD_UP:
            self._held_up()
        self.feed(Tick())
