"""Whether the partner in a check of the network can be reached at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from outlast.checks import collectives


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose host answers nothing: its queue is full, and the kernel drops who asks."""
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield port


def test_a_host_that_answers_nothing_is_said_to_be_out_of_reach_at_once(
    silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "ANSWER", 0.3)
    with pytest.raises(collectives.Failed, match=f"127.0.0.1:{silent} cannot be reached"):
        collectives.reach("127.0.0.1", silent, patience=120.0)


def test_a_host_that_refuses_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as later:
        later.bind(("127.0.0.1", 0))
        port = later.getsockname()[1]
        refused = []

        def pause(_: float) -> None:
            refused.append(True)
            if len(refused) == 3:
                later.listen()

        monkeypatch.setattr(collectives.time, "sleep", pause)
        collectives.reach("127.0.0.1", port, patience=120.0)
        assert len(refused) == 3
