"""The agent's connection to the coordinator, where the kernel plays tricks."""

from __future__ import annotations

from collections.abc import Callable

from hosts import Host
from processes import python

PORT = 40000
DIALS = f"""
import asyncio, socket, struct
from outlast.agent.coordinator_link.link import connect
from outlast.launch import Endpoint
plain = socket.create_connection(("127.0.0.1", {PORT}))
assert plain.getsockname() == plain.getpeername()  # or this host would show nothing
plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the port is free again at once
plain.close()
try:
    asyncio.run(connect(Endpoint("127.0.0.1", {PORT}), "t" * 16, None, print))
except ConnectionRefusedError as error:
    print(error.strerror)
"""


def test_a_connection_with_itself_is_nobody_who_answers(hosts: Callable[[int], list[Host]]) -> None:
    (host,) = hosts(1)
    only = f"echo {PORT} {PORT} > /proc/sys/net/ipv4/ip_local_port_range"
    dialling = host.start(["sh", "-c", f'{only} && exec "$@"', "sh", python(), "-c", DIALS])
    assert dialling.wait() == 0, dialling.output
    assert dialling.lines == ["Connection refused"]
