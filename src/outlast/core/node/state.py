"""All that a node knows: what its events change, and its decisions are made from."""

from __future__ import annotations

from outlast.core.node.allegiance import Allegiance
from outlast.core.node.commands import Command
from outlast.core.node.conversation import Conversation
from outlast.core.node.generation import LocalGeneration
from outlast.core.node.hangs import LateRanks
from outlast.core.node.shards import ShardQuestions
from outlast.protocol.membership import Leaving, Over, Wish


class NodeState:
    """The parts of one node. Each owns its rules; here is what they have in common."""

    def __init__(self, me: str, store_port: int, ranks: int) -> None:
        self.ranks = ranks  # how many of them each generation has here
        self.store_port = store_port
        self.allegiance = Allegiance(me)
        self.conversation = Conversation(self.allegiance)
        self.current = LocalGeneration()
        self.floor = 0  # this generation and older ones are never started again
        self.kept: int | None = None  # processes that are parked; None: there is no restartable function
        self.refill_at: float | None = None  # when those that died are replaced, if this node is not needed until then
        self.hangs = LateRanks()
        self.shards = ShardQuestions()
        self.leaving = Leaving.NO
        self.wish: Wish | None = None  # of a rank
        self.over: Over | None = None
        self.out: list[Command] = []  # of the event that is being handled

    @property
    def stays(self) -> bool:
        """Whether it takes part in what comes next."""
        return self.over is None and self.leaving is Leaving.NO
