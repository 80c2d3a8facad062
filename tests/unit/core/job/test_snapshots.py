"""Which snapshots count, where they are, and who keeps a copy of whose."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from outlast.core.job.commands import Send
from outlast.core.job.inputs import Joined, Lost, Reported
from outlast.core.job.job import Job
from outlast.core.job.snapshots import Snapshots, partners
from outlast.core.node.commands import SetStride, StartWorkers, Tell
from outlast.core.node.inputs import Cleared, Connected, Holds, KeepsUp, Received
from outlast.core.node.node import Node
from outlast.core.tick import Tick
from outlast.protocol.generations import Assignment, Start
from outlast.protocol.membership import Ack, Join, Report, State, Welcome
from outlast.protocol.rules import Rules
from outlast.protocol.snapshots import Held, Holder, Keeping, Snapshot, Stride
from outlast.protocol.succession import Charter, Standing, Term

RULES = Rules(job="j", entrypoint="t.py", min_nodes=2, max_nodes=3, last_call=600.0)
HERE = {name: (f"10.0.0.{number}", 4000 + number) for number, name in enumerate("abc", 1)}


def held(sequence: int, *ranks: int, replicas: tuple[int, ...] = (), run: str = "r", **more: Any) -> Held:
    """What a node has of one snapshot of three ranks."""
    save = Held(run, sequence, 10 * sequence, generation=1, world=3, origin="o", saved_at=float(sequence))
    return replace(save, ranks=ranks, replicas=replicas, **more)


def steps(snapshots: Snapshots, *nodes: str) -> list[int]:
    return [each.step for each in snapshots.whole({name: HERE[name] for name in nodes})]


def test_a_snapshot_counts_when_all_of_its_shards_are_somewhere() -> None:
    snapshots = Snapshots()
    snapshots.told("a", (held(2, 0), held(1, 0)))
    snapshots.told("b", (held(1, 1),))
    assert steps(snapshots, "a", "b", "c") == []
    snapshots.told("c", (held(2, 2), held(1, 2)))
    assert steps(snapshots, "a", "b", "c") == [10]  # b has not come as far as step 20
    snapshots.told("b", (held(2, 1), held(1, 1)))
    assert steps(snapshots, "a", "b", "c") == [20, 10]


def test_a_copy_takes_the_place_of_a_node_that_is_lost() -> None:
    """Also one that is a step behind: then that step is the one that counts."""
    snapshots = Snapshots()
    snapshots.told("a", (held(2, 0, replicas=(2,)), held(1, 0, replicas=(2,))))
    snapshots.told("b", (held(2, 1, replicas=(0,)), held(1, 1, replicas=(0,))))
    snapshots.told("c", (held(2, 2), held(1, 2)))
    assert steps(snapshots, "a", "b") == [20, 10]
    snapshots.told("a", (held(2, 0), held(1, 0, replicas=(2,))))
    snapshots.forget("c")
    assert steps(snapshots, "a", "b", "c") == [10]
    (snapshot,) = snapshots.whole(HERE)
    assert snapshot.holders == (Holder(*HERE["a"], (0,), (2,)), Holder(*HERE["b"], (1,), (0,)))


def test_shards_that_do_not_belong_together_make_no_snapshot() -> None:
    snapshots = Snapshots()
    snapshots.told("a", (held(1, 0, 1),))
    for other in ({"run": "q"}, {"generation": 2}, {"step": 11}, {"world": 2}, {"origin": "p"}):
        snapshots.told("b", (held(1, 2, **other),))
        assert steps(snapshots, "a", "b") == [], other
    snapshots.told("b", (held(1, 2),))
    assert steps(snapshots, "a", "b") == [10]
    snapshots.told("a", (held(1, 0, 1, origin=""),))
    snapshots.told("b", (held(1, 2, origin=""),))
    assert steps(snapshots, "a", "b") == []  # of a directory that nobody knows


def test_all_copy_at_the_pace_of_the_slowest() -> None:
    snapshots = Snapshots()
    assert not snapshots.keeps_up("a", 1, "abc")
    assert snapshots.keeps_up("b", 4, "abc")
    assert not snapshots.keeps_up("c", 2, "abc")
    assert snapshots.stride == 4
    assert snapshots.keeps_up("b", 1, "abc")
    assert snapshots.stride == 2
    snapshots.forget("c")
    assert snapshots.keeps_up("a", 1, "ab")
    assert snapshots.stride == 1


def test_partners_are_on_other_hosts_and_listen() -> None:
    one_host = {"a": ("10.0.0.1", 1), "b": ("10.0.0.1", 2)}
    assert partners(one_host) == {}
    assert partners({}) == {}
    found = partners({"a": ("h", 1), "b": ("h", 2), "c": ("i", 0), "d": ("j", 4), "e": ("j", 5)})
    assert {node: partner.port for node, partner in found.items()} == {"a": 4, "b": 4, "c": 4, "d": 1, "e": 1}
    many = partners({str(n): (str(n), n + 1) for n in range(1000)})
    assert len({partner.port for partner in many.values()}) == 1000  # everybody has one to look after


class Told:
    """A job, and what it says to whom."""

    def __init__(self, **more: Any) -> None:
        self.job = Job(RULES, 0.0, **more)
        self.now = 0.0
        self.starts: dict[str, Start] = {}
        self.strides: dict[str, int] = {}

    def feed(self, event: Any, seconds: float = 0.01) -> None:
        self.now += seconds
        for command in self.job.handle(event, self.now):
            if isinstance(command, Send) and isinstance(command.message, Start):
                self.starts[command.node] = command.message
            elif isinstance(command, Send) and isinstance(command.message, Stride):
                self.strides[command.node] = command.message.stride

    def join(self, name: str, report: Report, **more: Any) -> None:
        place = {"nproc": 1, "role": "default", "job": "j", "entrypoint": "t.py", "nnodes": (2, 3)}
        addr, keeper = HERE[name]
        self.feed(Joined(Join(node=name, name=name, addr=addr, keeper=keeper, report=report, **place, **more)))


def report(seq: int, *, generation: int = 0, clear: bool = True, **more: Any) -> Report:
    state = State.IDLE if clear else State.RUNNING
    floor = generation if clear else max(generation - 1, 0)
    return Report(seq, floor, generation, state, clear, 5000, acked=seq - 1, **more)


def test_the_next_generation_is_told_the_newest_snapshot_that_those_who_are_left_have() -> None:
    told = Told()
    for name in "abc":
        told.join(name, report(1))
    told.feed(Tick(), 1.0)
    first = told.starts["a"].assignment.generation
    assert told.starts["a"].keeping == Keeping(Holder(*HERE["b"]))
    assert told.starts["c"].keeping == Keeping(Holder(*HERE["a"]))
    for name in "abc":
        told.feed(Reported(name, report(2, generation=first, clear=False)))
    told.feed(Reported("b", report(3, generation=first, clear=False, stride=2)))
    assert told.strides == dict.fromkeys("abc", 2)
    told.feed(Lost("c", "gone", ended=True))
    told.feed(Reported("a", report(3, generation=first, held=(held(2, 0, replicas=(2,)), held(1, 0, replicas=(2,))))))
    told.feed(Reported("b", report(4, generation=first, stride=2, held=(held(1, 1, replicas=(0,)),))))
    told.feed(Tick(), 1.0)
    keeping = told.starts["a"].keeping
    assert told.starts["a"].assignment.generation > first
    assert [each.step for each in keeping.snapshots] == [10]
    assert (keeping.partner, keeping.stride) == (Holder(*HERE["b"]), 2)
    assert told.starts["b"].keeping.snapshots == keeping.snapshots


def test_a_node_tells_what_it_holds_until_it_is_heard_and_again_to_another_coordinator() -> None:
    def said(commands: list[Any]) -> list[tuple[Held, ...] | None]:
        return [command.report.held for command in commands if isinstance(command, Tell)]

    node = Node("a")
    assert said(node.handle(Connected(Standing(Term(1, "x"), True)), 0.0)) == [None]
    node.handle(Received(Welcome(1.0, 2.0, 0.0)), 0.0)
    node.handle(Received(Ack(1, 1)), 0.0)
    snapshot = Snapshot("r", 1, 10, 1, "o", 1.0, ())
    place = Assignment(1, 0, 1, 0, 1, 0, 1, "h", 1, 0)
    commands = node.handle(Received(Start(place, 1, Charter("r", RULES), 1, Keeping(None, (snapshot,)))), 0.1)
    assert [c.keeping.snapshots for c in commands if isinstance(c, StartWorkers)] == [(snapshot,)]
    assert said(node.handle(Holds((held(1, 0),)), 0.2)) == []  # nobody goes on from it as long as the workers live
    assert said(node.handle(Cleared(1), 0.2)) == [(held(1, 0),)]
    assert said(node.handle(Holds((held(1, 0, replicas=(2,)),)), 0.3)) == [(held(1, 0, replicas=(2,)),)]
    assert said(node.handle(Holds((held(1, 0, replicas=(2,)),)), 0.4)) == []
    (told,) = [c.report.stride for c in node.handle(KeepsUp(4), 0.4) if isinstance(c, Tell)]
    assert told == 4
    assert SetStride(2) in node.handle(Received(Stride(2)), 0.4)
    newest = node.state.conversation.seq
    node.handle(Received(Ack(newest, 1)), 0.5)
    assert node.deadline() is not None
    assert said(node.handle(Received(Ack(newest, 1, leased=False)), 0.6)) == [None]
    assert said(node.handle(Connected(Standing(Term(2, "y"), True)), 0.7)) == [(held(1, 0, replicas=(2,)),)]
