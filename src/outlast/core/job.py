"""The job: which generation runs, on which nodes, and when there is a new one.

One state machine. Events go in with the time, commands come out, and every change of course leaves a note
that says why. The rules, in the order in which they are applied:

- RUNNING: a worker that failed, a member that was lost or leaves, or nodes that wait to join end the generation.
- STOPPING: nobody goes on until no worker of the old generation can be alive any more. Only then is it known
  why it ended: a worker that failed because another node was lost is that node's victim, and costs no restart.
- FORMING: with MAX nodes at once, with MIN after a last call; below MIN it waits, and gives up at last.

Work per event is constant but for the forming and stopping of a generation, which are linear in its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec.structs import replace

from outlast.core.events import (
    Asked,
    Command,
    Drop,
    Event,
    Joined,
    Lost,
    Note,
    Reply,
    Reported,
    Rules,
    Send,
)
from outlast.core.liveness import BEATS, lease_of
from outlast.core.roster import Candidate, assign, choose, rank, world_of
from outlast.messages import (
    PROTOCOL,
    Ack,
    Answer,
    Ask,
    Assignment,
    Failure,
    FromCoordinator,
    Join,
    Leaving,
    Over,
    Refuse,
    Report,
    Start,
    State,
    Stop,
    Welcome,
)

FIRST_NODE = 30.0  # seconds in which the first node has to come
NAMES_SHOWN = 8  # of nodes, in one line
SHORT = 2000  # characters of a failure that followed another
FAILURES_KEPT = 16  # of one generation, the first ones


class Phase(str, Enum):
    FORMING = "forming"
    RUNNING = "running"
    STOPPING = "stopping"
    OVER = "over"


class _Node:
    """What the job knows about one life of one agent."""

    __slots__ = ("connected", "join", "report", "sent", "until")

    def __init__(self, join: Join) -> None:
        self.join = join
        self.connected = True
        self.report = join.report
        self.sent = join.report.generation  # the newest generation that it may have been told to start
        self.until: float | None = None

    @property
    def name(self) -> str:
        return self.join.name

    @property
    def leaving(self) -> bool:
        return self.report.leaving is not Leaving.NO

    @property
    def clear(self) -> bool:
        """No worker runs there, and none of a generation that it was ever told to start can start any more."""
        return self.report.clear and (self.leaving or self.report.floor >= self.sent)

    def candidate(self) -> Candidate:
        j = self.join
        port = self.report.store_port
        return Candidate(
            node=j.node, name=j.name, nproc=j.nproc, role=j.role, addr=j.addr, store_port=port, infra_rank=j.infra_rank
        )


class Job:
    """The decisions of one job.

    >>> job = Job(Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=1), now=0.0)
    >>> job.phase.value, job.deadline()
    ('forming', 30.0)
    """

    def __init__(self, rules: Rules, now: float) -> None:
        self.rules = rules
        self.phase = Phase.FORMING
        self.generation = 0
        self.restarts = 0
        self.outcome: Over | None = None
        self._began = now
        self._highest = 0  # the newest generation that any node has heard of, of this coordinator or another
        self._nodes: dict[str, _Node] = {}
        self._connected = 0
        self._ready: dict[str, _Node] = {}
        self._roster: dict[str, Assignment] = {}
        self._waiting: set[str] = set()  # members of the roster whose workers may be alive
        self._ghosts: dict[str, float] = {}  # those of them that cannot be asked, and until when
        self._unfinished: set[str] = set()  # members whose workers have not all exited with 0
        self._failures: list[Failure] = []  # of this generation
        self._departed: list[str] = []  # why this generation ends, other than by a worker's failure
        self._last_call: float | None = None
        self._pend: float | None = None
        self._empty: float | None = now + max(rules.empty_timeout, FIRST_NODE)
        self._out: list[Command] = []

    @property
    def roster(self) -> dict[str, Assignment]:
        """The members of the newest generation, with their ranks."""
        return dict(self._roster)

    @property
    def spares(self) -> int:
        """How many nodes are here and ready without a place in the running generation."""
        return len(self._ready)

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        if self.phase is Phase.OVER:
            return None
        if self.phase is Phase.STOPPING:
            return min(self._ghosts.values(), default=None)
        times = [t for t in (self._last_call, self._pend, self._empty) if t is not None]
        return min(times, default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in; what comes out is to be done in this order."""
        self._out = []
        if isinstance(event, Reported):
            self._reported(event.node, event.report, now)
        elif isinstance(event, Joined):
            self._joined(event.join, now)
        elif isinstance(event, Lost):
            self._lost(event, now)
        elif isinstance(event, Asked):
            self._asked(event.ask, now)
        else:
            self._settle(now)
        return self._out

    # -- events

    def _joined(self, join: Join, now: float) -> None:
        refusal = self._refusal(join)
        if refusal:
            self._note(f"refused node {join.name}: {refusal}")
            self._send(join.node, Refuse(refusal))
            self._out.append(Drop(join.node))
            return
        node = self._nodes.get(join.node)
        if node is not None and join.report.seq <= node.report.seq:
            # The agent left this connection before it made the one that this has just replaced, and its end will
            # not mean that the agent has ended. It must come back on a third.
            self._out.append(Drop(join.node))
            self._lost(Lost(join.node, "an old connection of it came late", now + self.rules.node_timeout), now)
            return
        if node is None:
            node = self._nodes[join.node] = _Node(join)
            self._connected += 1
        else:
            self._connected += not node.connected
            node.join, node.connected, node.until = join, True, None
            node.sent = max(node.sent, join.report.generation)
        self._empty = None
        self._highest = max(self._highest, join.report.floor, join.report.generation)
        r = self.rules
        self._send(join.node, Welcome(r.node_timeout / BEATS, lease_of(r.node_timeout), r.restart_grace))
        self._reported(join.node, join.report, now, again=True)
        if self.phase is Phase.RUNNING and join.node in self._ready and self._last_call is None:
            self._note(f"node {join.name} waits as a spare")

    def _refusal(self, join: Join) -> str:
        r = self.rules
        mine = f"{r.min_nodes}:{r.max_nodes}"
        theirs = f"{join.nnodes[0]}:{join.nnodes[1]}"
        if join.protocol != PROTOCOL:
            return (
                f"it speaks protocol {join.protocol}, this coordinator {PROTOCOL}: "
                "install the same version of outlast on all nodes"
            )
        if join.job != r.job:
            return f"this endpoint serves job {r.job!r}, not {join.job!r}: choose another port or the same --rdzv-id"
        if join.entrypoint.rpartition("/")[2] != r.entrypoint.rpartition("/")[2]:  # it may lie elsewhere on that node
            return (
                f"this endpoint serves a job that runs {r.entrypoint!r}, not {join.entrypoint!r}: "
                "another job needs another port"
            )
        if theirs != mine:
            return f"this job runs with --nnodes={mine}, not {theirs}: start all of its nodes with the same --nnodes"
        return ""

    def _reported(self, name: str, report: Report, now: float, *, again: bool = False) -> None:
        node = self._nodes.get(name)
        if node is None or not node.connected:
            return
        known = node.report
        if report.seq < known.seq or (report.seq == known.seq and not again):
            return  # late or doubled: what it says is no longer true
        node.report = report
        changed = _changed(known, report)
        if again or not changed or self.phase is not Phase.STOPPING or not node.clear:
            self._send(name, Ack(report.seq))  # else `Start` is about to say it, and one message less is sent to all
        if again or changed:
            self._digest(name, node, now)
            self._settle(now)
        if again or not changed or node.leaving:
            self._remind(name, node)

    def _remind(self, name: str, node: _Node) -> None:
        """Say again what the node does not seem to have heard."""
        report = node.report
        member = self.phase is Phase.RUNNING and name in self._roster
        if self.outcome is not None:
            self._send(name, self.outcome)
        elif not member and not node.clear:
            self._send(name, Stop(node.sent, graceful=node.leaving))
        elif node.leaving and node.clear:
            self._send(name, Over(False, f"node {node.name} was drained", left=True))
        elif member and report.generation < self.generation and report.floor < self.generation:
            self._send(name, Start(self._roster[name], report.seq))

    def _digest(self, name: str, node: _Node, now: float) -> None:
        """Take a changed report to heart."""
        report = node.report
        if report.leaving is Leaving.INTERRUPT:
            self._end(False, f"interrupted on node {node.name}", now)
        if self.phase is Phase.OVER:
            return
        self._place(name, node)
        if name not in self._roster:
            return
        if report.leaving is Leaving.DRAIN and name in self._unfinished:
            self._depart(f"node {node.name} is draining")
        if report.generation != self.generation:
            return
        if report.state is State.CUT_OFF:
            self._depart(f"node {node.name} was cut off and stopped its workers")
        elif report.state is State.FAILED:
            self._failed(report.failures)
        elif report.state is State.FINISHED:
            self._unfinished.discard(name)

    def _place(self, name: str, node: _Node) -> None:
        """Keep the sets true: who is ready for the next generation, and whom the old one still waits for."""
        if node.connected and node.clear and not node.leaving:
            self._ready[name] = node
        else:
            self._ready.pop(name, None)
        if name in self._roster:
            gone = node.clear if node.connected else node.until is None
            (self._waiting.discard if gone else self._waiting.add)(name)
            if node.until is None:
                self._ghosts.pop(name, None)
            else:
                self._ghosts[name] = node.until

    def _lost(self, event: Lost, now: float) -> None:
        node = self._nodes.get(event.node)
        if node is None or not node.connected:
            return
        node.connected = False
        node.until = None if node.clear else event.until
        self._connected -= 1
        if self.phase is Phase.OVER:
            return
        self._place(event.node, node)
        if not self._connected:
            self._empty = now if node.leaving else now + self.rules.empty_timeout
        why = f"node {node.name} left" if node.leaving else f"node {node.name} was lost: {event.why}"
        active = self.phase is Phase.STOPPING or (self.phase is Phase.RUNNING and event.node in self._unfinished)
        if event.node in self._roster and active:
            self._depart(why)
        else:
            self._note(why)
        self._settle(now)

    def _asked(self, ask: Ask, now: float) -> None:
        if ask.job not in ("", self.rules.job):
            answer = Answer(False, f"this endpoint serves job {self.rules.job!r}, not {ask.job!r}")
        elif ask.what != "restart":
            answer = Answer(False, f"nobody here knows how to {ask.what!r}: install the same version of outlast")
        elif self.phase is not Phase.RUNNING:
            answer = Answer(False, f"nothing to restart: the job is {self.phase.value}")
        else:
            answer = Answer(True, f"job {self.rules.job}: generation {self.generation} ends, and starts anew")
            self._depart(f"a restart was asked for by {ask.who}")
            self._settle(now)
        self._out.append(Reply(answer))

    # -- rules

    def _settle(self, now: float) -> None:
        """Apply the rules until nothing changes."""
        phase = None
        while phase is not self.phase:
            phase = self.phase
            if phase is Phase.RUNNING:
                self._while_running(now)
            elif phase is Phase.STOPPING:
                self._while_stopping(now)
            elif phase is Phase.FORMING:
                self._while_forming(now)

    def _while_running(self, now: float) -> None:
        r = self.rules
        if not self._unfinished:
            self._end(True, "every worker finished", now)
        elif self._ready and len(self._unfinished) == len(self._roster):
            # Nobody has finished yet: more nodes are worth the interruption.
            size = self._world(len(self._roster) + len(self._ready))
            if size <= len(self._roster):
                self._last_call = None
            elif size == self._world(r.max_nodes) or self._is_due(now):
                self._depart(f"{_names(self._ready.values())} joined")
        else:
            self._last_call = None

    def _while_stopping(self, now: float) -> None:
        for name in [name for name, until in self._ghosts.items() if now >= until]:
            self._nodes[name].until = None
            self._place(name, self._nodes[name])
        if self._waiting:
            return
        if not self._unfinished:
            self._end(True, "every worker finished", now)
            return
        if self._failures and not self._departed:
            root = self._failures[0]
            what = f"rank {root.rank} on node {root.node} failed ({_ending(root.exit_code)})"
            if self.restarts >= self.rules.max_restarts:
                allowed = self.rules.max_restarts
                tries = f"and {_count(allowed, 'restart')} did not help" if allowed else "and no restart is allowed"
                self._end(False, f"{what}, {tries} (--max-restarts={allowed})", now)
                return
            self.restarts += 1
            self._note(f"restart {self.restarts} of {self.rules.max_restarts}: {what}")
        self.phase = Phase.FORMING
        size = self._world(len(self._ready))
        if size:
            self._form(size)

    def _while_forming(self, now: float) -> None:
        size = self._world(len(self._ready))
        if self._empty is not None and now >= self._empty:
            self._end(False, "no node is left", now)
        elif not size:
            self._last_call = None
            if self._pend is None:
                self._pend = now + self.rules.pend_timeout
                if any(n.connected and not n.leaving for n in self._nodes.values()):
                    self._note(f"waiting for {self._needed()}")
            elif now >= self._pend:
                waited = f"{self.rules.pend_timeout:g} s (pend_timeout)"
                self._end(False, f"waited {waited} for {self._needed()}", now)
        else:
            self._pend = None
            if size == self._world(self.rules.max_nodes) or self._is_due(now):
                self._form(size)

    def _is_due(self, now: float) -> bool:
        """Whether the last call is over; the first question starts it."""
        if self._last_call is None:
            self._last_call = now + self.rules.last_call
        return now >= self._last_call

    def _form(self, size: int) -> None:
        r = self.rules
        ready = [node.candidate() for node in self._ready.values()]
        last = {name: place.group_rank for name, place in self._roster.items()}
        members = rank(choose(ready, size, last=last, infra=r.infra_ranks), last=last, infra=r.infra_ranks)
        self.generation = self._highest = max(self.generation, self._highest) + 1
        self._roster = assign(members, generation=self.generation, restart_count=self.restarts)
        self._last_call = self._pend = None
        self._waiting, self._ghosts = set(self._roster), {}
        self._unfinished = set(self._roster)
        self._failures, self._departed = [], []
        self.phase = Phase.RUNNING
        for name, place in self._roster.items():
            node = self._nodes[name]
            node.sent = self.generation
            del self._ready[name]
            self._send(name, Start(place, node.report.seq))
        world = self._roster[members[0].node].world_size
        spare = f", {len(self._ready)} spare" if self._ready else ""
        shown = _names(self._nodes[m.node] for m in members)
        self._note(f"generation {self.generation}: {_count(size, 'node')}, {_count(world, 'rank')}{spare} ({shown})")

    def _failed(self, failures: tuple[Failure, ...]) -> None:
        seen = {(f.rank, f.pid) for f in self._failures}
        self._failures += [f for f in failures if (f.rank, f.pid) not in seen]
        del self._failures[FAILURES_KEPT:]
        if self.phase is Phase.RUNNING and failures:
            root = failures[0]
            self._stop(f"rank {root.rank} on node {root.node} failed ({_ending(root.exit_code)})")

    def _depart(self, why: str) -> None:
        """The generation ends, and not because a worker failed: whatever fails now fails because of that."""
        if why in self._departed:
            return
        self._departed.append(why)
        if self.phase is Phase.RUNNING:
            self._stop(why)
        elif self.phase is Phase.STOPPING:
            self._note(why)

    def _stop(self, why: str) -> None:
        self.phase = Phase.STOPPING
        self._last_call = None
        self._note(f"generation {self.generation} ends: {why}")
        for name in self._roster:
            node = self._nodes[name]
            if node.connected:
                self._send(name, Stop(self.generation, graceful=node.leaving))

    def _end(self, success: bool, reason: str, now: float) -> None:
        if self.phase is Phase.OVER:
            return
        self.phase = Phase.OVER
        took = f"{now - self._began:.1f} s, {_count(self.generation, 'generation')}, {_count(self.restarts, 'restart')}"
        self._note(f"job {'succeeded' if success else 'failed'}: {reason} ({took})")
        # The root with all that it said, its followers in short: this goes to every node.
        short = (replace(f, message=f.message[:SHORT], error="") for f in self._failures[1:])
        failures = () if success else (*self._failures[:1], *short)
        self.outcome = Over(success, reason, failures)
        for name, node in self._nodes.items():
            if node.connected:
                self._send(name, self.outcome)

    # -- small things

    def _world(self, available: int) -> int:
        r = self.rules
        return world_of(available, least=r.min_nodes, most=r.max_nodes, unit=r.node_unit)

    def _needed(self) -> str:
        r = self.rules
        unit = f" (in units of {r.node_unit})" if r.node_unit > 1 else ""
        here = f"{len(self._ready)} here" + (f": {_names(self._ready.values())}" if self._ready else "")
        return f"at least {_count(r.min_nodes, 'node')}{unit}; {here}"

    def _send(self, node: str, message: FromCoordinator) -> None:
        self._out.append(Send(node, message))

    def _note(self, text: str) -> None:
        self._out.append(Note(text))


def _changed(old: Report, new: Report) -> bool:
    return (
        old.state is not new.state
        or old.clear != new.clear
        or old.floor != new.floor
        or old.generation != new.generation
        or old.store_port != new.store_port
        or old.leaving is not new.leaving
        or old.failures != new.failures
    )


def _ending(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _names(nodes: Iterable[_Node]) -> str:
    names = [n.name for n in nodes]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
