"""The coordinator that an agent keeps alive, also where the machine has nothing left to start it with."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from outlast.agent.coordinator_link import hosting
from outlast.agent.coordinator_link.hosting import Hosting, listen
from outlast.agent.coordinator_link.link import connect
from outlast.core.node.commands import Mandate
from outlast.launch import Endpoint
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Ballot, Charter, Standing, Term
from outlast.system.pidfd import exited
from outlast.transport.commission import Commission

TOKEN = "t" * 16
RULES = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=3)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def hosted(
    journal: Path, record: str = "", *, next_charter: Charter | None = None
) -> AsyncIterator[tuple[Hosting, Endpoint]]:
    """A coordinator in its first term, which answers."""
    listener = listen(Endpoint("127.0.0.1", 0), True)
    assert listener is not None
    commission = Commission(
        rules=RULES,
        token=TOKEN,
        listener=listener.fileno(),
        shutdown_timeout=1.0,
        term=Term(1, "a"),
        run="r",
        record=record,
        journal=str(journal),
    )
    kept = Hosting(mandate=lambda: Mandate(Term(2, "a"), next_charter), failed=pytest.fail)
    kept.begin(commission, listener)
    place = Endpoint("127.0.0.1", listener.getsockname()[1])
    try:
        assert await standing_at(place) == Standing(Term(1, "a"), acting=True, job="j")
        yield kept, place
    finally:
        kept.kill()


async def standing_at(place: Endpoint) -> Standing:
    connection = await asyncio.wait_for(connect(place, TOKEN, None, lambda *_: None), 60.0)
    connection.close()
    return connection.standing


def test_a_coordinator_that_cannot_be_started_again_is_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def host() -> None:
        said = asyncio.Event()
        monkeypatch.setattr(hosting.log, "warning", lambda text, *_: "cannot be started" in text and said.set())
        async with hosted(tmp_path / "journal") as (kept, place):
            assert kept._process is not None
            with no_descriptor_left():
                os.kill(kept._process.pid, signal.SIGKILL)
                await asyncio.wait_for(said.wait(), 60.0)
            assert await standing_at(place) == Standing(Term(2, "a"), acting=True, job="j")

    asyncio.run(host())


def test_one_that_takes_the_place_of_a_crashed_one_is_found_as_that_was(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.touch()

    async def host() -> None:
        async with hosted(tmp_path / "journal", str(record)) as (kept, place):
            assert kept._process is not None
            os.kill(kept._process.pid, signal.SIGINT)  # it ends as after an exception
            await exited(kept._process.pid)
            assert await standing_at(place) == Standing(Term(2, "a"), acting=True, job="j")
            assert record.exists()

    asyncio.run(host())
    assert not record.exists()


def test_a_coordinator_begins_with_the_charter_that_its_agent_knows(tmp_path: Path) -> None:
    """Else it takes the job for a new one, and forms a generation of whoever comes first."""
    charter = Charter("r", RULES, (Ballot(generation=1, formed=1, affirmed=1, total=7, votes=2),))

    async def host() -> None:
        async with hosted(tmp_path / "journal", next_charter=charter) as (kept, place):
            assert kept._process is not None
            os.kill(kept._process.pid, signal.SIGKILL)
            await exited(kept._process.pid)
            assert await standing_at(place) == Standing(Term(2, "a"), acting=False, job="j")

    asyncio.run(host())


def test_a_name_that_leads_to_ipv6_alone_is_listened_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_resolve", lambda _: [(socket.AF_INET6, ("::1", 0))])  # our own name
    listener = listen(Endpoint("this-machine", 0), None)
    assert listener is not None
    with listener:
        assert listener.getsockname()[0] == "::"
