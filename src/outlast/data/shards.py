"""`ElasticShards`: each worker takes a shard of the data when it is ready for one, at whatever pace.

The coordinator hands them out (`core/data_shards/`); without a launcher, a single process does that for itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol, overload

from outlast.core.data_shards.dealer import Dealer
from outlast.data.order import VERSION, Order, length_of
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
    Query,
    Question,
    ReadProgress,
    Take,
    Taken,
    Unanswerable,
)
from outlast.worker.requests import VARIABLE, RequestClient

_lives: dict[str, int] = {}  # by name: how often this process has begun with these shards


class Clerk(Protocol):
    """Who answers."""

    def ask(self, question: Question) -> Finding: ...


class DataShard(Sequence[int]):
    """The samples of one shard, as indices into the data set; `sampler=` of a DataLoader takes it as it is.

    It may be sent to another rank, which can call it done.
    """

    def __init__(self, number: int, epoch: int, positions: range, order: Order, ticket: tuple[int, int, int]) -> None:
        self.number = number
        self.epoch = epoch
        self.positions = positions  # in the order of the epoch
        self._order = order
        self._ticket = ticket  # generation, life, holder

    def __repr__(self) -> str:
        at = self.positions
        return f"<shard {self.number}: epoch {self.epoch}, samples {at.start} to {at.stop - 1}>"

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        positions = self.positions[at]
        return self._order.samples(positions) if isinstance(positions, range) else self._order[positions]

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.samples(self.positions))


class ElasticShards:
    """Shards of a data set, one at a time, for workers without steps in common.

        shards = outlast.ElasticShards(dataset, shard_size=512, epochs=2, save=save, save_every=100)
        start = checkpointer.restore({"model": model, "shards": shards})

        for shard in shards:                        # of all ranks, each gets the next one
            for batch in DataLoader(dataset, batch_size=32, sampler=shard):
                ...

    When the loop asks for the next shard, the one before is done: it is in this rank's model.

    `save(count)` is called on every rank after each `save_every` shards, and at the end, when all ranks stand between
    two shards; `count` is how many shards are done. Within it, and only there, `state_dict()` is what all of their
    models together contain.

    `keeper`: the rank that has the model, where it is one alone (a parameter server). Then the keeper says what is
    done, `if shards.done(shard): apply(update)`, and may take its `state_dict()` whenever it likes.

    `name`: for a script with several. All ranks give the same arguments.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        shard_size: int,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        save: Callable[[int], object] | None = None,
        save_every: int | None = None,
        keeper: int | None = None,
        name: str = "shards",
    ) -> None:
        length = length_of(data)
        for what, value in (("length", length), ("shard_size", shard_size), ("epochs", epochs)):
            if value < 1:
                raise ValueError(f"{what} must be at least 1, not {value}")
        if (save is None) != (save_every is None) or (save_every is not None and save_every < 1):
            raise ValueError("save and save_every go together: what to call, and after how many shards")
        if keeper is not None and save is not None:
            raise ValueError("a keeper saves whenever it likes: leave save and save_every out")
        order = f"{VERSION}:{seed}:{'shuffled' if shuffle else 'in order'}"
        self.deck = Deck(name, length, shard_size, epochs, order, save_every or 0, keeper)
        self._save = save
        self._orders: dict[int, Order] = {}
        self._seed, self._shuffle = seed, shuffle
        self._generation = int(os.environ.get("OUTLAST_GENERATION", "0"))
        self._rank = int(os.environ.get("RANK", "0"))
        self._world = int(os.environ.get("WORLD_SIZE", "1"))
        self._clerk: Clerk | None = None
        self._begin(DeckProgress())

    def _begin(self, base: DeckProgress) -> None:
        self._base = base
        self._life = _lives[self.deck.name] = _lives.get(self.deck.name, 0) + 1
        self._opened = False
        self._saves = 0
        self._current: DataShard | None = None
        self._cut: DeckProgress | None = None  # while everybody saves
        self._over = False

    def __len__(self) -> int:
        """How many shards there are, over all epochs."""
        return self._per_epoch * self.deck.epochs

    @property
    def remaining(self) -> int:
        """How many of them are not done; known where `state_dict()` is."""
        return len(self) - self._progress().done

    def __iter__(self) -> Iterator[DataShard]:
        while not self._over:
            answer = self._ask(Take(self.deck.name, self._life, self._saves))
            if isinstance(answer, Taken):
                shard = self._current = self._shard(answer.number)
                yield shard
                if self._current is shard and self.deck.keeper is None:
                    self.done(shard)
            elif isinstance(answer, Due):
                self._save_together(answer.save)
            else:
                assert isinstance(answer, Finished)
                self._over = True

    def done(self, shard: DataShard) -> bool:
        """This shard is in the model. False: it does not count, and what was made of it must not be kept.

        Leaving it out is fine: asking for the next shard says the same. With a keeper, only the keeper calls it.
        """
        generation, life, holder = shard._ticket
        if (generation, life) != (self._generation, self._life):
            return False
        if self._current is not None and self._current.number == shard.number:
            self._current = None
        answer = self._ask(Done(self.deck.name, life, shard.number, holder))
        assert isinstance(answer, Marked)
        return answer.counts

    def state_dict(self) -> dict[str, Any]:
        """What is done, for the checkpoint of the model that it is in. Raises RuntimeError where that is not known."""
        progress = self._progress()
        return {
            "length": self.deck.length,
            "size": self.deck.size,
            "order": self.deck.order,
            "next": progress.next,
            "open": " ".join(map(str, progress.open)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, on every rank; whatever was done since is to be done again."""
        try:
            ours = {"length": self.deck.length, "size": self.deck.size, "order": self.deck.order}
            theirs = {name: state[name] for name in ours}
            base = DeckProgress(int(state["next"]), tuple(int(number) for number in state["open"].split()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"this is not a state of shards ({error!r}): give what state_dict() returned") from None
        for name, value in ours.items():
            if theirs[name] != value:
                raise ValueError(
                    f"the checkpoint is of shards with {name} {theirs[name]!r}, these have {value!r}: samples would "
                    f"be lost or repeated. Use the same {name}, or do not load the shards"
                )
        if list(base.open) != sorted({number for number in base.open if 0 <= number < base.next}):
            raise ValueError("the checkpoint names open shards that were never begun: it is damaged")
        self._begin(base)

    def _progress(self) -> DeckProgress:
        if self._cut is not None:
            return self._cut
        if not self._opened:
            return self._base  # nothing was taken or done here yet: as when a checkpoint is about to be loaded
        if self._current is not None and self.deck.keeper is None:
            raise RuntimeError(f"{self._current!r} is under way: say shards.done(shard) before you save")
        if self._over and self.deck.keeper is None:
            return DeckProgress(len(self))
        if self.deck.keeper != self._rank and self._world > 1:
            raise RuntimeError(
                "other ranks are working on shards, so what all models contain is unknown: save in the function "
                "that you give as ElasticShards(save=…, save_every=…), or on the keeper"
            )
        answer = self._ask(ReadProgress(self.deck.name, self._life))
        assert isinstance(answer, DeckProgress)
        return answer

    def _save_together(self, number: int) -> None:
        answer = self._ask(Cut(self.deck.name, self._life, number))
        assert isinstance(answer, DeckProgress)
        assert self._save is not None
        self._saves, self._cut = number, answer
        try:
            self._save(answer.done)
        finally:
            self._cut = None

    def _ask(self, question: Question) -> Finding:
        if self._clerk is None:
            self._clerk = _find_clerk(self._world)
        if not self._opened:
            self._clerk.ask(OpenDeck(self.deck, self._life, self._base))
            self._opened = True
        return self._clerk.ask(question)

    @property
    def _per_epoch(self) -> int:
        return -(-self.deck.length // self.deck.size)

    def _shard(self, number: int) -> DataShard:
        epoch, at = divmod(number, self._per_epoch)
        if epoch not in self._orders:
            self._orders = {epoch: Order(self.deck.length, seed=self._seed, epoch=epoch, shuffle=self._shuffle)}
        positions = range(at * self.deck.size, min((at + 1) * self.deck.size, self.deck.length))
        return DataShard(number, epoch, positions, self._orders[epoch], (self._generation, self._life, self._rank))


class Alone:
    """The coordinator of a process that has no launcher."""

    def __init__(self) -> None:
        self._dealer = Dealer()
        self._ticket = 0

    def ask(self, question: Question) -> Finding:
        self._ticket += 1
        self._dealer.ask("", Query(1, self._ticket, 0, question))
        ((_, told),) = self._dealer.answers(generation=1, world=1)
        if isinstance(told.finding, Unanswerable):
            raise RuntimeError(told.finding.reason)
        return told.finding


_alone = Alone()


def _find_clerk(world: int) -> Clerk:
    if VARIABLE in os.environ:
        return RequestClient(os.environ)
    if world > 1:
        raise RuntimeError("shards for several ranks are handed out by Outlast: start the script with `outlast run`")
    return _alone
