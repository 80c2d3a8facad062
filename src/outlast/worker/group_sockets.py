"""Which sockets of this process belong to its process groups and their store, so that all of them can be cut at once.

gloo cannot be aborted: a collective in which a rank is missing waits out its timeout, half an hour by default. But it
ends within milliseconds when its connections do. So each group is watched while it is made: what listens afterwards
and did not before is gloo's, and the ranks tell each other where they listen, over the group's own store. From then on
a connection to one of these places, on either end, is the group's, and nothing else is: connections of the script's
own are never touched. A socket that listens is left alone as well: gloo aborts the process if that one ends.

The store of the generation is known by its address.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any

from outlast.system.sockets import SocketEnd, TcpSocket, own_tcp_sockets, shut_down

if TYPE_CHECKING:
    from types import ModuleType

TO_TELL = timedelta(seconds=10)  # for the other ranks to say where they listen; all of them have just met
BACKENDS = {"gloo", "fake"}  # those that can be left
NCCL = "nccl"

Make = Callable[..., Any]


class GroupSockets:
    """The sockets of all process groups that this process makes while it is `active`. One will do: `group_sockets`."""

    def __init__(self) -> None:
        self.active = False
        self.aborts_nccl = False  # whether its groups are aborted, too
        self._listeners: set[SocketEnd] = set()
        self._making: dict[int, frozenset[str]] = {}  # by thread: the sockets that there were before
        self._lock = threading.Lock()
        self._unknown = ""  # why a group cannot be cut off
        self._module: ModuleType | None = None

    def watch(self, module: ModuleType) -> None:
        """Watch the groups that this module, torch.distributed.distributed_c10d, makes."""
        if self._module is None:
            self._module = module
            watched = self._watched(module._new_process_group_helper)
            module._new_process_group_helper = watched  # type: ignore[attr-defined]
        if module.is_initialized():
            self._unknown = "a process group was made before the restartable function: make it inside"

    def forget(self) -> None:
        """All groups have ended."""
        with self._lock:
            self._listeners.clear()
            self._unknown = ""

    def stuck(self) -> str:
        """Why a collective of this process cannot be cut off; "" if all can."""
        if self._unknown or self._module is None:
            return self._unknown
        can_be_left = BACKENDS | ({NCCL} if self.aborts_nccl else set())
        for group in list(self._module._world.pg_map):
            others = {backend for _, backend in _by_device(self._module, group)} - can_be_left
            if others:
                hint = ", unless the function is restartable(nccl=True)" if others == {NCCL} else ""
                return f"collectives of {', '.join(sorted(others))} cannot be left{hint}"
        return ""

    def cut(self) -> int:
        """End every connection of the groups and of their store; how many there were."""
        self._abort_nccl()
        with self._lock:
            mine = [each for each in own_tcp_sockets() if self._is_ours(each)]
            if self._making:
                mine += self._half_made()
        for each in mine:
            shut_down(each)
        return len(mine)

    def _abort_nccl(self) -> None:
        """End the collectives of NCCL: their kernels return, and so does whoever waits for them.

        It takes a second. A rank that is alone in its group waits for nobody.
        """
        if self._module is None or not self.aborts_nccl:
            return
        for group in list(self._module._world.pg_map):
            for device, backend in _by_device(self._module, group):
                if backend == NCCL and group.size() > 1:
                    group._get_backend(device).abort()

    def _is_ours(self, each: TcpSocket) -> bool:
        if each.listens or each.remote is None:
            return False
        return bool({each.local, each.remote} & self._listeners) or _is_store(each)

    def _half_made(self) -> list[TcpSocket]:
        """Of a group that is being made, whose ranks have not told each other yet: what is new, but for Python's."""
        before = frozenset.intersection(*self._making.values())
        pythons = {each.fileno() for each in gc.get_objects() if issubclass(type(each), socket.socket)}
        return [
            each
            for each in own_tcp_sockets()
            if not each.listens and each.remote is not None
            if each.inode not in before and each.descriptor not in pythons
        ]

    def _watched(self, make: Make) -> Make:
        @wraps(make)
        def make_group(group_size: int, group_rank: int, *args: Any, **options: Any) -> Any:
            if not self.active:
                return make(group_size, group_rank, *args, **options)
            before = frozenset(each.inode for each in own_tcp_sockets())
            with self._lock:
                self._making[threading.get_ident()] = before
            try:
                made = make(group_size, group_rank, *args, **options)
                if made[1] is not None:  # else this rank is none of the group's
                    self._learn(before, made[1], group_rank, group_size)
            finally:
                with self._lock:
                    del self._making[threading.get_ident()]
            return made

        return make_group

    def _learn(self, before: frozenset[str], store: Any, rank: int, size: int) -> None:
        if size == 1:
            return
        mine = [each.local for each in own_tcp_sockets() if each.listens and each.inode not in before]
        store.set(f"outlast/listens/{rank}", json.dumps(mine))
        keys = [f"outlast/listens/{other}" for other in range(size)]
        try:
            store.wait(keys, TO_TELL)
            told = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
        except RuntimeError as error:  # the generation may be over
            self._unknown = f"where other ranks listen is not known ({str(error).partition(chr(10))[0]})"
            return
        with self._lock:
            self._listeners |= {SocketEnd(*each) for text in told for each in json.loads(text)}
        _addresses(os.environ.get("MASTER_ADDR", ""))  # now: later a name server may be slow


def _by_device(module: ModuleType, group: Any) -> list[tuple[Any, str]]:
    """The kinds of device that a group serves, and by which backend."""
    config = str(module._world.pg_backend_config.get(group, ""))
    pairs = [part.partition(":") for part in config.split(",") if ":" in part]
    return [(module.torch.device(device), backend) for device, _, backend in pairs]


def _store_port() -> int:
    port = os.environ.get("MASTER_PORT", "")
    return int(port) if port.isdecimal() else 0


def _is_store(each: TcpSocket) -> bool:
    """Whether it is a connection to the store of this worker's generation; or one of those that rank 0 serves."""
    assert each.remote is not None
    port = _store_port()
    if each.local.port == port:
        return os.environ.get("RANK") == "0"
    return each.remote.port == port and each.remote.host in _addresses(os.environ.get("MASTER_ADDR", ""))


@lru_cache(maxsize=8)
def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


group_sockets = GroupSockets()
