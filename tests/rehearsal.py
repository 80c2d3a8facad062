"""A job without a network: its nodes say what a test tells them to say, and hear all that is said to them."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.core.job.commands import Command, Publish, Remember, Send
from outlast.core.job.inputs import Event, Joined, Reported
from outlast.core.job.job import Job
from outlast.core.job.phase import Phase
from outlast.core.succession.authority import Memory
from outlast.core.tick import Tick
from outlast.events.events import Level, level_of
from outlast.events.sentences import sentence
from outlast.protocol.failures import Account, Failure, ReportedCause
from outlast.protocol.generations import Start, Stop
from outlast.protocol.membership import Ack, Join, Report, State
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Term

IDLE = Report(seq=0, floor=0, generation=0, state=State.IDLE, clear=True, store_port=7)
FAILURE = Failure("a", "a", 0, 0, 77, 1, 0.0, "boom")


class Rehearsal:
    """A job, and nodes that say what they are told to say, and hear all that is said to them."""

    def __init__(self, **rules: Any) -> None:
        given = {"min_nodes": 1, "max_nodes": 2, "use_infra_group_rank": False, "planned_change_timeout": 0.0}
        self.rules = Rules(job="j", entrypoint="train.py", **{**given, **rules})
        self.job = Job(self.rules, now=0.0, term=Term(1, "a"), run="r")
        self.reports: dict[str, Report] = {}
        self.heard: dict[str, Join] = {}  # what each node would join with
        self.memory: bytes = b""  # the last that was written down

    def handle(self, event: Event, now: float) -> list[Command]:
        commands = self.job.handle(event, now)
        for command in commands:
            if isinstance(command, Remember):
                self.memory = msgspec.msgpack.encode(command.memory)
            elif isinstance(command, Send) and command.node in self.reports:
                self._hear(command.node, command.message)
        return commands

    def _hear(self, node: str, message: object) -> None:
        changes: dict[str, Any] = {}
        if isinstance(message, Ack | Start | Stop):
            changes["term"] = Term(message.term, self.job.term.by)
        if isinstance(message, Ack | Start):
            seq = message.seq if isinstance(message, Ack) else message.ack
            self.reports[node] = msgspec.structs.replace(self.reports[node], acked=seq)
        if isinstance(message, Charter | Start):
            charter = changes["charter"] = message.charter if isinstance(message, Start) else message
            self.reports[node] = msgspec.structs.replace(self.reports[node], known=charter.known)
        if isinstance(message, Start):
            changes["assignment"] = message.assignment
        if node in self.heard:
            self.heard[node] = msgspec.structs.replace(self.heard[node], **changes)

    def join(self, node: str, now: float = 0.0, **changes: Any) -> list[Command]:
        r = self.rules
        known = self.reports.get(node, IDLE)
        report = self.reports[node] = msgspec.structs.replace(known, seq=known.seq + 1, acked=0, **changes)
        before = self.heard.get(node) or self.request(node, report, nnodes=(r.min_nodes, r.max_nodes), connection=0)
        join = msgspec.structs.replace(before, report=report, connection=before.connection + 1)
        self.heard[node] = join
        return self.handle(Joined(join), now)

    def request(self, node: str, report: Report, **changes: Any) -> Join:
        join = Join(node, node, 1, "default", node, "j", "train.py", (1, 2), report, port=1, connection=1)
        return msgspec.structs.replace(join, **changes)

    def say(self, node: str, now: float = 1.0, **changes: Any) -> list[Command]:
        known = self.reports[node]
        report = self.reports[node] = msgspec.structs.replace(known, seq=known.seq + 1, **changes)
        return self.handle(Reported(node, report), now)

    def beat(self, *nodes: str, now: float) -> None:
        """Twice: the second heartbeat repeats the answer to the first."""
        for node in nodes * 2:
            self.say(node, now)

    def succeed(
        self, by: str, number: int, now: float, *, memory: bool = False, charter: Charter | None = None
    ) -> None:
        """Another life of a coordinator takes the place of this one."""
        recalled = msgspec.msgpack.decode(self.memory, type=Memory) if memory else None
        self.job = Job(self.rules, now, term=Term(number, by), run="r", memory=recalled, charter=charter)

    def run(self, *nodes: str, now: float = 1.0) -> None:
        for node in nodes:
            self.say(node, now, generation=self.job.generation, state=State.RUNNING, clear=False)

    def clear(self, *nodes: str, now: float = 2.0) -> list[Command]:
        out: list[Command] = []
        for node in nodes:
            failed = self.reports[node].state is State.FAILED
            state = State.FAILED if failed else State.IDLE
            out += self.say(node, now, clear=True, floor=self.job.generation, state=state)
        return out

    def fail(self, node: str, now: float = 1.5) -> list[Command]:
        return self.say(node, now, state=State.FAILED, failures=(FAILURE,))


def two_running(**rules: Any) -> Rehearsal:
    """Nodes a and b run generation 1."""
    here = Rehearsal(**rules)
    here.join("a")
    here.join("b")
    here.run("a", "b")
    assert here.job.phase is Phase.RUNNING
    return here


def sent(commands: list[Command], kind: type) -> list[str]:
    return [c.node for c in commands if isinstance(c, Send) and isinstance(c.message, kind)]


UNKNOWN = ReportedCause("unknown", "exit code 3", seen="exit code 3")
NO_CURE = ReportedCause("missing-file", "a file is missing", domain="data", outlook="cannot help")
GPU = ReportedCause("gpu-lost", "the GPU is gone", domain="gpu", outlook="cannot help")
LOST = ReportedCause("gloo-error", "gloo lost its peers", role="cascade", domain="network")


def failure(rank: int = 0, node: str = "a", cause: ReportedCause = UNKNOWN, **facts: Any) -> Failure:
    account = Account(step=facts.pop("step", None), ran=facts.pop("ran", 1.0))
    return Failure(node, node, rank, 0, 77, 1, 0.0, "", cause=cause, account=account, **facts)


class FailingJob(Rehearsal):
    """A job whose nodes fail with evidence."""

    def __init__(self, **rules: Any) -> None:
        given = {"max_restarts": 100, "failover": True, "crash_loop": 5, "min_nodes": 1, "max_nodes": 3, "last_call": 1}
        super().__init__(**{**given, **rules})
        self.now = 1.0

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.join(node, now=0.0)
        self.tell("time passes", now=2.0)

    def tell(self, *_: str, now: float) -> None:

        self.now = now
        self.handle(Tick(), now)

    def end(self, *failures: Failure) -> list[Any]:
        """All members run, these workers fail, and all members are clear."""
        self.now += 0.1
        members = [*self.job.roster]
        out = []
        self.run(*members, now=self.now)
        for each in failures:
            mine = tuple(f for f in failures if f.node == each.node)
            out += self.say(each.node, now=self.now, state=State.FAILED, failures=mine, sent=self.now)
        for member in members:
            floor, state = self.job.generation, self.reports[member].state
            state = State.IDLE if state is State.RUNNING else state
            out += self.say(member, now=self.now, clear=True, floor=floor, state=state, sent=self.now)
        self.beat(*members, now=self.now)
        return out

    @property
    def members(self) -> list[str]:
        return sorted(self.job.roster)

    @property
    def reason(self) -> str:
        assert self.job.outcome is not None
        return self.job.outcome.reason


def running(*nodes: str, **rules: Any) -> FailingJob:
    job = FailingJob(**rules)
    job.start(*nodes)
    assert job.job.phase is Phase.RUNNING, job.job.phase
    return job


def notes(commands: list[Any]) -> str:
    return "\n".join(texts(commands))


def texts(commands: list[Any]) -> list[str]:
    """What people are told."""
    told = [event for event in published(commands, object) if level_of(event) is not Level.QUIET]
    return [line for event in told for line in sentence(event).splitlines()]


def published(commands: list[Any], kind: type) -> list[Any]:
    """The events of this kind."""
    return [command.event for command in commands if isinstance(command, Publish) and isinstance(command.event, kind)]
