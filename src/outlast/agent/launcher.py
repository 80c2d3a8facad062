"""From what the user asked for to an agent at work: the token, the coordinator if it is ours to host, the end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from outlast import token as tokens
from outlast.agent import hosting
from outlast.agent.agent import Agent
from outlast.agent.hosting import HostedCoordinator
from outlast.agent.link import Link
from outlast.agent.logs import JobLogs
from outlast.agent.workers import be_subreaper
from outlast.commission import Commission, Tls
from outlast.config import Settings
from outlast.core.events import Rules
from outlast.launch import Endpoint, Launch
from outlast.messages import Over
from outlast.token import Record

log = logging.getLogger("agent")

SOON = 1.0  # seconds in which a coordinator ends when nobody but us was there
LAST_WORDS = 5.0  # seconds for a coordinator of ours to see everybody off


async def launch_node(launch: Launch, settings: Settings) -> Over:
    """Take part in the job as one node of it, and host its coordinator if the endpoint is this node's.

    Raises ValueError or OSError, before anything was started, with one line that says what to change, and
    `Unreachable` when the coordinator cannot be reached.
    """
    with ExitStack() as cleanup:
        be_subreaper()
        cleanup.callback(be_subreaper, False)
        logs = JobLogs(launch)
        outcome: list[Over] = []
        cleanup.callback(lambda: logs.close(bool(outcome and outcome[0].success)))
        tls = client_tls(settings)
        listener = hosting.listen(launch.endpoint, launch.host)
        hosted, endpoint, token = None, launch.endpoint, _joining_token(launch.endpoint, settings)
        if listener is not None:
            with listener:
                hosted, endpoint, secret = _host(listener, launch, settings, cleanup)
            token = lambda: secret  # noqa: E731
            log.log(logging.INFO if launch.max_nodes > 1 else logging.DEBUG, "hosting the coordinator at %s", endpoint)
        make_link = partial(Link, endpoint, token, tls=tls, patience=settings.connect_timeout)
        agent = Agent(launch, settings, make_link=make_link, logs=logs)
        over = await _attend(agent, hosted)
        outcome.append(over)
        return over


def _host(
    listener: socket.socket, launch: Launch, settings: Settings, cleanup: ExitStack
) -> tuple[HostedCoordinator, Endpoint, str]:
    port = listener.getsockname()[1]
    alone = launch.endpoint.port == 0
    secret = _hosting_token(launch.endpoint, settings)
    tls = _server_tls(settings)
    endpoint = Endpoint(launch.endpoint.host, port)
    needed = settings.auth and not settings.token and not alone  # by other agents, to join
    try:
        record = str(tokens.leave(Record(launch.job, endpoint, "" if settings.token else secret)))
    except OSError as error:
        if needed:
            raise
        log.debug("no record of this job for 'outlast restart': %s", error)
        record = ""
    rules = Rules(
        job=launch.job,
        entrypoint=launch.entrypoint,
        min_nodes=launch.min_nodes,
        max_nodes=launch.max_nodes,
        node_unit=settings.node_unit,
        max_restarts=launch.max_restarts,
        infra_ranks=settings.use_infra_group_rank,
        last_call=settings.last_call,
        pend_timeout=settings.pend_timeout,
        # Nobody else knows the port of a job that chose its own, so nobody else can come.
        empty_timeout=0.0 if alone else settings.empty_timeout,
        node_timeout=settings.node_timeout,
        restart_grace=settings.restart_grace,
    )
    commission = Commission(
        rules=rules,
        token=secret,
        listener=listener.fileno(),
        shutdown_timeout=launch.shutdown_timeout,
        tls=tls,
        record=record,
        log_level=settings.log_level,
    )
    hosted = HostedCoordinator.start(commission)
    if record:
        cleanup.callback(Path(record).unlink, missing_ok=True)  # should the coordinator not have been able to
    cleanup.callback(hosted.kill)
    return hosted, endpoint, secret


def _hosting_token(endpoint: Endpoint, settings: Settings) -> str:
    if not settings.auth or settings.token:
        return settings.token if settings.auth else ""
    if endpoint.loopback:
        return tokens.make()
    raise tokens.required(endpoint)


def _joining_token(endpoint: Endpoint, settings: Settings) -> Callable[[], str | None]:
    """How to come by the token of a coordinator that another agent hosts."""
    if not settings.auth or settings.token:
        fixed = settings.token if settings.auth else ""
        return lambda: fixed
    if not endpoint.loopback:
        raise tokens.required(endpoint)
    return lambda: tokens.find(endpoint.port)


def client_tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls:
        return None
    if not settings.tls_cert and find_spec("cryptography") is None:
        raise ValueError("--tls makes a certificate with the package 'cryptography': pip install 'outlast[tls]'")
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:  # ssl's own errors are among them
        raise ValueError(f"tls_ca {settings.tls_ca} cannot be used ({_reason(error)}): give CA certificates") from error
    if not settings.tls_ca:
        # No authority vouches for the certificate; the proof of the token does, for it covers the certificate.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _server_tls(settings: Settings) -> Tls | None:
    """The certificate for our coordinator, tried here: there, nobody would be left to tell the user."""
    if not settings.tls:
        return None
    if settings.tls_cert:
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            trial.load_cert_chain(settings.tls_cert, settings.tls_key, password="")  # "": never ask at the terminal
        except OSError as error:
            files = f"tls_cert {settings.tls_cert} with tls_key {settings.tls_key}"
            raise ValueError(
                f"{files} cannot be used ({_reason(error)}): give a certificate and its key, without a password"
            ) from error
    return Tls(settings.tls_cert, settings.tls_key, settings.tls_ca)


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)


async def _attend(agent: Agent, hosted: HostedCoordinator | None) -> Over:
    """Run the agent, and see our coordinator off."""
    if hosted is None:
        return await agent.run()
    loop = asyncio.get_running_loop()
    ending = loop.create_task(hosted.wait())
    ending.add_done_callback(lambda task: agent.abandon(Over(False, _unexpected(task.result()))))
    try:
        over = await agent.run()
        await asyncio.wait({ending}, timeout=SOON if over.left else LAST_WORDS)
        if over.left and not ending.done():
            log.warning("this node has left the job, but hosts its coordinator until the job ends")
            await _until_ended_or_told(ending)
        return over
    finally:
        if not ending.done():
            hosted.kill()
            await ending


def _unexpected(exit_code: int) -> str:
    if exit_code < 0:
        return f"the coordinator, a process of this node, was killed by signal {-exit_code}"
    return f"the coordinator, a process of this node, ended with {exit_code}: its last words are above"


async def _until_ended_or_told(ending: asyncio.Task[int]) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        loop.add_signal_handler(number, told.set)
    telling = loop.create_task(told.wait())
    await asyncio.wait({ending, telling}, return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
