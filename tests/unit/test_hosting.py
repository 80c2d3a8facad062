"""The coordinator that an agent keeps alive, also where the machine has nothing left to start it with."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outlast.agent.hosting import Hosting, listen
from outlast.agent.hosting import log as hosting_log
from outlast.agent.link import connect
from outlast.commission import Commission
from outlast.launch import Endpoint
from outlast.messages import Rules, Term


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


def test_a_coordinator_that_cannot_be_started_again_is_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def host() -> None:
        endpoint = Endpoint("127.0.0.1", 0)
        listener = listen(endpoint, True)
        assert listener is not None
        commission = Commission(
            rules=Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=1),
            token="t" * 16,
            listener=listener.fileno(),
            shutdown_timeout=1.0,
            term=Term(1, "a"),
            run="r",
            journal=str(tmp_path / "journal"),
        )
        said = asyncio.Event()
        monkeypatch.setattr(hosting_log, "warning", lambda text, *_: "cannot be started" in text and said.set())
        failures: list[str] = []
        hosting = Hosting(next_term=lambda: Term(2, "a"), failed=failures.append)
        hosting.begin(commission, listener)
        first = hosting._process
        assert first is not None
        place = Endpoint("127.0.0.1", listener.getsockname()[1])
        (await connect(place, commission.token, None, lambda *_: None)).close()
        with no_descriptor_left():
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.wait_for(said.wait(), 60.0)
        again = await asyncio.wait_for(connect(place, commission.token, None, lambda *_: None), 60.0)
        again.close()
        assert again.standing.term == Term(2, "a")
        assert hosting.active
        hosting.kill()
        assert not failures

    asyncio.run(host())
