"""This node towards its coordinator: joins it, talks to it, and hosts one when it is this node's turn."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address

from outlast.agent.coordinator_link.link import Link
from outlast.agent.coordinator_link.location import CoordinatorLocation
from outlast.agent.driver import NodeDriver
from outlast.agent.observers.doors import Doors
from outlast.agent.processes.place import Place
from outlast.agent.snapshots.keeper import Keeper
from outlast.core.node.commands import ForCoordinator, Host, Mandate, Retire, Show, Tell
from outlast.core.node.inputs import Connected, Disconnected, NotHosted, Received
from outlast.launch import Endpoint, Launch
from outlast.platforms.infrastructure import infra_rank
from outlast.protocol.chaos import ChaosOrder
from outlast.protocol.fields import sendable_path
from outlast.protocol.logs import LogQuestion
from outlast.protocol.membership import Join, Over, Report, Welcome
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.observers import EventCopies
from outlast.protocol.succession import Standing
from outlast.settings.settings import Settings
from outlast.system.clock import now

log = logging.getLogger("agent")


class CoordinatorClient:
    """The owner of one node's link. `joined` is called once, when a coordinator has first taken this node in.

    `asked` answers questions about logs; `hurt` does what `outlast chaos` asks for.
    """

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        place: Place,
        driver: NodeDriver,
        keeper: Keeper,
        *,
        joined: Callable[[], None],
        doors: Callable[[], Doors],
        asked: Callable[[LogQuestion], None],
        hurt: Callable[[ChaosOrder], None],
    ) -> None:
        self._launch = launch
        self._place = place
        self._driver = driver
        self._keeper = keeper
        self._joined = joined
        self._doors = doors
        self._asked = asked
        self._queued = max(0.0, time.time() - settings.submitted) if settings.submitted else 0.0
        self._hurt = hurt
        self._infra_rank = launch.node_rank if launch.node_rank is not None else infra_rank(os.environ)
        self._welcomed = False
        self._hung_up_since = float("nan")
        allegiance = driver.node.allegiance
        self.seat = CoordinatorLocation(
            launch, settings, me=allegiance.me, mandate=allegiance.mandate, failed=self._not_hosted
        )
        self.link = Link(self, tls=self.seat.tls, patience=settings.connect_timeout)

    # -- what the link asks and tells

    def places(self) -> Sequence[Endpoint]:
        return self.seat.places(self._driver.node.allegiance.successors)

    def present_places(self) -> list[Endpoint]:
        """Where the coordinator is or may be, the present one first."""
        return list(dict.fromkeys([*filter(None, [self.link.endpoint]), *self.places()]))

    def token(self) -> str | None:
        return self.seat.token()

    def is_ours(self, standing: Standing) -> bool:
        return self._driver.node.allegiance.is_ours(standing)

    def choose(self, standings: Sequence[Standing]) -> int | None:
        return self._driver.node.allegiance.choose(standings, now())

    def obeyed(self) -> float:
        return self._driver.node.allegiance.obeyed

    def connected(self, standing: Standing) -> None:
        self._doors().connected(self.link.address, self.link.endpoint)
        held = self._keeper.held() if self._driver.node.current.clear else None
        self._driver.feed(Connected(standing, held))

    def received(self, message: FromCoordinator) -> None:
        if isinstance(message, EventCopies):
            self.seat.keep_events(message)
            return
        if isinstance(message, LogQuestion):
            self._asked(message)
            return
        if isinstance(message, ChaosOrder):
            self._hurt(message)
            return
        if isinstance(message, Welcome) and not self._welcomed:
            self._welcomed = True
            self.seat.keep_token()
            # A spare may wait in silence for days; one alone has no such news.
            level = logging.INFO if self._launch.max_nodes > 1 else logging.DEBUG
            log.log(level, "joined the job as node %s", self._place.name)
            self._joined()
        self._driver.feed(Received(message))

    def disconnected(self) -> None:
        self._doors().disconnected()
        self._driver.feed(Disconnected())

    # -- what the node decides

    def carry_out(self, command: ForCoordinator) -> None:
        if isinstance(command, Tell):
            self.link.send(self._joining(command.report) if command.first else command.report)
        elif isinstance(command, Show):
            self.link.send(command.seen)
        elif isinstance(command, Host):
            self._host(command.mandate)
        elif isinstance(command, Retire):
            self.seat.retire()
        else:
            # Once is news; a coordinator that goes on to say nothing is not.
            level = logging.DEBUG if self._hung_up_since == self.obeyed() else logging.WARNING
            self._hung_up_since = self.obeyed()
            log.log(level, "nothing heard from the coordinator: trying to reach it again")
            self.link.hang_up()

    def address(self) -> str:
        """Where other nodes reach this one: as the network has it, or by the name that they reach it with already."""
        if self._launch.local_addr:
            return self._launch.local_addr
        address, endpoint = self.link.address, self._launch.endpoint
        own = ip_address(address.partition("%")[0]).is_loopback and not endpoint.loopback
        return endpoint.host if own else address

    def attend_hosting(self) -> None:
        """Hear of the end of the coordinator that is hosted here, if one is."""
        if self.seat.hosting.ended is not None:
            self.seat.hosting.ended.add_done_callback(self._coordinator_ended)

    def _joining(self, report: Report) -> Join:
        launch, node = self._launch, self._driver.node
        return Join(
            node=node.allegiance.me,
            name=self._place.name,
            nproc=launch.nproc,
            role=launch.role,
            addr=self.address(),
            job=launch.job,
            entrypoint=sendable_path(launch.entrypoint),
            nnodes=(launch.min_nodes, launch.max_nodes),
            report=report,
            infra_rank=self._infra_rank,
            connection=node.state.conversation.connection,
            key=self._place.key,
            port=launch.endpoint.port,  # 0, where nobody else can come: then nobody takes over
            term=node.allegiance.term,
            charter=node.allegiance.charter,
            assignment=node.current.assignment,
            since=self._place.since,
            keeper=self._keeper.port,
            hands=node.hands,
            queued=self._queued,
        )

    def _host(self, mandate: Mandate) -> None:
        if self.seat.take(mandate):
            self.attend_hosting()
        else:
            asyncio.get_running_loop().call_soon(self._driver.feed, NotHosted())

    def _not_hosted(self, why: str) -> None:
        if not self._launch.endpoint.port:
            self._driver.end(Over(False, why))
        else:
            log.error("%s; another node may host it", why)
            self._driver.feed(NotHosted())

    def _coordinator_ended(self, _: object) -> None:
        if self._driver.node.allegiance.hosting:
            self._driver.end(Over(False, "the coordinator, a process of this node, ended: its last words are above"))
