"""Shards: what workers ask, and what their agent remembers of the answers (core/data_shards/)."""

from __future__ import annotations

import msgspec

from outlast.protocol.fields import Count, Name, Reason, Some


class Deck(msgspec.Struct, frozen=True, array_like=True):
    """Shards that are handed out one by one: `epochs` times a data set of `length` samples, `size` at a time."""

    name: Name
    length: Some
    size: Some
    epochs: Some
    order: Name = ""  # of the samples: what ranks must agree on, and a checkpoint has to be of
    save_every: Count = 0  # so many shards all ranks save together; 0: never
    keeper: Count | None = None  # the rank that has the model, and says what is done; None: each rank for itself


class DeckProgress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Which shards are done: those below `next`, but for the open ones."""

    next: Count = 0
    open: tuple[Count, ...] = ()

    @property
    def done(self) -> int:
        """How many."""
        return self.next - len(self.open)


class OpenDeck(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A rank is going to take shards of this deck, from where its checkpoint says; with a life higher than the last
    one's it begins anew."""

    deck: Deck
    life: Count
    base: DeckProgress


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Give me a shard, or the one that I have. Answered when there is one, or something else to do."""

    name: Name
    life: Count
    saves: Count  # that this rank has taken part in


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """What the holder made of this shard is in the model that the asking rank saves."""

    name: Name
    life: Count
    number: Count
    holder: Count  # a rank


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """This rank stands between two shards, for this save. Answered when all do."""

    name: Name
    life: Count
    save: Count


class ReadProgress(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """How far is it now? For a keeper, which knows what is in its model."""

    name: Name
    life: Count


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """This rank has exited: its agent says so."""


Question = OpenDeck | Take | Done | Cut | ReadProgress | Gone


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    number: Count


class Due(msgspec.Struct, frozen=True, array_like=True, tag="due"):
    """First all ranks save: this is the number of that save."""

    save: Count


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """Every shard of every epoch is done."""


class Marked(msgspec.Struct, frozen=True, array_like=True, tag="marked"):
    """It is noted. `counts` False: the shard is not the holder's, and what was made of it must not be kept."""

    counts: bool = True


class Unanswerable(msgspec.Struct, frozen=True, array_like=True, tag="unfit"):
    """The question cannot be answered: the reason says what to change in the script."""

    reason: Reason


Finding = Taken | Due | Finished | Marked | DeckProgress | Unanswerable


class ShardQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A question as a worker sends it to its agent."""

    generation: Count
    rank: Count
    question: Question


class Query(msgspec.Struct, frozen=True, array_like=True, tag="query"):
    """A worker's question, as its agent passes it on; asked again of whoever coordinates, until it is answered."""

    generation: Count
    ticket: Count
    rank: Count
    question: Question


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """The answer."""

    generation: Count
    ticket: Count
    finding: Finding
    low: Count = 0  # every shard below is done: nobody has to remember which


class Hand(msgspec.Struct, frozen=True, array_like=True):
    """What the ranks of a node have been told of one deck in this generation."""

    deck: Deck
    life: Count
    base: DeckProgress
    low: Count = 0
    done: tuple[Count, ...] = ()  # that a rank here has said
    held: dict[Count, Count] = {}  # shards by rank
    save: Count = 0  # the last one that a rank here took part in
    cut: DeckProgress = DeckProgress()  # and what was done then


class Hands(msgspec.Struct, frozen=True, array_like=True):
    """All of that. With those of all members, whoever coordinates next knows what the one before it did."""

    generation: Count
    first: Count  # rank of this node
    ranks: Count  # how many
    hands: tuple[Hand, ...] = ()
    gone: tuple[Count, ...] = ()  # ranks that have exited
