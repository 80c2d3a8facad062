"""A machine of its own for each process that runs tests: several run side by side and do not see each other.

Shared memory, the ports of the loopback interface, the names of network namespaces and the kernel's log are what
jobs on one machine share. With a mount and a network namespace of its own, a test run has them for itself: what lies
in /dev/shm after a test is that test's, and a port that was free stays free. The kernel's log stays empty.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from pathlib import Path

CLONE_NEWNS = 0x00020000  # linux/sched.h; os.unshare came with Python 3.12
CLONE_NEWNET = 0x40000000


def move_in() -> None:
    """Leave the machine for one that nobody else is on. Without root there is none: then this does nothing."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET) != 0:
        why = os.strerror(ctypes.get_errno())
        raise RuntimeError(f"tests run in namespaces of their own: {why}; run them in a privileged container")
    Path("/run/netns").mkdir(parents=True, exist_ok=True)
    for command in (
        ["mount", "--make-rprivate", "/"],  # or what is mounted here appears outside
        ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"],
        ["mount", "-t", "tmpfs", "tmpfs", "/run/netns"],
        *([["mount", "--bind", "/dev/null", "/dev/kmsg"]] if Path("/dev/kmsg").exists() else []),
        ["ip", "link", "set", "lo", "up"],
        *(["ip", "address", "add", f"{address}/32", "dev", "lo"] for address in own_addresses()),
    ):
        subprocess.run(command, check=True)


def own_addresses() -> list[str]:
    """What the machine's name stands for, besides loopback addresses: it must lead here on this machine too."""
    try:
        _, _, addresses = socket.gethostbyname_ex(socket.gethostname())
    except OSError:
        return []  # a name that stands for nothing is left so
    return [address for address in addresses if not address.startswith("127.")]
