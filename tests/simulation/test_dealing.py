"""Shards between workers, agents and coordinators, simulated: coordinators die, answers are lost, questions doubled."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from shard_worker import Worker

from outlast.core.data_shards.dealer import Dealer
from outlast.core.data_shards.holdings import Memo
from outlast.protocol.shards import (
    Cut,
    Deck,
    DeckProgress,
    Done,
    Due,
    Finding,
    Finished,
    Gone,
    Hands,
    Marked,
    OpenDeck,
    Query,
    Question,
    ReadProgress,
    Take,
    Taken,
    Told,
    Unanswerable,
)


class Node:
    """An agent with its workers, connected to some coordinator or to none."""

    def __init__(self, name: str, workers: list[Worker], generation: int) -> None:
        self.name = name
        self.workers = {worker.rank: worker for worker in workers}
        self.memo = Memo()
        self.memo.begin(generation, workers[0].rank, len(workers))
        self.asked: dict[int, int] = {}  # ranks by ticket
        self.out: list[Query] = []  # under way to the coordinator
        self.back: list[Told] = []

    def join(self, dealer: Dealer) -> None:
        self.out, self.back = [], []  # the connection before is gone, with all that was under way
        statement = self.memo.statement()
        if statement is not None:  # as it goes through the journal and the wire
            statement = msgspec.json.decode(msgspec.json.encode(statement), type=Hands)
        dealer.hear(self.name, statement)
        self.out += self.memo.waiting


def play(seed: int) -> None:
    """A job over several generations, each from the last complete save."""
    draw = random.Random(seed)
    deck = Deck(
        "train", draw.randint(1, 60), draw.randint(1, 9), draw.randint(1, 2), save_every=draw.choice([1, 3, 7, 20])
    )
    total = -(-deck.length // deck.size) * deck.epochs
    base, history, faults = DeckProgress(), Counter[int](), draw.randint(0, 12)
    for generation in range(1, 50):
        shape = [draw.randint(1, 3) for _ in range(draw.randint(1, 4))]
        firsts = [sum(shape[:at]) for at in range(len(shape))]
        nodes = [
            Node(f"node {at}", [Worker(first + r, deck, base) for r in range(count)], generation)
            for at, (first, count) in enumerate(zip(firsts, shape, strict=True))
        ]
        ended = run(draw, nodes, generation, faults := faults - 1)
        workers = [worker for node in nodes for worker in node.workers.values()]
        if workers[0].saved and all(w.saves == workers[0].saves for w in workers):  # a save of all ranks, as it must be
            assert {w.saved[1] for w in workers if w.saved} == {workers[0].saved[1]}
            base = workers[0].saved[1]
            for worker in workers:
                assert worker.saved
                history.update(worker.saved[0])
        assert sum(history.values()) == base.done
        assert {number for number in range(base.next) if number not in base.open} == set(history)
        if ended:
            break
    assert history == dict.fromkeys(range(total), 1)


def run(draw: random.Random, nodes: list[Node], generation: int, faults: int) -> bool:
    """One generation, until it has finished, or (False) until it fails."""
    dealer = Dealer()
    ranks = sum(len(node.workers) for node in nodes)
    fails_after = draw.randint(0, 400) if faults > 0 else 10**9
    joined = {node.name for node in nodes}
    for event in range(10**6):
        if all(worker.finished for node in nodes for worker in node.workers.values()):
            return True
        if event > fails_after:
            return False
        what, node = draw.random(), draw.choice(nodes)
        if what < 0.02:  # the coordinator dies, and another one comes
            dealer, joined = Dealer(), set()
        elif what < 0.04 or (node.name not in joined and what < 0.5):
            node.join(dealer)
            joined.add(node.name)
        elif what < 0.45:
            worker = draw.choice(list(node.workers.values()))
            if not worker.finished and not worker.waits:
                worker.waits = True
                query = node.memo.ask(worker.rank, worker.next)
                node.asked[query.ticket] = worker.rank
                node.out.append(query)
        elif what < 0.75 and node.out and node.name in joined:
            query = node.out.pop(0)
            dealer.ask(node.name, query)
            if draw.random() < 0.1:
                dealer.ask(node.name, query)
            if len(joined) == len(nodes):
                for name, told in dealer.answers(generation, ranks):
                    next(each for each in nodes if each.name == name).back.append(told)
        elif node.back and node.name in joined:
            told = node.back.pop(0)
            finding = node.memo.hear(told)
            if finding is not None:
                node.workers[node.asked[told.ticket]].hear(finding)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("hundred", range(3))
def test_each_shard_once_in_the_history_that_was_saved(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        play(seed)


# -- and some of it by hand

DECK = Deck("train", 40, 10, 1)


def asked(dealer: Dealer, rank: int, question: Question, ticket: int = 1, *, world: int = 2) -> Finding | None:
    dealer.ask(f"node {rank}", Query(1, ticket, rank, question))
    told = [told for node, told in dealer.answers(1, world) if node == f"node {rank}" and told.ticket == ticket]
    return told[0].finding if told else None


def test_the_shard_of_a_rank_that_has_exited_goes_to_whoever_waits() -> None:
    dealer = Dealer()
    assert asked(dealer, 0, OpenDeck(Deck("train", 1, 1, 1), 1, DeckProgress())) == Marked()
    assert asked(dealer, 0, Take("train", 1, 0)) == Taken(0)
    assert asked(dealer, 1, Take("train", 1, 0), ticket=7) is None
    dealer.ask("node 0", Query(1, 2, 0, Gone()))
    assert ("node 1", Told(1, 7, Taken(0))) in dealer.answers(1, 2)


def test_a_keeper_alone_says_what_is_done_and_once() -> None:
    dealer = Dealer()
    deck = Deck("train", 40, 10, 1, keeper=0)
    assert asked(dealer, 0, OpenDeck(deck, 1, DeckProgress())) == Marked()
    assert asked(dealer, 1, Take("train", 1, 0)) == Taken(0)
    assert isinstance(asked(dealer, 1, Done("train", 1, 0, holder=1)), Unanswerable)
    assert asked(dealer, 1, Take("train", 1, 0)) == Taken(0)  # it still has that one
    assert asked(dealer, 0, Done("train", 1, 0, holder=1), ticket=5) == Marked(counts=True)
    assert asked(dealer, 0, Done("train", 1, 0, holder=1), ticket=5) == Marked(counts=True)  # the same question
    assert asked(dealer, 0, Done("train", 1, 0, holder=1), ticket=6) == Marked(counts=False)  # the work came twice
    assert asked(dealer, 0, ReadProgress("train", 1)) == DeckProgress(1)


def test_a_keeper_is_believed_before_the_holder_after_the_coordinators_death() -> None:
    deck = Deck("train", 40, 10, 1, keeper=0)
    keeper, holder = Memo(), Memo()
    keeper.begin(1, 0, 1)
    holder.begin(1, 1, 1)
    dealer = Dealer()
    for memo, rank, question in [
        (keeper, 0, OpenDeck(deck, 1, DeckProgress())),
        (holder, 1, OpenDeck(deck, 1, DeckProgress())),
        (holder, 1, Take("train", 1, 0)),
        (keeper, 0, Done("train", 1, 0, holder=1)),
    ]:
        dealer.ask("a", memo.ask(rank, question))
        for _, told in dealer.answers(1, 2):
            memo.hear(told)
    for first, second in ((keeper, holder), (holder, keeper)):
        dealer = Dealer()
        dealer.hear("a", first.statement())
        dealer.hear("b", second.statement())
        assert asked(dealer, 0, ReadProgress("train", 1)) == DeckProgress(1)
        assert asked(dealer, 1, Take("train", 1, 0)) == Taken(1)


def test_before_a_planned_change_all_save_as_soon_as_they_can() -> None:
    dealer = Dealer()
    assert asked(dealer, 0, OpenDeck(Deck("train", 40, 10, 1, save_every=100), 1, DeckProgress())) == Marked()
    assert asked(dealer, 0, Take("train", 1, 0)) == Taken(0)
    assert asked(dealer, 0, Done("train", 1, 0, 0)) == Marked()
    assert asked(dealer, 1, Take("train", 1, 0)) == Taken(1)
    dealer.hurry(True)
    assert asked(dealer, 0, Take("train", 1, 0)) == Due(1)
    assert asked(dealer, 0, Cut("train", 1, 1), ticket=8) is None
    assert asked(dealer, 1, Done("train", 1, 1, 1)) == Marked()
    assert asked(dealer, 1, Take("train", 1, 0)) == Due(1)
    dealer.ask("node 1", Query(1, 9, 1, Cut("train", 1, 1)))
    assert {(told.ticket, told.finding) for _, told in dealer.answers(1, 2)} == {
        (8, DeckProgress(2)),
        (9, DeckProgress(2)),
    }
    assert asked(dealer, 0, Take("train", 1, 1)) == Taken(2)  # the change may have been for others


def test_ranks_that_do_not_agree_are_told_so() -> None:
    dealer = Dealer()
    assert asked(dealer, 0, OpenDeck(DECK, 1, DeckProgress())) == Marked()
    for other in (OpenDeck(DECK, 1, DeckProgress(1)), OpenDeck(Deck("train", 41, 10, 1), 1, DeckProgress())):
        answer = asked(dealer, 1, other)
        assert isinstance(answer, Unanswerable)
        assert "do not agree" in answer.reason


def test_a_checkpoint_that_is_loaded_again_takes_shards_from_all() -> None:
    dealer = Dealer()
    assert asked(dealer, 0, OpenDeck(DECK, 1, DeckProgress())) == Marked()
    assert asked(dealer, 0, Take("train", 1, 0)) == Taken(0)
    assert asked(dealer, 1, OpenDeck(DECK, 2, DeckProgress(2, (0,)))) == Marked()
    assert isinstance(asked(dealer, 0, Done("train", 1, 0, holder=0)), Unanswerable)
    assert asked(dealer, 1, Take("train", 2, 0)) == Taken(0)
    assert asked(dealer, 0, OpenDeck(DECK, 2, DeckProgress(2, (0,)))) == Marked()
    assert asked(dealer, 0, Take("train", 2, 0)) == Taken(2)


def test_what_agents_remember_is_forgotten_when_all_before_it_is_done() -> None:
    dealer, memo = Dealer(), Memo()
    memo.begin(1, 0, 1)
    deck = Deck("train", 10_000, 1, 1)

    def told(question: Question) -> Finding | None:
        dealer.ask("a", memo.ask(0, question))
        ((_, answer),) = dealer.answers(1, 1)
        return memo.hear(answer)

    told(OpenDeck(deck, 1, DeckProgress()))
    for number in range(10_000):
        assert told(Take("train", 1, 0)) == Taken(number)
        assert told(Done("train", 1, number, 0)) == Marked()
    statement = memo.statement()
    assert statement
    assert len(statement.hands[0].done) < 100
    after = Dealer()
    after.hear("a", statement)
    assert asked(after, 0, Take("train", 1, 0), world=1) == Finished()


def test_nobody_runs_far_ahead_of_a_slow_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.core.data_shards.dealer.AHEAD", 2)
    dealer = Dealer()
    assert asked(dealer, 0, OpenDeck(DECK, 1, DeckProgress())) == Marked()
    assert asked(dealer, 0, Take("train", 1, 0)) == Taken(0)
    assert asked(dealer, 1, Take("train", 1, 0)) == Taken(1)
    assert asked(dealer, 1, Done("train", 1, 1, 1)) == Marked()
    assert asked(dealer, 1, Take("train", 1, 0), ticket=9) is None
    dealer.ask("node 0", Query(1, 2, 0, Done("train", 1, 0, 0)))
    assert ("node 1", 9, Taken(2)) in [(node, told.ticket, told.finding) for node, told in dealer.answers(1, 2)]
