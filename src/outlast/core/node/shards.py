"""What workers here ask about shards: passed on to the coordinator, and its answers to whoever waits for them."""

from __future__ import annotations

from outlast.core.data_shards.holdings import Memo
from outlast.core.node.commands import Respond, Show
from outlast.core.node.inputs import Inquired
from outlast.protocol.shards import Gone, Told, Unanswerable


class ShardQuestions:
    """One node's, of its newest generation."""

    def __init__(self) -> None:
        self.memo = Memo()  # what workers asked, and were told
        self.asked = False  # on this connection
        self._visitors: dict[int, int] = {}  # who waits for an answer, by ticket

    def begin(self, generation: int, first: int, ranks: int) -> None:
        """Workers of a new generation start."""
        self.memo.begin(generation, first, ranks)
        self._visitors.clear()

    def repeat(self) -> list[Show]:
        """The coordinator has taken this node in: it is asked all that workers still wait for."""
        self.asked = True
        return [Show(query) for query in self.memo.waiting]

    def inquire(self, event: Inquired, connected: bool) -> list[Show | Respond]:
        """A worker asks. What nobody can be asked yet is asked on the next connection."""
        asked = event.question
        if asked.generation != self.memo.generation or asked.rank not in self.memo.ranks:
            unknown = Unanswerable(f"this is no rank of generation {self.memo.generation}")
            return [Respond(event.visitor, unknown)]
        query = self.memo.ask(asked.rank, asked.question)
        self._visitors[query.ticket] = event.visitor
        return [Show(query)] if connected else []

    def finish(self, generation: int, rank: int, connected: bool) -> list[Show]:
        """A rank has exited with 0: the others may go on without it, if any has asked for shards."""
        if generation != self.memo.generation or not self.memo.asked:
            return []
        query = self.memo.ask(rank, Gone())
        return [Show(query)] if connected else []

    def hear(self, told: Told) -> list[Respond]:
        """The coordinator answers."""
        finding = self.memo.hear(told)
        if finding is None or told.ticket not in self._visitors:
            return []
        return [Respond(self._visitors.pop(told.ticket), finding)]
