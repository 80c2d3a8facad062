"""The agent's one connection to the coordinator: made, kept, and made again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from outlast.launch import Endpoint
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.messages import FromCoordinator, ToAnybody, ToCoordinator
from outlast.protocol.observers import Portion
from outlast.protocol.succession import Standing, Term
from outlast.system.ports import holder_of
from outlast.transport.token import records
from outlast.transport.wire import NotOutlast, Wire, WireError, WrongToken

FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0  # between two tries
HANDSHAKE_TIMEOUT = 5.0
TIME_TO_SPEAK = 1.0  # seconds, for who listens on this machine, before it is looked who that is
OTHERS = 0.05  # seconds for other coordinators to answer as well, once one may act
TO_CLOSE = 1.0  # seconds, for what was sent to be on its way
SHORT_PATIENCE = 5.0  # with what waiting will hardly mend

log = logging.getLogger("agent")
_decoder = msgspec.msgpack.Decoder(ToAnybody)
_encoder = msgspec.msgpack.Encoder()


class CoordinatorUnreachable(Exception):
    """No coordinator could be reached; the message says where, why, and what to do."""


class PortTaken(OSError):
    """A program on this machine that is none of Outlast's listens there, and says nothing."""


class Silence(TimeoutError):
    """Somebody listens and says nothing: perhaps a coordinator that is just being started, or has hardly any CPU."""


class NoToken(Exception):
    """This user has no token for the coordinator."""

    here = False  # whether what listens there is on this machine


class OtherJob(Exception):
    """The coordinator is another job's."""


FAILED = (OSError, NoToken, WireError, asyncio.TimeoutError, *UNREADABLE)  # to connect
# Somebody is there, and will not become ours.
NOT_OURS = (WrongToken, NotOutlast, NoToken, OtherJob, PortTaken, *UNREADABLE)


class Connection(asyncio.Protocol):
    """One connection to a coordinator, from the first byte to the last."""

    def __init__(self, token: str, receive: Callable[[Connection, ToAnybody], None]) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[Exception | None] = loop.create_future()
        self.address = ""
        self.endpoint: Endpoint | None = None
        self.standing = Standing(Term(), False)
        self._token = token
        self._receive = receive
        self._wire = Wire(token, agent=True)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = transport.get_extra_info("sockname")[0]
        secure = transport.get_extra_info("ssl_object")
        if secure is not None:
            certificate = secure.getpeercert(binary_form=True)
            self._wire = Wire(self._token, agent=True, binding=sha256(certificate).digest())
        transport.write(self._wire.hello)

    def data_received(self, data: bytes) -> None:
        try:
            payloads = self._wire.feed(data)
            reply = self._wire.take()
            if reply and self._transport is not None:
                self._transport.write(reply)
            for payload in payloads:
                message = _decoder.decode(payload)
                if self.ready.done():
                    self._receive(self, message)
                elif isinstance(message, Standing):
                    self.standing = message
                    self.ready.set_result(None)
        except (WireError, *UNREADABLE) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        else:
            log.error("the coordinator sent what cannot be read: %s", error)
        self.abort()

    def send(self, message: ToCoordinator) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._wire.pack(_encoder.encode(message)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def end(self) -> None:
        """Close it, once what was sent is on its way."""
        self.close()
        _, waiting = await asyncio.wait({self.closed}, timeout=TO_CLOSE)
        if waiting and self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """Break the connection off. A reset, not an end: that would tell the coordinator that no worker lives here."""
        if self._transport is not None and not self._transport.is_closing():
            reset_on_close = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("the connection was closed"))
        if not self.closed.done():
            self.closed.set_result(error)


class LinkOwner(Protocol):
    """Who has a link: knows where to look for a coordinator, which one to take, and hears what it says."""

    def places(self) -> Sequence[Endpoint]:
        """Everywhere a coordinator may be."""

    def token(self) -> str | None:
        """The job's; None where this user has none (yet)."""

    def is_ours(self, standing: Standing) -> bool:
        """Whether this coordinator may be this job's."""

    def choose(self, standings: Sequence[Standing]) -> int | None:
        """Which of these coordinators to join."""

    def obeyed(self) -> float:
        """When one last answered in a way that counts."""

    def connected(self, standing: Standing) -> None: ...

    def received(self, message: FromCoordinator) -> None: ...

    def disconnected(self) -> None: ...


class Link:
    """Keeps a connection to the coordinator, wherever it is, and tells its owner when one is made and lost.

    `address` is this node's own address as the coordinator's network has it.
    """

    def __init__(self, owner: LinkOwner, *, tls: ssl.SSLContext | None, patience: float) -> None:
        self.address = ""
        self._owner = owner
        self._tls = tls
        self._patience = patience
        self._met = False  # whether this node has ever been connected to its coordinator
        self._connection: Connection | None = None

    async def run(self) -> None:
        """Connect, and reconnect, until nobody could be reached for too long: raises `CoordinatorUnreachable`.

        When it is cancelled, the connection ends once what was sent is on its way.
        """
        loop = asyncio.get_running_loop()
        last, wait = loop.time(), FIRST_WAIT
        told = silent = False
        while True:
            if loop.time() - last >= self._patience and silent:
                raise CoordinatorUnreachable(
                    f"no coordinator that may act was found within {self._patience:g} s: "
                    "it needs more than half of the nodes of the last generation"
                )
            places, tried = self._owner.places(), self._owner.token()
            reached, failed = await knock(places, tried, self._tls, self._receive, limit=max(1.0, 4 * wait))
            self._turn_away_others(reached, failed)
            connection = self._pick(reached)
            if connection is None:
                told = self._despair(reached, failed, tried, loop.time() - last, told)
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            wait, told, self._met = FIRST_WAIT, False, True
            before = self._owner.obeyed()
            await self._stay(connection)
            silent = self._owner.obeyed() == before
            if silent:
                await asyncio.sleep(FIRST_WAIT * random.uniform(0.5, 1.0))  # one that turns us away is not stormed
            else:
                last = loop.time()

    async def _stay(self, connection: Connection) -> None:
        """Until the connection ends. When this is cancelled, it ends the connection itself."""
        self._connection, self.address = connection, connection.address
        try:
            self._owner.connected(connection.standing)
            await asyncio.wait({connection.closed})
        finally:
            self._connection = None
            if not connection.closed.done():
                await connection.end()
        log.debug("the connection to the coordinator ended: %s", connection.closed.result() or "closed")
        self._owner.disconnected()

    def _turn_away_others(self, reached: list[Connection], failed: dict[Endpoint, Exception]) -> None:
        for connection in [each for each in reached if not self._owner.is_ours(each.standing)]:
            reached.remove(connection)
            connection.close()
            assert connection.endpoint is not None
            failed[connection.endpoint] = OtherJob(f"it serves job {connection.standing.job!r}")

    def _pick(self, reached: Sequence[Connection]) -> Connection | None:
        index = self._owner.choose([connection.standing for connection in reached])
        for other, connection in enumerate(reached):
            if other != index:
                connection.close()
        return reached[index] if index is not None else None

    def _despair(
        self,
        reached: Sequence[Connection],
        failed: Mapping[Endpoint, Exception],
        tried: str | None,
        since: float,
        told: bool,
    ) -> bool:
        """Raise `CoordinatorUnreachable` if no place is left; else say once that we wait, and return that."""
        if reached or not failed:
            return told
        # Where another job or program answers is one place less. Only when no other is left, it is the reason; and a
        # node that is part of a job waits all the same: another node may host its coordinator elsewhere.
        left = {place: error for place, error in failed.items() if not isinstance(error, NOT_OURS)}
        # Of several, the one that says most: somebody answers there.
        place, error = max((left or failed).items(), key=lambda item: isinstance(item[1], WireError))
        settled = not left and not self._met
        if settled and isinstance(error, WrongToken):
            if self._owner.token() != tried:
                return told  # the file was left there by an earlier job, and has been replaced meanwhile
            raise CoordinatorUnreachable(why_not(error, place, self._patience, self._tls)) from error
        if settled and isinstance(error, NoToken) and error.here and since >= TIME_TO_SPEAK:
            error = stranger(place.port) or error
        if settled and isinstance(error, PortTaken):
            raise CoordinatorUnreachable(str(error)) from error
        if since >= (min(self._patience, SHORT_PATIENCE) if settled else self._patience):
            where = ", ".join(str(place) for place in failed)
            raise CoordinatorUnreachable(why_not(error, place, self._patience, self._tls, where)) from error
        if not told and since > 1.0:
            log.info("waiting for the coordinator at %s (%s)", place, _brief(error))
            return True
        return told

    def _receive(self, connection: Connection, message: ToAnybody) -> None:
        if self._connection is connection and not isinstance(message, Portion):
            self._owner.received(message)

    def send(self, message: ToCoordinator) -> None:
        if self._connection is not None:
            self._connection.send(message)

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the coordinator is that this node is connected to."""
        return self._connection.endpoint if self._connection is not None else None

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.abort()


async def knock(
    places: Sequence[Endpoint],
    token: str | None,
    tls: ssl.SSLContext | None,
    receive: Callable[[Connection, ToAnybody], None],
    *,
    limit: float,
) -> tuple[list[Connection], dict[Endpoint, Exception]]:
    """The coordinators that answer, of all these places at once, and why the others do not.

    With several it waits no longer than `limit`, and hardly longer than until one says that it may act: a host that is
    gone does not even refuse.
    """
    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(connect(place, token, tls, receive)): place for place in places}
    end = loop.time() + (limit if len(places) > 1 else 2 * HANDSHAKE_TIMEOUT)
    reached: list[Connection] = []
    failed: dict[Endpoint, Exception] = {}
    waiting = set(tasks)
    try:
        while waiting and loop.time() < end:
            done, waiting = await asyncio.wait(waiting, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    reached.append(task.result())
                elif isinstance(error, FAILED):
                    failed[tasks[task]] = error
                else:
                    raise error
            if any(connection.standing.acting for connection in reached):
                end = min(end, loop.time() + OTHERS)
    except BaseException:
        await _cancel(waiting)
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                task.result().close()
        raise
    await _cancel(waiting)
    for task in waiting:
        if task.cancelled() or task.exception() is not None:
            failed[tasks[task]] = TimeoutError(errno.ETIMEDOUT, "no answer")
        else:
            reached.append(task.result())  # it has answered at the very last moment
    return reached, failed


async def _cancel(tasks: Iterable[asyncio.Task[Connection]]) -> None:
    """Cancel them, and wait: again and again, for `wait_for` of Python 3.10 and 3.11 may swallow a cancellation."""
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=FIRST_WAIT)


async def connect(
    endpoint: Endpoint,
    token: str | None,
    tls: ssl.SSLContext | None,
    receive: Callable[[Connection, ToAnybody], None],
) -> Connection:
    """A connection on which both ends have proved that they know the token, and the coordinator has said who it is."""
    loop = asyncio.get_running_loop()
    if token is None:
        # Whether somebody is there at all makes the difference between "too early" and "somebody else's".
        dialled = await asyncio.wait_for(_dial(endpoint), HANDSHAKE_TIMEOUT)
        no_token = NoToken("this user has no token for it")
        no_token.here = _is_local(dialled)
        dialled.close()
        raise no_token
    name = endpoint.host if tls is not None else None
    dialled = await asyncio.wait_for(_dial(endpoint), HANDSHAKE_TIMEOUT)
    here = _is_local(dialled)
    try:
        opening = loop.create_connection(
            lambda: Connection(token, receive), sock=dialled, ssl=tls, server_hostname=name
        )
        _, connection = await asyncio.wait_for(opening, HANDSHAKE_TIMEOUT)
        connection.endpoint = endpoint
    except BaseException:
        dialled.close()
        raise
    try:
        if here:
            await asyncio.wait({connection.ready}, timeout=TIME_TO_SPEAK)
            if not connection.ready.done() and (taken := stranger(endpoint.port)) is not None:
                raise taken
        await asyncio.wait_for(asyncio.shield(connection.ready), HANDSHAKE_TIMEOUT)
    except PortTaken:
        connection.ready.cancel()
        connection.abort()
        raise
    except asyncio.TimeoutError:
        connection.ready.cancel()  # nobody asks any more
        connection.abort()
        raise Silence(errno.ETIMEDOUT, "what listens there says nothing") from None
    except asyncio.CancelledError:
        connection.ready.cancel()
        connection.abort()
        raise
    return connection


def _is_local(dialled: socket.socket) -> bool:
    """Whether the other end is on this machine."""
    return bool(dialled.getsockname()[0] == dialled.getpeername()[0])


def stranger(port: int) -> PortTaken | None:
    """The program on this machine that listens there, if it is no agent or coordinator of this user's."""
    holder = holder_of(port)
    if holder is None or holder.pid == os.getpid() or re.search(r"\boutlast[. ]", holder.command):
        return None
    if any(each.endpoint.port == port for each in records()):
        return None
    return PortTaken(f"port {port} is held by {holder}, which is not an Outlast coordinator: choose another port")


async def _dial(endpoint: Endpoint) -> socket.socket:
    """A plain connection. Raises OSError.

    On a machine where nobody listens, the kernel may give a connection the very port that it goes to. It is then
    connected with itself: nobody is there, and what it hears is its own words.
    """
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM
    ):
        dialled = socket.socket(family, kind, protocol)
        try:
            dialled.setblocking(False)
            await loop.sock_connect(dialled, address)
            if dialled.getsockname() == dialled.getpeername():
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError as error:
            dialled.close()
            failed = failed or error
        except BaseException:
            dialled.close()
            raise
        else:
            return dialled
    raise failed or OSError(errno.EADDRNOTAVAIL, f"{endpoint.host} has no address")


def why_not(
    error: Exception, where: Endpoint, patience: float, tls: ssl.SSLContext | None, everywhere: str = ""
) -> str:
    """What to tell the user about a coordinator that cannot be reached."""
    if isinstance(error, NoToken):
        return (
            f"port {where.port} is taken, and not by a job of yours that made its own token: "
            "set OUTLAST_TOKEN as on its other nodes, or choose another port"
        )
    if isinstance(error, WrongToken):
        return f"the coordinator at {where} has another token: set the same OUTLAST_TOKEN on every node"
    if isinstance(error, OtherJob):
        return f"no coordinator of this job was found for {patience:g} s: what answers at {where} is another job's"
    if isinstance(error, UNREADABLE):
        return f"the coordinator at {where} speaks another version: install the same Outlast on every node"
    if isinstance(error, NotOutlast):
        return f"something that is not an Outlast coordinator answers at {where}: choose another port"
    if isinstance(error, Silence):
        return (
            f"what listens at {where} says nothing for {patience:g} s: if that is this job's coordinator, "
            "see what keeps its machine busy; if not, choose another port"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"cannot verify the coordinator's certificate at {where} ({error.verify_message}): see --ft-tls-ca"
    if tls is not None and isinstance(error, (ssl.SSLError, ConnectionResetError)):
        return f"no TLS with the coordinator at {where}: start every node of the job with --tls, or none"
    if isinstance(error, ConnectionResetError):
        return (
            f"what listens at {where} closes the connection: if that is this job's coordinator, "
            "start every node with --tls or none; if not, choose another port"
        )
    return (
        f"no coordinator answers at {everywhere or where} after {patience:g} s ({_brief(error)}): "
        "check --rdzv-endpoint, and that the node that it names has been started"
    )


def _brief(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # The event loop puts the address in place of what the number means; names that do not resolve have no number.
        return (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror).lower()
    return str(error) or "no answer"
