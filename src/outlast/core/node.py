"""The node: what an agent does with its workers. The other half of the job's rules.

It starts a generation only when told, only once, only with nothing else alive, and only while it holds a lease.
It stops its workers when told, when one of them fails, and when its lease runs out: whoever cannot reach
the coordinator must assume that the others go on without it.
"""

from __future__ import annotations

import msgspec

from outlast.core.liveness import LEASE_SHARE
from outlast.messages import (
    Ack,
    Assignment,
    Failure,
    FromCoordinator,
    Leaving,
    Over,
    Refuse,
    Report,
    Start,
    State,
    Stop,
    Welcome,
)

FIRST_PATIENCE = 10.0  # with a coordinator that has not said how long its leases are


class Connected(msgspec.Struct, frozen=True):
    """A new connection stands; what comes on an older one no longer counts."""


class Disconnected(msgspec.Struct, frozen=True):
    """The connection is gone."""


class Received(msgspec.Struct, frozen=True):
    """The coordinator said something, on the present connection."""

    message: FromCoordinator


class Exited(msgspec.Struct, frozen=True):
    """A worker exited: with 0 (`failure` None), or not."""

    generation: int
    failure: Failure | None = None


class Cleared(msgspec.Struct, frozen=True):
    """No process of this generation is alive any more."""

    generation: int


class Leave(msgspec.Struct, frozen=True):
    """Somebody wants this node out (a signal to the agent)."""

    how: Leaving


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: a deadline may be due."""


Event = Connected | Disconnected | Received | Exited | Cleared | Leave | Tick


class Tell(msgspec.Struct, frozen=True):
    """Send this report, as the first of a connection within a `Join`."""

    report: Report
    first: bool = False


class StartWorkers(msgspec.Struct, frozen=True):
    assignment: Assignment


class StopWorkers(msgspec.Struct, frozen=True):
    """Stop the workers: with the whole shutdown time-out, or with this many seconds between TERM and KILL."""

    generation: int
    grace: float | None


class Hangup(msgspec.Struct, frozen=True):
    """The coordinator has been silent for too long: close this connection and try another."""


class Exit(msgspec.Struct, frozen=True):
    """Nothing is left to do here."""

    over: Over


Command = Tell | StartWorkers | StopWorkers | Hangup | Exit


class Node:
    """The decisions of one life of one agent.

    >>> node = Node()
    >>> node.handle(Connected(), now=0.0)[0].first
    True
    """

    def __init__(self, store_port: int = 0) -> None:
        self.store_port = store_port
        self.generation = 0
        self.state = State.IDLE
        self.clear = True
        self._floor = 0
        self._stopping = False
        self._killed = False
        self._failures: list[Failure] = []
        self._leaving = Leaving.NO
        self._over: Over | None = None
        self._exited = False
        self._connected = False
        self._welcome: Welcome | None = None
        self._seq = 0
        self._sent_at: dict[int, float] = {}  # reports on this connection that wait for their Ack
        self._heard_at = 0.0
        self._lease_end = float("-inf")
        self._beat_at: float | None = None
        self._out: list[Command] = []

    @property
    def leaving(self) -> Leaving:
        return self._leaving

    @property
    def failed(self) -> bool:
        """Whether a worker of the newest generation has failed."""
        return self.state is State.FAILED

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        times = []
        if self._connected:
            times += [self._patience()] if self.clear else []
            times += [self._beat_at] if self._beat_at is not None else []
        if self._is_leased():
            times.append(self._lease_end)
        return min(times, default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in; what comes out is to be done in this order."""
        self._out = []
        if isinstance(event, Received):
            self._received(event.message, now)
        elif isinstance(event, Connected):
            # Reports of an earlier connection may have been heard by a coordinator that has since given
            # this node up: only an answer on this connection renews the lease.
            self._connected = True
            self._heard_at = now
            self._sent_at.clear()
            self._tell(now, first=True)
        elif isinstance(event, Disconnected):
            self._connected = False
            self._beat_at = None
            if self._leaving is not Leaving.NO:
                self._leave_alone()
        elif isinstance(event, Exited):
            self._worker_exited(event, now)
        elif isinstance(event, Cleared):
            self._cleared(event.generation, now)
        elif isinstance(event, Leave):
            self._leave(event.how, now)
        else:
            self._tick(now)
        return self._out

    def _received(self, message: FromCoordinator, now: float) -> None:
        self._heard_at = now
        if isinstance(message, Ack):
            self._renew(message.seq)
        elif isinstance(message, Welcome):
            self._welcome = message
            self._beat_at = now + message.heartbeat
        elif isinstance(message, Start):
            self._renew(message.ack)
            self._start(message.assignment, now)
        elif isinstance(message, Stop):
            self._stop_up_to(message.generation, message.graceful, now)
        elif isinstance(message, Over):
            self._finish(message)
        elif isinstance(message, Refuse):
            self._finish(Over(False, message.reason))

    def _renew(self, seq: int) -> None:
        sent = self._sent_at.pop(seq, None)
        if sent is not None and self._welcome is not None:
            self._lease_end = max(self._lease_end, sent + self._welcome.lease)

    def _start(self, assignment: Assignment, now: float) -> None:
        generation = assignment.generation
        stale = generation <= self._floor or generation <= self.generation
        if stale or not self.clear or self._over is not None or self._leaving is not Leaving.NO:
            return
        if now >= self._lease_end:
            return  # an order that was under way for so long may have been withdrawn since
        self.generation = generation
        self._floor = generation - 1
        self.state, self.clear, self._stopping, self._killed = State.RUNNING, False, False, False
        self._failures = []
        self._out.append(StartWorkers(assignment))
        self._tell(now)

    def _stop_up_to(self, generation: int, graceful: bool, now: float) -> None:
        if generation > self._floor:
            self._floor = generation
        if not self.clear and self.generation <= generation:
            self._stop(None if graceful else self._grace())
        self._tell(now)

    def _worker_exited(self, event: Exited, now: float) -> None:
        if event.generation != self.generation or self.clear:
            return
        if self._stopping and not self._failures:
            return  # it was told to: whatever its exit code is, it is no failure
        if event.failure is not None:
            self._failures.append(event.failure)
            if self.state is not State.FAILED:
                self.state = State.FAILED
                self._tell(now)
                self._stop(self._grace())

    def _cleared(self, generation: int, now: float) -> None:
        if generation != self.generation or self.clear:
            return
        self.clear = True
        if self._stopping:
            self._floor = max(self._floor, self.generation)
            if self.state is State.RUNNING:
                self.state = State.IDLE
        elif self.state is State.RUNNING:
            self.state = State.FINISHED
        self._tell(now)
        if self._over is not None or (self._leaving is not Leaving.NO and not self._connected):
            self._leave_alone()

    def _leave(self, how: Leaving, now: float) -> None:
        if self._leaving is Leaving.INTERRUPT or how is self._leaving:
            return
        self._leaving = how
        if self._connected:
            self._tell(now)
        if how is Leaving.INTERRUPT and not self.clear:
            self._stop(None)
        if not self._connected:
            self._leave_alone()

    def _leave_alone(self) -> None:
        """There is no coordinator to wait for: stop what runs, and go."""
        if not self.clear:
            self._stop(None)
        elif not self._exited:
            self._exited = True
            reason = "interrupted" if self._leaving is Leaving.INTERRUPT else "drained"
            self._out.append(Exit(self._over or Over(False, reason, left=True)))

    def _finish(self, over: Over) -> None:
        if self._over is None:
            self._over = over
            self._leave_alone()

    def _tick(self, now: float) -> None:
        if self._is_leased() and now >= self._lease_end:
            self._cut_off(now)
        if self._connected and self.clear and now >= self._patience():
            # Only with no worker alive: to the coordinator, a connection that closes is a node that has ended.
            self._out.append(Hangup())
        elif self._beat_at is not None and now >= self._beat_at:
            self._tell(now)

    def _is_leased(self) -> bool:
        """Whether workers live that must end with the lease: also those that stop, whose grace may be longer."""
        return not self.clear and not self._killed and self._over is None

    def _cut_off(self, now: float) -> None:
        """The others may be about to go on without this node: no worker may live on."""
        self._floor = max(self._floor, self.generation)
        if not self._stopping:
            self.state = State.CUT_OFF
            self._tell(now)
        self._stop(0.0)

    def _patience(self) -> float:
        lease = self._welcome.lease if self._welcome is not None else FIRST_PATIENCE
        return self._heard_at + lease / LEASE_SHARE

    def _stop(self, grace: float | None) -> None:
        self._stopping = True
        self._killed = self._killed or grace == 0.0
        self._out.append(StopWorkers(self.generation, grace))

    def _grace(self) -> float:
        return self._welcome.restart_grace if self._welcome is not None else 0.0

    def _tell(self, now: float, *, first: bool = False) -> None:
        if not self._connected:
            return
        self._seq += 1
        self._sent_at[self._seq] = now
        if self._welcome is not None:
            self._beat_at = now + self._welcome.heartbeat
            oldest = now - self._welcome.lease
            for seq in [s for s, at in self._sent_at.items() if at < oldest]:
                del self._sent_at[seq]  # its Ack would renew nothing
        failures = tuple(self._failures)
        report = Report(
            seq=self._seq,
            floor=self._floor,
            generation=self.generation,
            state=self.state,
            clear=self.clear,
            store_port=self.store_port,
            leaving=self._leaving,
            failures=failures,
        )
        self._out.append(Tell(report, first))
