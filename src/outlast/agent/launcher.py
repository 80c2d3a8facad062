"""From what the user asked for to an agent at work, and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import msgspec

from outlast.agent.agent import Agent
from outlast.agent.coordinator_link.location import CoordinatorLocation
from outlast.agent.output.logs import JobLogs
from outlast.agent.postmortem.extension import Extension
from outlast.agent.processes.place import hold
from outlast.agent.processes.workers import be_subreaper
from outlast.launch import Endpoint, Launch
from outlast.protocol.membership import Over
from outlast.settings.settings import Settings
from outlast.transport.token import remember_logs
from outlast.verdict import verdict_of

log = logging.getLogger("agent")

SOON = 1.0  # seconds in which a coordinator ends when nobody but us was there
VERDICT, EVENTS = "verdict.json", "events.jsonl"  # beside the logs, where those are kept
FIRST_WAIT, LONGEST_WAIT = 0.1, 0.5  # between two requests to resign
LAST_WORDS = 5.0  # seconds for a coordinator of ours to see everybody off


async def launch_node(launch: Launch, settings: Settings) -> Over:
    """Take part in the job as one node of it, and host its coordinator if the endpoint is this node's.

    Raises ValueError or OSError, before anything was started, with one line that says what to change, and
    `Unreachable` when the coordinator cannot be reached.
    """
    told: list[signal.Signals] = []
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None

    def end(number: signal.Signals) -> None:
        told.append(number)
        me.cancel()

    for name in launch.signals:  # until the agent listens to them: nothing is left behind then either
        loop.add_signal_handler(signal.Signals[name], end, signal.Signals[name])
    try:
        return await _take_part(launch, settings)
    except asyncio.CancelledError:
        if not told:
            raise
        return Over(False, f"ended by {told[0].name} before this node had joined the job")


async def _take_part(launch: Launch, settings: Settings) -> Over:
    with ExitStack() as cleanup:
        name = settings.node_name or socket.gethostname()
        # With the endpoint, because jobs that were given no name all have the same.
        at = Endpoint(launch.endpoint.host, launch.store_port) if launch.store_port else launch.endpoint
        place = hold(f"{launch.job} at {at}", name, given=bool(settings.node_name))
        cleanup.callback(place.close)
        be_subreaper()
        cleanup.callback(be_subreaper, False)
        extension = _extension(launch, settings)
        if extension is not None:
            cleanup.callback(extension.close)
            await extension.start()
        logs = JobLogs(launch, node=place.name)
        outcome: list[Over] = []
        cleanup.callback(lambda: logs.close(bool(outcome and outcome[0].success)))
        events = str(Path(logs.directory, EVENTS))
        if logs.asked_for and not settings.events and _is_text(events):
            settings = msgspec.structs.replace(settings, events=events)
        _remember(logs)
        agent = Agent(launch, settings, place=place, logs=logs, extension=extension)
        cleanup.callback(agent.client.seat.hosting.kill)
        await agent.client.seat.open()
        try:
            over = await agent.run()
        finally:
            _discard_token(launch)  # now, not last of all: whoever hosts the coordinator may be killed while it waits
        if over.success and agent.unwritten:  # a script that never calls wait() has not noticed
            over = msgspec.structs.replace(over, success=False, reason=agent.unwritten)
        await _see_off(agent.client.seat, over)
        if not agent.hurried:
            await _show_all(logs)
        outcome.append(over)
        _write_verdict(over, settings.verdict or (str(Path(logs.directory, VERDICT)) if logs.asked_for else ""))
        return over


def _remember(logs: JobLogs) -> None:
    """So that `outlast why` and the like find the logs on this machine when the job is over."""
    if logs.asked_for and logs.directory != os.devnull:
        try:
            remember_logs(Path(logs.directory).parent)  # nodes that share it have their logs beside these
        except OSError as error:
            log.debug("commands will need --log-dir when the job is over: %s", error.strerror)


def _is_text(path: str) -> bool:
    """Whether a path can be told to the coordinator: names of files may be any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _discard_token(launch: Launch) -> None:
    if launch.own_token:
        Path(launch.own_token).unlink(missing_ok=True)


def _extension(launch: Launch, settings: Settings) -> Extension | None:
    if not settings.dynamic_failover_extension:
        return None
    beside = str(Path(launch.entrypoint).absolute().parent)
    return Extension(settings.dynamic_failover_extension, beside=beside, limit=settings.extension_timeout)


def _write_verdict(over: Over, path: str) -> None:
    """Leave the verdict for programs to read, with the logs or where it was asked for."""
    verdict = verdict_of(over)
    if verdict is None or not path or not Path(path).parent.is_dir():
        return
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(verdict)) + b"\n")
    except OSError as error:
        log.warning("cannot write the verdict %s: %s", path, error.strerror)


async def _see_off(seat: CoordinatorLocation, over: Over) -> None:
    """Wait for the coordinator of this node, if it has one, to tell the others; where the job goes on, to resign."""
    hosting = seat.hosting
    if not hosting.active or hosting.ended is None:
        return
    if not over.left:
        await asyncio.wait({hosting.ended}, timeout=LAST_WORDS)
        return
    handing_over = asyncio.ensure_future(_hand_over(seat))
    await asyncio.wait({hosting.ended}, timeout=SOON)
    if not hosting.ended.done():
        log.warning("this node has left the job, but hosts its coordinator until another node does")
        await _until_ended_or_told(hosting.ended)
    handing_over.cancel()
    await asyncio.wait({handing_over})


async def _hand_over(seat: CoordinatorLocation) -> None:
    """Ask until the coordinator has left the job to others: it can when they train."""
    wait = FIRST_WAIT
    while not await seat.hand_over():
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


async def _show_all(logs: JobLogs) -> None:
    """Wait for whoever reads the workers' lines on the console, and for the disk, unless told not to."""
    showing = asyncio.ensure_future(logs.shown())
    await asyncio.wait({showing}, timeout=SOON)
    if not showing.done():
        log.warning("the job is over; workers' lines still wait: %s (a signal ends it without them)", logs.owes())
        await _until_ended_or_told(showing)
    showing.cancel()


async def _until_ended_or_told(ended: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        loop.add_signal_handler(number, told.cancel)
    await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
