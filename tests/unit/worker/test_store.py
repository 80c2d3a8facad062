"""Ranks that ask for rank 0's store before it listens: they wait for it, and for nothing else."""

from __future__ import annotations

import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType

import pytest

from outlast.worker import store

HOST = "127.0.0.1"


class Rendezvous(ModuleType):
    """What stands for torch's: it notes who came, and whether the store was there."""

    def __init__(self, port: int) -> None:
        super().__init__(store.RENDEZVOUS)
        self.port = port
        self.met: list[tuple[str, dict[str, object], bool]] = []
        self._rendezvous_handlers = {"env": self.meet, "tcp": self.meet, "file": self.meet}

    def meet(self, url: str, **options: object) -> Iterator[str]:
        self.met.append((url, options, listens(self.port)))
        yield "store"

    def ask(self, url: str, **options: object) -> str:
        return next(self._rendezvous_handlers[url.partition(":")[0]](url, **options))


class Clock:
    """Time that passes only while somebody sleeps, and what happens at the first pause."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.then: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            self.then()


def listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def reserved() -> Iterator[socket.socket]:
    """The port of a store that does not listen yet."""
    with socket.socket() as reserved:
        reserved.bind((HOST, 0))
        yield reserved


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, reserved: socket.socket) -> Rendezvous:
    """In the worker of rank 1, before its script."""
    port = reserved.getsockname()[1]
    torch = Rendezvous(port)
    monkeypatch.setitem(sys.modules, store.RENDEZVOUS, torch)
    for name, value in {"RANK": "1", "MASTER_ADDR": HOST, "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    store.await_before_asking()
    return torch


@pytest.mark.parametrize("url", ["env://", "env://?rank=2&world_size=3", f"tcp://{HOST}:PORT?rank=2&world_size=3"])
def test_a_rank_that_would_ask_too_early_waits_until_rank_0_listens(
    url: str, torch: Rendezvous, clock: Clock, reserved: socket.socket
) -> None:
    url = url.replace("PORT", str(torch.port))
    clock.then = reserved.listen
    assert torch.ask(url, timeout=timedelta(minutes=30), more=1) == "store"
    assert torch.met == [(url, {"timeout": timedelta(minutes=30), "more": 1}, True)]
    assert len(clock.pauses) == 3


def test_a_rank_that_is_not_too_early_does_not_wait(torch: Rendezvous, clock: Clock, reserved: socket.socket) -> None:
    reserved.listen()
    torch.ask("env://")
    assert clock.pauses == []


@pytest.mark.parametrize(
    "url",
    [
        "env://?rank=0&world_size=2",
        f"tcp://{HOST}:1?rank=1&world_size=2",
        "tcp://another-host:PORT?rank=1&world_size=2",
        f"tcp://{HOST}:PORT?world_size=2&rank=one",
        f"tcp://{HOST}:port",
        "file:///tmp/store?rank=1",
    ],
)
def test_the_store_itself_and_whoever_asks_elsewhere_does_not_wait(url: str, torch: Rendezvous, clock: Clock) -> None:
    url = url.replace("PORT", str(torch.port))
    torch.ask(url)
    assert [met[0] for met in torch.met] == [url]
    assert clock.pauses == []


@pytest.mark.parametrize(("name", "value"), [("RANK", "0"), ("MASTER_PORT", "1"), ("MASTER_ADDR", "::1")])
def test_a_script_that_changes_its_environment_does_not_wait(
    name: str, value: str, torch: Rendezvous, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    torch.ask("env://")
    assert clock.pauses == []


def test_no_rank_waits_for_ever_and_the_longer_it_waits_the_less_it_asks(torch: Rendezvous, clock: Clock) -> None:
    torch.ask("env://", timeout=timedelta(minutes=30))
    assert store.PATIENCE <= clock.now < store.PATIENCE + store.PAUSES[1]
    assert clock.pauses == sorted(clock.pauses)
    assert len(clock.pauses) < 150


def test_a_time_out_that_is_short_stays_short(torch: Rendezvous, clock: Clock) -> None:
    torch.ask("env://", timeout=timedelta(seconds=2))
    assert clock.now < 0.3


def test_any_other_trouble_is_left_to_torch_at_once(
    torch: Rendezvous, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> socket.socket:
        raise socket.gaierror("no such host")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "create_connection", unknown)
        with pytest.raises(socket.gaierror):
            torch.ask("env://")  # raised by torch's own attempt, as it were
    assert clock.pauses == []


def test_no_line_of_ours_is_in_an_error_of_torchs(
    monkeypatch: pytest.MonkeyPatch, torch: Rendezvous, reserved: socket.socket
) -> None:
    reserved.listen()
    monkeypatch.setattr(torch, "port", -1)
    with pytest.raises(socket.gaierror) as caught:
        torch.ask("env://")
    assert store.__file__ not in {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}


def test_a_torch_that_is_built_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, store.RENDEZVOUS, ModuleType(store.RENDEZVOUS))
    store.await_before_asking()
