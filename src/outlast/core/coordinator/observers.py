"""Observers: how many there may be, what each is told, and when one is dropped. Reading slows nobody down.

They pull: each request has one answer, events wait in one history for all, and a view is made at most once a second,
or less often in a large job. So a stuck observer costs a connection and nothing else, until it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import msgspec
from msgspec.structs import replace

from outlast.core.coordinator.commands import Break, Close, Connection, Write
from outlast.core.coordinator.history import History
from outlast.core.coordinator.log_relay import LogRelay
from outlast.protocol.logs import AskLogs, LogAnswer, LogsTold
from outlast.protocol.membership import Refuse
from outlast.protocol.observers import AnswerKind, Detail, EventBatch, FollowEvents, FromObserver, ReadView, portions
from outlast.protocol.views import JobView

MOST = 64
BEAT = 10.0  # seconds after which a request for events is answered with none: both ends see that the other lives
IDLE = 30.0  # seconds without a request after which an observer is dropped
GATHERED = 0.05  # seconds for which events are gathered: they are in the journal by then, and come in fewer messages
FRESH = 1.0  # seconds for which a view serves everybody,
BYTES = 500_000  # and one more for so many bytes: at ten thousand nodes, making one takes a fifth of a second
MOST_UNREAD = 4 << 20  # bytes of answers that wait to be read while more is asked for

TOO_MANY = f"the job has {MOST} observers already: end one of them, or try again later"

Delivery = Write[Connection] | Close[Connection] | Break[Connection]


class _Observer(msgspec.Struct):
    heard: float
    waiting: FollowEvents | None = None


class Observers(Generic[Connection]):
    """Those of one coordinator. `view`: makes a view of the job. `blank`: an answer without events.

    `node`: the connection of a node, if it is here. `over`: whether the job is.
    """

    def __init__(
        self,
        history: History,
        view: Callable[[Detail, float], JobView],
        blank: Callable[[float], EventBatch],
        node: Callable[[str], Connection | None],
        over: Callable[[], bool],
    ) -> None:
        self._history = history
        self._view = view
        self._blank = blank
        self._logs: LogRelay[Connection] = LogRelay(node, self._tell_logs, over)
        self._all: dict[Connection, _Observer] = {}
        self._views: dict[Detail, tuple[float, bytes]] = {}
        self._news_at: float | None = None  # when events that were gathered are told
        self._due: float | None = None
        self._out: list[Delivery[Connection]] = []

    def __contains__(self, connection: object) -> bool:
        return connection in self._all

    def __len__(self) -> int:
        return len(self._all)

    def deadline(self) -> float | None:
        """When `tick` is due, if nothing else happens before."""
        return self._due

    def heard(
        self, connection: Connection, request: FromObserver, now: float, *, unread: int
    ) -> list[Delivery[Connection]]:
        """An observer asks. `unread`: bytes that were sent to it, and that it has not taken yet."""
        self._out = []
        if connection not in self._all and len(self._all) >= MOST:
            return [Write(connection, Refuse(TOO_MANY)), Close(connection)]
        observer = self._all.setdefault(connection, _Observer(now))
        observer.heard = now
        if unread > MOST_UNREAD:
            self._drop(connection, "an observer asks for more than it reads")
        elif isinstance(request, ReadView):
            self._answer(connection, AnswerKind.VIEW, self._encoded_view(request.detail, now))
        elif isinstance(request, AskLogs):
            self._out += self._logs.ask(connection, request, now)
        else:
            observer.waiting = request
            blank = self._blank(now)
            if not request.wait or self._history.last > request.after or request.run not in ("", blank.run):
                self._tell(connection, observer, blank)
        self._reckon()
        return self._out

    def news(self, now: float, *, at_once: bool) -> None:
        """Events were added to the history. `at_once`: nothing more will come."""
        if self._all and (self._news_at is None or at_once):
            self._news_at = now if at_once else now + GATHERED
            self._reckon()

    def tick(self, now: float) -> list[Delivery[Connection]]:
        """Time has passed: tell what was gathered, and drop who is silent."""
        if self._due is None or now < self._due:
            return []
        self._out = []
        self._logs.tick(now)
        news = self._news_at is not None and now >= self._news_at
        if news:
            self._news_at = None
        blank = self._blank(now)
        for connection, observer in list(self._all.items()):
            if observer.waiting is None:
                if now >= observer.heard + IDLE:
                    self._drop(connection, f"an observer asked nothing for {IDLE:g} s")
            elif (news and self._history.last > observer.waiting.after) or now >= observer.heard + BEAT:
                self._tell(connection, observer, blank)
                observer.heard = now
        self._reckon()
        return self._out

    def ended(self, connection: Connection) -> None:
        """Its connection is gone."""
        if self._all.pop(connection, None) is not None:
            self._logs.ended(connection)
            self._reckon()

    def log_answered(self, node: str, answer: LogAnswer, now: float) -> list[Delivery[Connection]]:
        """A node has answered a question about its logs."""
        self._out = []
        self._logs.answered(node, answer, now)
        self._reckon()
        return self._out

    def node_lost(self, node: str) -> list[Delivery[Connection]]:
        """A node is gone, and will answer nothing."""
        self._out = []
        self._logs.lost(node)
        self._reckon()
        return self._out

    def _tell_logs(self, connection: Connection, told: LogsTold) -> None:
        self._answer(connection, AnswerKind.LOGS, msgspec.msgpack.encode(told))

    def _tell(self, connection: Connection, observer: _Observer, blank: EventBatch) -> None:
        request, observer.waiting = observer.waiting, None
        assert request is not None
        other = request.run not in ("", blank.run)
        after = 0 if other else request.after
        batch = replace(blank, events=self._history.after(after), gap=other or self._history.misses(after))
        self._answer(connection, AnswerKind.EVENTS, msgspec.msgpack.encode(batch))

    def _answer(self, connection: Connection, kind: AnswerKind, data: bytes) -> None:
        self._out += [Write(connection, portion) for portion in portions(kind, data)]

    def _drop(self, connection: Connection, why: str) -> None:
        del self._all[connection]
        self._logs.ended(connection)
        self._out.append(Break(connection, why))

    def _encoded_view(self, detail: Detail, now: float) -> bytes:
        made, data = self._views.get(detail, (now - FRESH, b""))
        if now - made >= FRESH + len(data) // BYTES:
            data = msgspec.msgpack.encode(self._view(detail, now))
            self._views[detail] = (now, data)
        return data

    def _reckon(self) -> None:
        times = [each.heard + (IDLE if each.waiting is None else BEAT) for each in self._all.values()]
        if self._news_at is not None and self._all:
            times.append(self._news_at)
        if (logs := self._logs.deadline()) is not None:
            times.append(logs)
        self._due = min(times, default=None)
