"""The actor that has one agent: a process of its own, which the kernel kills when the actor dies.

What trains is never in the actor: Ray may reuse its process, and restarts of workers must not need Ray.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec
import ray

from outlast.system import own_process, proc
from outlast.verdict import Verdict

SHOWN = 4096  # bytes at the end of the agent's output among which its error is looked for
ERROR = "outlast run: error: "
KEPT = 120.0  # seconds for an overseer to hear of the end


class Introduction(msgspec.Struct, frozen=True):
    """Where an actor has come to be."""

    node: str  # the Ray node
    host: str
    address: str
    port: int  # kept free for the coordinator until the agent starts
    object_store: int  # bytes of shared memory that Ray may use there


class AgentOrder(msgspec.Struct, frozen=True):
    """The process that an actor is to start."""

    name: str
    arguments: tuple[str, ...]  # of `outlast`
    directory: str
    env: dict[str, str]
    token: str
    places: tuple[str, ...] = ()
    detached: bool = False  # nobody may be there to give its resources back


class AgentEnd(msgspec.Struct, frozen=True):
    """How an agent has ended."""

    code: int
    said: str = ""  # its error, if it told one
    verdict: Verdict | None = None  # on the job, if that has failed


class AgentActor:
    """Starts one agent, and is there as long as it is. `run` takes a thread of its own, the rest another."""

    def __init__(self) -> None:
        self._agent: subprocess.Popen[bytes] | None = None
        self._order: AgentOrder | None = None
        self._told = False
        self._end: AgentEnd | None = None
        self._ended = threading.Event()
        self._port = socket.socket()  # bound and never listening: Ray's own processes take ports all the time
        self._port.bind(("", 0))

    def introduce(self) -> Introduction:
        """Where this actor is."""
        context = ray.get_runtime_context()
        node = context.get_node_id()
        here: dict[str, Any] = next((each for each in ray.nodes() if each["NodeID"] == node), {})
        store = _in_shared_memory(int(here.get("Resources", {}).get("object_store_memory", 0)))
        port = int(self._port.getsockname()[1]) if self._order is None else 0
        return Introduction(node, socket.gethostname(), ray.util.get_node_ip_address(), port, store)

    def order(self) -> AgentOrder | None:
        """What runs here: an overseer that was restarted asks."""
        return self._order

    def run(self, order: AgentOrder) -> AgentEnd:
        """Run the agent until it ends. A second call waits for the same end."""
        if self._order is None:
            self._order = order
            self._end = self._live(order)
            self._ended.set()
            if order.detached:
                threading.Timer(KEPT, _give_back).start()
        self._ended.wait()
        assert self._end is not None
        return self._end

    def _live(self, order: AgentOrder) -> AgentEnd:
        if order.directory and not Path(order.directory).is_dir():
            where = f"there is no directory {order.directory} on {socket.gethostname()}"
            return AgentEnd(1, f"{where}: give one that all nodes have, or ship it with Ray's runtime_env")
        # In memory, and gone with this process: nothing is left when it is killed.
        verdict = os.memfd_create("outlast-verdict", os.MFD_CLOEXEC)
        try:
            code = self._run(order, proc.descriptor_path(verdict, os.getpid()))
            left = os.pread(verdict, os.fstat(verdict).st_size, 0)
            found = msgspec.json.decode(left, type=Verdict) if left else None
            return AgentEnd(code, _error() if code and found is None else "", found)
        finally:
            os.close(verdict)

    def _run(self, order: AgentOrder, verdict: str) -> int:
        argv = own_process.command("outlast.cli.run:supervised", str(os.getpid()), *order.arguments[1:])
        environ = {**os.environ, **order.env, "OUTLAST_TOKEN": order.token, "OUTLAST_VERDICT": verdict}
        # Ray's threads block signals, and the agent must get its own.
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._port.close()
        try:
            # The kernel kills the agent when the thread ends that started it: this one, which waits for it.
            self._agent = subprocess.Popen(
                argv, cwd=order.directory or None, env=environ, stdin=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self._told:
            self._agent.terminate()
        return self._agent.wait()

    def drain(self) -> None:
        """Let the agent leave its job, after a save where that can be had."""
        if not self._told:
            self._told = True
            if self._agent is not None:
                self._agent.terminate()

    def pid(self) -> int:
        """The process of this actor."""
        return os.getpid()


def _in_shared_memory(store: int) -> int:
    """So many bytes, or none: Ray puts an object store for which /dev/shm is too small elsewhere."""
    status = os.statvfs("/dev/shm")
    return store if store <= status.f_blocks * status.f_frsize else 0


def _give_back() -> None:
    """Remove the placement group of this actor, and with it the actor."""
    group = ray.util.get_current_placement_group()
    if group is not None:
        ray.util.remove_placement_group(group)


def _error() -> str:
    """The last error that was written to this process's standard error, if Ray keeps that in a file."""
    path = Path(proc.descriptor_path(2))
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - SHOWN))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.removeprefix(ERROR) for line in reversed(lines) if line.startswith(ERROR)), "")
