"""Signals to the agent: the first one drains its node or ends the job, the second one ends the agent at once."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterable

from msgspec.structs import replace

from outlast.agent import supervisor
from outlast.agent.driver import NodeDriver
from outlast.core.node.inputs import Leave
from outlast.protocol.membership import Leaving, Over
from outlast.settings.values import NOT_ENDING
from outlast.system.clock import now

log = logging.getLogger("agent")

ONE_SIGNAL = 0.5  # seconds in which the same one, through a supervisor, is the same
INTERRUPTS = (signal.SIGINT, signal.SIGQUIT)  # what a person types: the job ends. Others drain this node.


class AgentSignals:
    """What one agent was told. `hurry` is done once it was told twice."""

    def __init__(self, driver: NodeDriver, *, alone: bool) -> None:
        self.hurry: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._driver = driver
        self._alone = alone  # the only node of its job
        self._got: signal.Signals | None = None
        self._at = float("-inf")

    @property
    def for_workers(self) -> signal.Signals:
        """What workers get when they are asked to end. A signal that ends nobody by itself is for the agent alone."""
        return signal.SIGTERM if self._got is None or self._got in NOT_ENDING else self._got

    def listen(self, names: Iterable[str]) -> None:
        for name in names:
            number = signal.Signals[name]
            asyncio.get_running_loop().add_signal_handler(number, self._told, number)

    def explained(self, over: Over) -> Over:
        """In a job of one node nobody is drained: the job was stopped, and this node knows by what."""
        if over.left and self._got is not None and self._alone:
            return replace(over, reason=f"stopped by {self._got.name}")
        return over

    def _told(self, number: signal.Signals) -> None:
        before, self._at = self._at, now()
        if supervisor.bound() and number is self.for_workers and now() - before < ONE_SIGNAL:
            return  # whoever signals every process reaches this one twice: the supervisor passes on what it gets
        if self._driver.node.leaving is not Leaving.NO:
            if not self.hurry.done():
                self.hurry.set_result(None)
            log.warning("%s again: ending at once", number.name)
            self._driver.end(Over(False, f"ended by a second {number.name}"))
            return
        self._got = number
        interrupt = number in INTERRUPTS
        what = "ending the job" if interrupt or self._alone else "draining this node"
        log.warning("%s: %s (once more to end at once)", number.name, what)
        self._driver.feed(Leave(Leaving.INTERRUPT if interrupt else Leaving.DRAIN))
