"""The seat of the coordinator: who cannot have it says so, and who answers late is not forgotten."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launches import launch
from outlast.agent.coordinator_link import hosting, link
from outlast.agent.coordinator_link.location import CoordinatorLocation
from outlast.core.node.commands import Mandate
from outlast.launch import Endpoint
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Charter, Successor, Term
from outlast.settings.settings import Settings
from outlast.transport import token


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["record", "process"])
def test_a_node_that_cannot_host_the_coordinator_says_so_and_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if what == "record":
        monkeypatch.setattr(token, "leave", full)
    else:
        monkeypatch.setattr(hosting, "_start", full)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = launch(max_nodes=2, endpoint=Endpoint("localhost", port))
    rules = Rules(job="job", entrypoint="train.py", min_nodes=1, max_nodes=2)
    charter = Charter("run", rules, successors=(Successor("me", "me", "127.0.0.1", port),))

    async def scene() -> bool:
        seat = CoordinatorLocation(asked, Settings(), me="me", mandate=pytest.fail, failed=pytest.fail)
        seat._secret = "a token"
        return seat.take(Mandate(Term(2, "me"), charter))

    assert asyncio.run(scene()) is False
    assert "this node cannot host the coordinator: [Errno 28] No space left on device" in caplog.text
    with socket.create_server(("127.0.0.1", port)):
        pass  # nobody listens there
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_coordinator_that_answers_at_the_last_moment_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its connection would stay open, and nobody would know of it."""
    answered = object()

    async def late(endpoint: Endpoint, *_: str | ssl.SSLContext | Callable[..., None] | None) -> object:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if endpoint.port == 1:
                raise
        return answered  # as `asyncio.wait_for` does, where what it waits for is there when it is cancelled

    monkeypatch.setattr(link, "connect", late)
    places = [Endpoint("a", 1), Endpoint("b", 2)]
    reached, failed = asyncio.run(link.knock(places, "token", None, lambda *_: None, limit=0.01))
    assert reached == [answered]
    assert list(failed) == places[:1]
