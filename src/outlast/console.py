"""A console that others share, written to without waiting for whoever reads it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable

from outlast.system import proc


def without_blocking(descriptor: int) -> tuple[int, Callable[[bytes], int]]:
    """A descriptor of our own for the same console, and how to write to it without waiting.

    The flag O_NONBLOCK would hit everybody who shares the open file: workers that inherit it, and the user's
    shell. So a pipe or a terminal is opened anew. -1 if the console is closed already.
    """
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return -1, len
    if stat.S_ISSOCK(mode):
        own = os.dup(descriptor)
        return own, lambda data: _send_now(own, data)
    copy = -1
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            copy = os.open(proc.descriptor_path(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            pass  # of another user, after su: shared, it may make us wait, which beats showing nothing
    if copy < 0:
        copy = os.dup(descriptor)
    return copy, lambda data: os.write(copy, data)


def _send_now(descriptor: int, data: bytes) -> int:
    channel = socket.socket(fileno=descriptor)
    try:
        return channel.send(data, socket.MSG_DONTWAIT)
    finally:
        channel.detach()
