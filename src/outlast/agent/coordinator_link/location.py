"""The coordinator's seat: where it is or may be, and whether this node hosts it."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from outlast.agent.coordinator_link.ask import ask
from outlast.agent.coordinator_link.hosting import Hosting, listen
from outlast.agent.coordinator_link.link import CoordinatorUnreachable, knock
from outlast.agent.coordinator_link.tls import client_tls, server_tls
from outlast.core.coordinator.history import History
from outlast.core.node.commands import Mandate
from outlast.journal import recall
from outlast.launch import Endpoint, Launch
from outlast.protocol.chaos import right_digest
from outlast.protocol.fields import sendable_path
from outlast.protocol.observers import EventCopies
from outlast.protocol.requests import Ask
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Successor
from outlast.settings.settings import Settings
from outlast.transport import token as tokens
from outlast.transport.commission import Commission
from outlast.transport.token import Record
from outlast.transport.wire import READ_ONLY_TOKEN, chaos_token

log = logging.getLogger("agent")

LOOK_AROUND = 1.0  # seconds, for a coordinator elsewhere, before a node that has the endpoint hosts one


class CoordinatorLocation:
    """What one node does about the coordinator of its job."""

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        *,
        me: str,
        mandate: Callable[[], Mandate],
        failed: Callable[[str], None],
    ) -> None:
        self.tls = client_tls(settings)
        self.hosting = Hosting(mandate=mandate, failed=failed)
        self.endpoint = launch.endpoint
        self._launch = launch
        self._settings = settings
        self._me = me
        self._mandate = mandate
        self._events = History()
        self._secret: str | None = settings.token or None if settings.auth else ""

    def places(self, successors: Sequence[Successor]) -> list[Endpoint]:
        """Everywhere the coordinator may be, as far as this node knows."""
        known = [self.endpoint, *self._launch.others, *(Endpoint(s.addr, s.port) for s in successors)]
        return list(dict.fromkeys(known))

    def token(self) -> str | None:
        """The job's token; None where this user has none (yet)."""
        return self._secret if self._secret is not None else tokens.find(self.endpoint.port)

    def keep_token(self) -> None:
        """It is proved to be this job's. The file that it may be from is another job's when that uses the port next."""
        self._secret = self.token()

    def keep_events(self, copies: EventCopies) -> None:
        """Copies of the newest events, for the coordinator that this node may come to host."""
        for numbered in copies.events:
            self._events.put(numbered)

    async def open(self) -> None:
        """Host the job's coordinator, if the endpoint is this node's and none is elsewhere.

        Raises ValueError or OSError, with one line that says what to change.
        """
        endpoint = self._launch.endpoint
        if self._secret is None and not endpoint.loopback:
            raise tokens.required(endpoint)
        if (self._secret or "").startswith(READ_ONLY_TOKEN):
            raise ValueError("OUTLAST_TOKEN is one that may only observe: set the job's own, from which it was made")
        if self._launch.host is False or await self._is_elsewhere():
            return
        listener = listen(endpoint, self._launch.host)
        if listener is None:
            return
        try:
            if self._secret is None:
                self._secret = tokens.make()
            self.endpoint = Endpoint(endpoint.host, listener.getsockname()[1])
            self._begin(listener, self._rules(), self._mandate(), secrets.token_hex(8))
        except BaseException:
            listener.close()
            raise
        level = logging.INFO if self._launch.max_nodes > 1 else logging.DEBUG
        log.log(level, "hosting the coordinator at %s", self.endpoint)
        if self._settings.allow_chaos:
            log.warning("this job may be hurt on purpose: outlast chaos --chaos-token=%s", chaos_token(self._secret))

    def take(self, mandate: Mandate) -> bool:
        """Host the coordinator from now on, because the one before cannot be reached; False where it cannot be."""
        charter = mandate.charter
        assert charter is not None
        mine = [s for s in charter.turns if s.node == self._me]
        place = Endpoint(mine[0].addr, mine[0].port)
        assert self._secret is not None
        listener = None
        try:
            listener = listen(place, True)
            if listener is None:
                return False
            log.warning("no coordinator can be reached: hosting one at %s, term %d", place, mandate.term.number)
            self._begin(listener, charter.rules, mandate, charter.run)
        except (ValueError, OSError) as error:
            log.warning("this node cannot host the coordinator: %s", error)
            if listener is not None:
                listener.close()
            self.hosting.kill()  # and what was left for it
            return False
        return True

    async def hand_over(self) -> bool:
        """Ask the coordinator of this node to leave the job to the other nodes; whether it does so."""
        question = Ask("resign", "its own node", job=self._launch.job)
        try:
            answer = await ask(self.hosting.endpoint, self.token(), self.tls, question)
        except CoordinatorUnreachable as error:  # it may be being started again
            log.debug("%s", error)
            return False
        log.debug("%s", answer.text)
        return answer.done

    def retire(self) -> None:
        """Another coordinator leads the job."""
        if self.hosting.active:
            log.info("the coordinator of this node retires: another one leads the job")
        self.hosting.kill()

    async def _is_elsewhere(self) -> bool:
        """Whether a coordinator of this job lives where others may host it: then this node comes back to it."""
        token = self.token()
        others = [p for p in self._remembered() + list(self._launch.others) if p != self._launch.endpoint]
        if not others or token is None:
            return False
        reached, _ = await knock(others, token, self.tls, lambda *_: None, limit=LOOK_AROUND)
        for connection in reached:
            connection.close()
        return bool(reached)

    def _remembered(self) -> list[Endpoint]:
        path = self._journal(self._launch.endpoint.port)
        if not self._launch.endpoint.port or not path.exists():
            return []
        memory, _ = recall(path)
        if memory is None or memory.outcome is not None:
            return []
        return list(dict.fromkeys(Endpoint(s.addr, s.port) for s in (*memory.successors, *memory.before)))

    def _journal(self, port: int) -> Path:
        return Path(self._settings.journal) if self._settings.journal else tokens.journal_of(port)

    def _begin(self, listener: socket.socket, rules: Rules, mandate: Mandate, run: str) -> None:
        settings, launch = self._settings, self._launch
        tls = server_tls(settings)  # before anything is left behind: it may be refused
        endpoint = Endpoint(self.endpoint.host, listener.getsockname()[1])
        secret = self._secret or ""
        alone = launch.endpoint.port == 0
        needed = settings.auth and not settings.token and not alone  # by other agents, to join
        try:
            record = str(tokens.leave(Record(launch.job, endpoint, "" if settings.token else secret)))
        except OSError as error:
            if needed:
                raise
            log.debug("no record of this job for 'outlast restart': %s", error)
            record = ""
        commission = Commission(
            rules=rules,
            token=secret,
            listener=listener.fileno(),
            shutdown_timeout=launch.shutdown_timeout,
            term=mandate.term,
            run=run,
            charter=mandate.charter,
            tls=tls,
            record=record,
            log_level=settings.log_level,
            journal=str(self._journal(endpoint.port)),
            keep=bool(settings.journal),
            events=settings.events,
            history=self._events.all(),
            webhook=settings.webhook,
        )
        self.hosting.begin(commission, listener)

    def _rules(self) -> Rules:
        launch = self._launch
        return Rules.of(
            self._settings,
            job=launch.job,
            entrypoint=sendable_path(launch.entrypoint),
            nodes=(launch.min_nodes, launch.max_nodes),
            max_restarts=launch.max_restarts,
            alone=launch.endpoint.port == 0,  # nobody else knows the port of a job that chose its own
            check_only=launch.check_only,
            chaos=right_digest(chaos_token(self._secret or "")) if self._settings.allow_chaos else "",
        )
