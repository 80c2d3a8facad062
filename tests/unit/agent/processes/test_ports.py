"""The store's port: promised to one, refused to everybody else, open to torch."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from outlast.agent.processes.ports import StorePort, StorePorts

STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("localhost", int(sys.argv[1]), is_master=True, wait_for_workers=False)
store.set("question", "answer")
print(store.get("question").decode())
"""

PLAIN_BIND = """
import socket, sys
try:
    socket.socket().bind(("0.0.0.0", int(sys.argv[1])))
except OSError as error:
    print(error.strerror)
"""

OTHER_AGENT = """
import sys
from outlast.agent.processes.ports import StorePort
try:
    print(StorePort(sys.argv[1]).port)
except OSError as error:
    print(error)
"""


def run(script: str, argument: object) -> str:
    command = [sys.executable, "-c", script, str(argument)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def free_range(size: int) -> range:
    """Ports that are free now, next to one another, below those that the kernel hands out."""
    for first in range(20000, 30000, size):
        try:
            for port in range(first, first + size):
                with socket.socket() as probe:
                    probe.bind(("0.0.0.0", port))
        except OSError:
            continue
        return range(first, first + size)
    raise AssertionError("no free ports")


def test_torch_listens_on_the_port_that_we_hold() -> None:
    port = StorePort()
    try:
        assert run(STORE, port.port) == "answer"
    finally:
        port.release()


def test_nobody_else_gets_the_port_until_it_is_released() -> None:
    port = StorePort()
    assert run(PLAIN_BIND, port.port) == "Address already in use"
    port.release()
    assert run(PLAIN_BIND, port.port) == ""


def test_a_port_does_not_come_back_soon() -> None:
    seen = []
    for _ in range(64):
        port = StorePort()
        seen.append(port.port)
        port.release()
    assert len(set(seen)) == 64


def test_a_range_is_kept_and_its_ports_are_taken_in_turn() -> None:
    ports = free_range(3)
    seen = []
    for _ in range(6):
        port = StorePort(f"{ports[0]}-{ports[-1]}")
        seen.append(port.port)
        port.release()
    assert sorted(seen[:3]) == list(ports)
    assert seen[3:] == seen[:3]


def test_a_range_without_a_free_port_is_one_clear_line() -> None:
    (number,) = free_range(1)
    port = StorePort(str(number))
    try:
        with pytest.raises(OSError, match=rf"no free port for the store in store_ports {number}: widen"):
            StorePort(str(number))
    finally:
        port.release()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", number))
        listener.listen()
        with pytest.raises(OSError, match="no free port"):
            StorePort(str(number))


def test_two_agents_on_one_machine_share_a_range_without_sharing_a_port() -> None:
    first, second = free_range(2)
    port = StorePort(f"{first}-{second}")
    try:
        assert run(OTHER_AGENT, f"{first}-{second}") == str(second if port.port == first else first)
        assert "no free port" in run(OTHER_AGENT, port.port)
    finally:
        port.release()


def test_a_port_that_the_user_has_chosen_serves_all_generations() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        chosen = probe.getsockname()[1]
    ports = StorePorts(chosen=chosen)
    try:
        for _ in range(3):
            assert ports.promised == chosen
            ports.take()
            ports.release()
    finally:
        ports.close()


def test_releasing_twice_is_fine() -> None:
    port = StorePort()
    port.release()
    port.release()


@pytest.mark.parametrize("text", ["a-b", "0-5", "5-4", "1-70000", "-", "1-", "29500,29501"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write first-last"):
        StorePort(text)
