"""A worker that takes shards on demand, as the simulations see it."""

from __future__ import annotations

from outlast.protocol.shards import (
    Cut,
    Deck,
    DeckProgress,
    Done,
    Due,
    Finding,
    Finished,
    Marked,
    OpenDeck,
    Question,
    Take,
    Taken,
    Unanswerable,
)


class Worker:
    """A script that takes shards; its model is the set of shards that are in it."""

    def __init__(self, rank: int, deck: Deck, base: DeckProgress) -> None:
        self.rank = rank
        self.deck = deck
        self.model: list[int] = []
        self.holds: int | None = None
        self.saves = 0
        self.finished = False
        self.saved: tuple[list[int], DeckProgress] | None = None  # in the last save
        self.next: Question = OpenDeck(deck, 1, base)
        self.waits = False

    def hear(self, finding: Finding) -> None:
        assert not isinstance(finding, Unanswerable), finding
        self.waits = False
        name, asked = self.deck.name, self.next
        if isinstance(finding, Taken):
            self.holds = finding.number
            self.next = Done(name, 1, finding.number, self.rank)
        elif isinstance(finding, Due):
            self.next = Cut(name, 1, finding.save)
        elif isinstance(finding, Finished):
            self.finished = True
        else:
            if isinstance(asked, Done) and isinstance(finding, Marked):
                assert finding.counts
                self.model.append(asked.number)
                self.holds = None
            if isinstance(asked, Cut) and isinstance(finding, DeckProgress):
                self.saves = asked.save
                self.saved = (list(self.model), finding)
            self.next = Take(name, 1, self.saves)
