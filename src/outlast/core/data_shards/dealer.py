"""The coordinator's half of dynamic shards: answers to what workers ask.

All of it is about one generation. Its ranks begin with the same checkpoint (or none), so what they have done in an
earlier one and not saved is forgotten by itself, together with the model that it was in. Within a generation no rank is
lost without the generation: but for those that exit with 0, whose shard goes back.

Nothing is written down. Agents remember what their ranks were told, and say it with every `Join`; a coordinator
comes to answer only when all members have joined, and then it knows all that anybody was told before. What somebody was
told and never heard did not happen. Pure.
"""

from __future__ import annotations

from outlast.core.data_shards.shards import Shards
from outlast.protocol.shards import (
    Cut,
    DeckProgress,
    Done,
    Due,
    Finding,
    Finished,
    Gone,
    Hand,
    Hands,
    Marked,
    OpenDeck,
    Query,
    ReadProgress,
    Take,
    Taken,
    Told,
    Unanswerable,
)

AHEAD = 1 << 15  # shards that may be begun while a slow rank has an older one: agents have to remember those


class Dealer:
    """Answers questions once it may; until then, and while there is no answer, they wait.

    >>> from outlast.protocol.shards import Deck
    >>> dealer, deck = Dealer(), Deck("train", length=10, size=5, epochs=1)
    >>> dealer.ask("node", Query(1, 1, 0, OpenDeck(deck, 1, DeckProgress())))
    >>> dealer.ask("node", Query(1, 2, 0, Take("train", 1, saves=0)))
    >>> [told.finding for _, told in dealer.answers(generation=1, world=1)]
    [Marked(counts=True), Taken(number=0)]
    """

    def __init__(self) -> None:
        self.waits = False  # there may be something to answer that was not looked at
        self._hurried = False
        self._generation = 0
        self._tables: dict[str, _Table] = {}
        self._gone: set[int] = set()
        self._new: dict[tuple[str, int], Query] = {}  # by node and ticket
        self._open: dict[tuple[str, int], Query] = {}  # those that could not be answered when they came

    def hear(self, node: str, hands: Hands | None) -> None:
        """A node has joined: what it says takes the place of all that was known of it, and what it asks, it repeats."""
        for queries in (self._new, self._open):
            for key in [key for key in queries if key[0] == node]:
                del queries[key]
        if hands is None or not self._is_of(hands.generation):
            return
        self._gone.update(hands.gone)
        told = {}
        for hand in hands.hands:
            told[hand.deck.name] = hand
            self._table(OpenDeck(hand.deck, hand.life, hand.base))
        for name, table in self._tables.items():
            table.hear(range(hands.first, hands.first + hands.ranks), told.get(name))
        self._dismiss()
        self.waits = True

    def ask(self, node: str, query: Query) -> None:
        """A node passes a worker's question on."""
        if self._is_of(query.generation):
            self._new[node, query.ticket] = query
            self.waits = True

    def hurry(self, hurried: bool) -> None:
        """The line-up is about to change: all ranks save as soon as they can."""
        if hurried != self._hurried:
            self._hurried = hurried
            for table in self._tables.values():
                table.hurry(hurried)
            self.waits = True

    def answers(self, generation: int, world: int) -> list[tuple[str, Told]]:
        """What can be answered now, to whom: every member of this generation has joined, and its workers run."""
        self.waits = False
        given: list[tuple[str, Told]] = []
        while self._generation == generation and (queries := self._worth_a_look()):
            for key, query in queries.items():
                finding = self._answer(key, query, world)
                if finding is None:
                    self._open[key] = query
                else:
                    given.append((key[0], Told(generation, query.ticket, finding, self._low(query))))
        return given

    def _worth_a_look(self) -> dict[tuple[str, int], Query]:
        """New questions; older ones only after something has changed that they may have waited for."""
        queries, self._new = self._new, {}
        if any(table.has_news() for table in self._tables.values()):
            queries, self._open = self._open | queries, {}
        return queries

    def _low(self, query: Query) -> int:
        question = query.question
        table = None if isinstance(question, OpenDeck | Gone) else self._tables.get(question.name)
        return table.low if table is not None else 0

    def _is_of(self, generation: int) -> bool:
        """Whether it is about the newest generation that anybody has spoken of."""
        if generation > self._generation:
            self._generation = generation
            self._tables, self._gone, self._new, self._open = {}, set(), {}, {}
        return generation == self._generation

    def _answer(self, key: tuple[str, int], query: Query, world: int) -> Finding | None:
        question = query.question
        if isinstance(question, Gone):
            self._gone.add(query.rank)
            self._dismiss()
            return Marked()
        if isinstance(question, OpenDeck):
            opened = self._table(question)
            self._dismiss()
            return opened if isinstance(opened, Unanswerable) else Marked()
        table = self._tables.get(question.name)
        if table is None or table.life != question.life:
            return _outdated(question.name)
        if isinstance(question, Take):
            return table.take(query.rank, question.saves)
        if isinstance(question, Done):
            return table.done(query.rank, question, key)
        if isinstance(question, Cut):
            return table.cut_at(query.rank, question.save, world - len(self._gone))
        assert isinstance(question, ReadProgress)
        return table.progress()

    def _table(self, opened: OpenDeck) -> _Table | Unanswerable:
        name = opened.deck.name
        known = self._tables.get(name)
        if known is None or known.life < opened.life:
            known = self._tables[name] = _Table(opened)
            known.hurry(self._hurried)
        if known.life > opened.life:
            return _outdated(name)
        if (known.deck, known.base) != (opened.deck, opened.base):
            return Unanswerable(
                f"ranks do not agree about the shards {name!r}: give ElasticShards the same arguments on every rank, "
                "and load the same checkpoint"
            )
        return known

    def _dismiss(self) -> None:
        for table in self._tables.values():
            table.dismiss(self._gone)


class _Table:
    """One deck, from one checkpoint on."""

    def __init__(self, opened: OpenDeck) -> None:
        self.deck, self.life, self.base = opened.deck, opened.life, opened.base
        self.low = 0  # every shard below is done; it may lag behind
        self._news = True
        self._hurried = False
        self._shards = Shards(length=self.deck.length, size=self.deck.size, epochs=self.deck.epochs)
        self._restore(self.base)
        self._save, self._cut = 0, self.base  # the last save that all ranks have come to, and what was done then
        self._at_cut: set[int] = set()
        self._said: dict[int, tuple[int, tuple[str, int]]] = {}  # by holder: its last shard, and by what question

    def _restore(self, progress: DeckProgress) -> None:
        state = self._shards.state_dict() | {"next": progress.next, "open": list(progress.open)}
        self._shards.load_state_dict(state)

    def has_news(self) -> bool:
        """Whether something has happened since this was last asked that ranks may wait for."""
        news, self._news = self._news, False
        return news

    def hear(self, ranks: range, hand: Hand | None) -> None:
        if hand is not None and (hand.life, hand.deck, hand.base) != (self.life, self.deck, self.base):
            hand = None  # of before; or they were told that they do not agree
        held = {str(rank): number for rank, number in hand.held.items()} if hand is not None else {}
        done, low = (hand.done, hand.low) if hand is not None else ((), 0)
        self._shards.learn(map(str, ranks), held, done, low)
        self._at_cut.difference_update(ranks)
        if hand is not None and hand.save > self._save:
            self._save, self._cut = hand.save, hand.cut
        self._news = True

    def hurry(self, hurried: bool) -> None:
        self._hurried, self._news = hurried, True

    def dismiss(self, gone: set[int]) -> None:
        for rank in gone:
            self._shards.lost(str(rank))
        self._at_cut -= gone
        self._news = True

    def take(self, rank: int, saves: int) -> Finding | None:
        shards, worker = self._shards, str(rank)
        if not shards.holds(worker):
            if saves <= self._save and self._is_due:
                return Due(self._save + 1)
            if shards.over:
                return Finished()
        shard = shards.take(worker, most=AHEAD)
        if shard is None:
            return None
        if shard.number % 64 == 0:
            self.low = shards.low
        return Taken(shard.number)

    @property
    def _is_due(self) -> bool:
        """Whether all ranks have to save before they go on."""
        since = self._shards.finished - self._cut.done
        enough = 1 if self._shards.over or self._hurried else self.deck.save_every
        return bool(self.deck.save_every) and since >= enough

    def done(self, rank: int, question: Done, asked: tuple[str, int]) -> Finding:
        keeper = self.deck.keeper
        if keeper is not None and rank != keeper:
            return Unanswerable(
                f"rank {keeper} is the keeper of the shards {self.deck.name!r}: it alone says what is done"
            )
        this = (question.number, asked)
        if self._said.get(question.holder) == this:
            return Marked()  # it did not hear the answer
        counts = self._shards.done(str(question.holder), question.number)
        if counts:
            self._said[question.holder] = this
            # A rank that waits does so for the end, for a save, or for another that is far behind.
            self._news = self._news or self._is_due or self._shards.over or self._shards.begun - self.low >= AHEAD
        return Marked(counts)

    def cut_at(self, rank: int, save: int, ranks: int) -> DeckProgress | None:
        if save > self._save:
            self._at_cut.add(rank)
            if len(self._at_cut) < ranks:
                return None
            self._save, self._cut = self._save + 1, self.progress()
            self._at_cut.clear()
            self._news = True
        return self._cut

    def progress(self) -> DeckProgress:
        state = self._shards.state_dict()
        return DeckProgress(state["next"], tuple(state["open"]))


def _outdated(name: str) -> Unanswerable:
    return Unanswerable(
        f"the shards {name!r} were started again meanwhile: load a checkpoint on every rank, or on none; and give each "
        "ElasticShards of a script a name of its own"
    )
