"""Who listens on a port."""

from __future__ import annotations

import os
import socket

from outlast.system.ports import holder_of


def test_the_process_that_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        holder = holder_of(listener.getsockname()[1])
    assert holder is not None
    assert holder.pid == os.getpid()
    assert str(holder).endswith(f"(pid {os.getpid()})")


def test_a_port_that_is_only_bound_has_no_holder() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert holder_of(bound.getsockname()[1]) is None
