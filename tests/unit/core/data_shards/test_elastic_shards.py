"""`ElasticShards` in one process, and in front of an agent's desk; the job's answers to what workers ask."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections import Counter

import msgspec
import pytest

import outlast
from outlast.agent.processes.worker_requests import WorkerRequests
from outlast.core.data_shards.dealer import Dealer
from outlast.core.data_shards.holdings import Memo
from outlast.core.job.commands import Command, Send
from outlast.core.job.inputs import Queried
from outlast.core.node.commands import Respond, Show
from outlast.core.node.inputs import Connected, Event, Inquired, Received
from outlast.core.node.node import Node
from outlast.data import shards as module
from outlast.protocol.generations import Assignment, Start
from outlast.protocol.membership import Welcome
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.rules import Rules
from outlast.protocol.shards import (
    Deck,
    DeckProgress,
    Done,
    Finding,
    Hands,
    Marked,
    OpenDeck,
    Query,
    Question,
    ShardQuestion,
    Take,
    Taken,
    Told,
)
from outlast.protocol.succession import Charter, Standing, Term
from outlast.worker.requests import RequestClient as Client
from rehearsal import Rehearsal, two_running

DECK = Deck("train", 100, 10, 1)


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own: nothing was taken before."""
    for name in ("OUTLAST_DESK", "OUTLAST_GENERATION", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "_lives", {})
    monkeypatch.setattr(module, "_alone", module.Alone())


def test_alone_it_gives_every_sample_of_every_epoch_once() -> None:
    shards = outlast.ElasticShards(103, shard_size=10, epochs=2, seed=1)
    seen = Counter((shard.epoch, sample) for shard in shards for sample in shard)
    assert seen == dict.fromkeys(((epoch, sample) for epoch in range(2) for sample in range(103)), 1)
    assert len(shards) == 22
    assert shards.remaining == 0
    assert list(shards) == []


def test_a_shard_is_a_sampler() -> None:
    shard = next(iter(outlast.ElasticShards(range(10), shard_size=4, shuffle=False)))
    assert list(shard) == [0, 1, 2, 3]
    assert (len(shard), shard[-1], shard[1:3]) == (4, 3, [1, 2])
    again = pickle.loads(pickle.dumps(shard))  # noqa: S301
    assert (again.number, list(again)) == (0, [0, 1, 2, 3])


def test_it_goes_on_from_its_state_and_a_loop_that_is_left_has_not_done_its_shard() -> None:
    shards = outlast.ElasticShards(100, shard_size=10, seed=4)
    seen: list[int] = []
    for shard in shards:
        if shard.number == 4:
            break
        seen += shard
    with pytest.raises(RuntimeError, match="under way"):
        shards.state_dict()
    shards = outlast.ElasticShards(100, shard_size=10, seed=4)
    for shard in shards:
        seen_now = list(shard)
        shards.done(shard)
        if shard.number == 4:
            break
    state = shards.state_dict()
    again = outlast.ElasticShards(100, shard_size=10, seed=4)
    again.load_state_dict(state)
    assert again.remaining == 5
    rest = [sample for shard in again for sample in shard]
    assert sorted(seen + seen_now + rest) == list(range(100))


def test_it_saves_every_few_shards_and_at_the_end() -> None:
    saved: list[tuple[int, int]] = []

    def save(count: int) -> None:
        saved.append((count, shards.state_dict()["next"]))

    shards = outlast.ElasticShards(100, shard_size=10, save=save, save_every=4)
    assert len(list(shards)) == 10
    assert saved == [(4, 4), (8, 8), (10, 10)]


def test_what_was_done_after_the_state_was_taken_is_done_again_after_loading_it() -> None:
    shards = outlast.ElasticShards(30, shard_size=10)
    numbers = iter(shards)
    assert next(numbers).number == 0
    assert next(numbers).number == 1
    late = next(numbers)
    shards.done(late)
    shards.load_state_dict({**shards.state_dict(), "next": 2, "open": "0"})
    assert not shards.done(late)  # of a model that is no more
    assert [shard.number for shard in shards] == [0, 2]


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ({"length": 11}, "length 11"),
        ({"size": 7}, "size 7"),
        ({"order": "1:5:shuffled"}, "Use the same order"),
        ({"open": "9"}, "damaged"),
        ({"open": None}, "not a state of shards"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: dict[str, object], match: str) -> None:
    shards = outlast.ElasticShards(10, shard_size=5)
    with pytest.raises(ValueError, match=match):
        shards.load_state_dict({**shards.state_dict(), **state})


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard_size": 0},
        {"epochs": 0},
        {"save_every": 5},
        {"save": print},
        {"save": print, "save_every": 1, "keeper": 0},
    ],
)
def test_bad_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|go together|leave save"):
        outlast.ElasticShards(10, **{"shard_size": 5, **wrong})  # type: ignore[arg-type]


def test_several_ranks_need_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="outlast run"):
        list(outlast.ElasticShards(10, shard_size=5))


# -- through the agent


class Wire:
    """An agent with a coordinator behind it that hears questions when the test wants it to."""

    def __init__(self, generation: int = 3) -> None:
        self.sent: list[Query] = []
        self.news = asyncio.Event()
        self.desk = WorkerRequests(lambda visitor, question: self.feed(Inquired(visitor, question)))
        self.node = Node("a", ranks=2)
        self.feed(Connected(Standing(Term(1, "a"), True)))
        self.hear(Welcome(heartbeat=60.0, lease=180.0, restart_grace=0.0))
        place = Assignment(generation, 0, 1, 4, 6, 4, 6, "a", 1, 0)
        self.hear(Start(place, 1, Charter("r", Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=1)), ack=1))

    def hear(self, message: FromCoordinator) -> None:
        self.feed(Received(message))

    def feed(self, event: Event) -> None:
        for command in self.node.handle(event, now=1.0):
            if isinstance(command, Respond):
                self.desk.respond(command.visitor, command.finding)
            elif isinstance(command, Show) and isinstance(command.seen, Query):
                self.sent.append(command.seen)
                self.news.set()

    async def next(self) -> Query:
        while not self.sent:
            self.news.clear()
            await self.news.wait()
        return self.sent.pop(0)

    def client(self, rank: int = 4) -> Client:
        return Client({"OUTLAST_DESK": self.desk.address, "OUTLAST_GENERATION": "3", "RANK": str(rank)})


def test_a_worker_asks_through_its_agent_and_the_question_outlives_a_coordinator() -> None:
    async def story() -> None:
        wire = Wire()
        await wire.desk.open()
        answer = asyncio.ensure_future(asyncio.to_thread(wire.client().ask, Take("train", 1, 0)))
        asked = await wire.next()
        assert (asked.generation, asked.rank, asked.question) == (3, 4, Take("train", 1, 0))
        wire.hear(Welcome(heartbeat=60.0, lease=180.0, restart_grace=0.0))  # another coordinator has come
        assert await wire.next() == asked
        wire.hear(Told(2, asked.ticket, Taken(8)))  # of an old generation
        wire.hear(Told(3, asked.ticket, Taken(7)))
        assert await asyncio.wait_for(answer, 60) == Taken(7)
        wire.desk.close()

    asyncio.run(story())


def test_a_worker_of_another_generation_gets_nothing() -> None:
    async def story() -> None:
        wire = Wire(generation=4)
        await wire.desk.open()
        with pytest.raises(RuntimeError, match="no rank of generation 4"):
            await asyncio.to_thread(wire.client().ask, Take("train", 1, 0))
        assert not wire.sent
        wire.desk.close()

    asyncio.run(story())


def test_what_cannot_be_read_is_answered_and_goes_no_further() -> None:
    async def story() -> None:
        wire = Wire()
        await wire.desk.open()
        reader, writer = await asyncio.open_unix_connection(f"\0{wire.desk.address}")
        bad = msgspec.msgpack.encode(ShardQuestion(3, 4, OpenDeck(Deck("train", 0, 0, 0), 1, DeckProgress())))
        writer.write(len(bad).to_bytes(4, "big") + bad)
        length = int.from_bytes(await reader.readexactly(4), "big")
        assert b"cannot read" in await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()
        assert not wire.sent
        wire.desk.close()

    asyncio.run(story())


def test_an_answer_is_remembered_also_when_nobody_waits_for_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has acted on it, and another one must not think otherwise."""

    async def story() -> None:
        wire = Wire()
        await wire.desk.open()
        _, writer = await asyncio.open_unix_connection(f"\0{wire.desk.address}")
        asked = []
        for question in (OpenDeck(DECK, 1, DeckProgress()), Take("train", 1, 0)):
            frame = msgspec.msgpack.encode(ShardQuestion(3, 4, question))
            writer.write(len(frame).to_bytes(4, "big") + frame)
            asked.append(await wire.next())
        gone, left = asyncio.Event(), wire.desk.left
        monkeypatch.setattr(wire.desk, "left", lambda visitor: (left(visitor), gone.set()))
        writer.close()
        await asyncio.wait_for(gone.wait(), 60)
        for query, finding in zip(asked, (Marked(), Taken(7)), strict=True):
            wire.hear(Told(3, query.ticket, finding))
        statement = wire.node.hands
        assert statement is not None
        assert statement.hands[0].held == {4: 7}
        wire.desk.close()

    asyncio.run(story())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_other_users_are_refused() -> None:
    async def story() -> None:
        wire = Wire()
        await wire.desk.open()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(f"\0{wire.desk.address}")
                os._exit(0 if link.recv(1) == b"" else 1)
            except ConnectionResetError:
                os._exit(0)
            finally:
                os._exit(2)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        wire.desk.close()

    asyncio.run(story())


# -- the job


def ask(here: Rehearsal, node: str, memo: Memo, question: Question, now: float = 1.0) -> list[Command]:
    return here.handle(Queried(node, memo.ask(memo.ranks[0], question)), now)


def heard(memo: Memo, commands: list[Command], node: str) -> list[Finding | None]:
    told = [c.message for c in commands if isinstance(c, Send) and c.node == node and isinstance(c.message, Told)]
    return [memo.hear(each) for each in told]


def memos(here: Rehearsal) -> tuple[Memo, Memo]:
    both = Memo(), Memo()
    for rank, memo in enumerate(both):
        memo.begin(here.job.generation, rank, 1)
    return both


def test_the_job_answers_while_it_runs_and_writes_nothing_down() -> None:
    here = two_running()
    a, b = memos(here)
    for node, memo, number in (("a", a, 0), ("b", b, 1)):
        assert heard(memo, ask(here, node, memo, OpenDeck(DECK, 1, DeckProgress())), node)
        assert heard(memo, ask(here, node, memo, Take("train", 1, 0)), node) == [Taken(number)]
        assert here.job.idle


def test_nobody_gets_a_shard_of_a_generation_that_ends() -> None:
    here = two_running()
    a, _ = memos(here)
    ask(here, "a", a, OpenDeck(DECK, 1, DeckProgress()))
    here.fail("b")
    assert not heard(a, ask(here, "a", a, Take("train", 1, 0)), "a")


def test_a_coordinator_that_knows_nothing_learns_from_the_nodes_who_has_what() -> None:
    here = two_running()
    a, b = memos(here)
    for node, memo in (("a", a), ("b", b)):
        heard(memo, ask(here, node, memo, OpenDeck(DECK, 1, DeckProgress())), node)
        heard(memo, ask(here, node, memo, Take("train", 1, 0)), node)
    assert heard(a, ask(here, "a", a, Done("train", 1, 0, 0)), "a")
    here.succeed("a", 2, now=2.0)
    statements = {"a": a.statement(), "b": b.statement()}
    for node in ("a", "b"):
        here.heard[node] = msgspec.structs.replace(here.heard[node], hands=statements[node])
    here.join("a", 2.0)
    waiting = a.ask(0, Take("train", 1, 0))
    assert not heard(a, here.handle(Queried("a", waiting), 2.0), "a")  # b may have anything
    commands = here.join("b", 2.1)
    for node in ("a", "b", "a", "b"):
        commands += here.say(node, 2.2)
    assert heard(a, commands, "a") == [Taken(2)]
    assert heard(b, ask(here, "b", b, Take("train", 1, 0), 2.3), "b") == [Taken(1)]  # which it has


def test_what_is_said_at_joining_survives_the_journal() -> None:
    memo, dealer = Memo(), Dealer()
    memo.begin(1, 0, 1)
    dealer.ask("a", memo.ask(0, OpenDeck(DECK, 1, DeckProgress(3, (1,)))))
    dealer.ask("a", memo.ask(0, Take("train", 1, 0)))
    for _, told in dealer.answers(1, 1):
        memo.hear(told)
    said = memo.statement()
    assert said is not None
    assert said.hands[0].held == {0: 1}
    assert msgspec.json.decode(msgspec.json.encode(said), type=Hands) == said
