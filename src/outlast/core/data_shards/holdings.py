"""The agent's half of dynamic shards: what its ranks asked, and what they were told.

A coordinator that is killed, or moves to another host, takes nothing with it: what counts is what workers have heard,
and their agents pass every word of it on. Pure.
"""

from __future__ import annotations

from outlast.protocol.shards import (
    Cut,
    DeckProgress,
    Done,
    Finding,
    Finished,
    Gone,
    Hand,
    Hands,
    Marked,
    OpenDeck,
    Query,
    Question,
    Taken,
    Told,
    Unanswerable,
)

MANY = 1024  # shards that are done and remembered, before it is worth to look which of them may be forgotten


class Memo:
    """One node's part, over its generations.

    >>> from outlast.protocol.shards import Take
    >>> memo = Memo()
    >>> memo.begin(generation=1, first=0, ranks=1)
    >>> query = memo.ask(0, Take("train", 1, saves=0))
    >>> memo.hear(Told(1, query.ticket, Taken(7)))
    Taken(number=7)
    """

    def __init__(self) -> None:
        self.generation = 0
        self.ranks = range(0)
        self._ticket = 0
        self._waiting: dict[int, Query] = {}  # by ticket
        self._hands: dict[str, _Hand] = {}
        self._gone: list[int] = []

    def begin(self, generation: int, first: int, ranks: int) -> None:
        """Workers of a new generation start: nothing of the old one counts."""
        self.generation = generation
        self.ranks = range(first, first + ranks)
        self._waiting, self._hands, self._gone = {}, {}, []

    @property
    def asked(self) -> bool:
        """Whether any rank here has asked for anything, in this generation."""
        return bool(self._hands or self._waiting or self._gone)

    @property
    def waiting(self) -> list[Query]:
        """What has no answer yet, for a coordinator that was not asked."""
        return list(self._waiting.values())

    def ask(self, rank: int, question: Question) -> Query:
        """What to send."""
        self._ticket += 1
        query = self._waiting[self._ticket] = Query(self.generation, self._ticket, rank, question)
        return query

    def hear(self, told: Told) -> Finding | None:
        """What to tell the worker that asked with this ticket; None: it was told."""
        query = self._waiting.pop(told.ticket, None) if told.generation == self.generation else None
        if query is None:
            return None
        self._note(query.rank, query.question, told.finding)
        if not isinstance(query.question, OpenDeck | Gone) and query.question.name in self._hands:
            self._hands[query.question.name].prune(told.low)
        return told.finding

    def _note(self, rank: int, question: Question, finding: Finding) -> None:
        if isinstance(finding, Unanswerable):
            return
        if isinstance(question, Gone):
            self._gone.append(rank)
        elif isinstance(question, OpenDeck):
            known = self._hands.get(question.deck.name)
            if known is None or known.opened.life < question.life:
                self._hands[question.deck.name] = _Hand(question)
        elif (hand := self._hands.get(question.name)) is not None and hand.opened.life == question.life:
            if isinstance(finding, Taken):
                hand.held[rank] = finding.number
            elif isinstance(finding, Finished):
                hand.held.pop(rank, None)
            elif isinstance(question, Done) and isinstance(finding, Marked) and finding.counts:
                hand.done.add(question.number)
                if hand.held.get(question.holder) == question.number:
                    del hand.held[question.holder]
            elif isinstance(question, Cut) and isinstance(finding, DeckProgress) and question.save > hand.save:
                hand.save, hand.cut = question.save, finding

    def statement(self) -> Hands | None:
        """All that a coordinator has to know; None: nobody here has asked for anything in this generation."""
        if not self.asked:
            return None
        hands = tuple(hand.statement() for hand in self._hands.values())
        return Hands(self.generation, self.ranks.start, len(self.ranks), hands, tuple(self._gone))


class _Hand:
    def __init__(self, opened: OpenDeck) -> None:
        self.opened = opened
        self.low = 0
        self.done: set[int] = set()
        self.held: dict[int, int] = {}  # by rank
        self.save, self.cut = 0, DeckProgress()

    def prune(self, low: int) -> None:
        self.low = max(self.low, low)
        if len(self.done) > MANY:
            self.done = {number for number in self.done if number >= self.low}

    def statement(self) -> Hand:
        o = self.opened
        done = tuple(sorted(number for number in self.done if number >= self.low))
        return Hand(o.deck, o.life, o.base, self.low, done, dict(self.held), self.save, self.cut)
