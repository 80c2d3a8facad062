"""Carries out one node's faults: says what it is about to do, and does it right after."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from msgspec.structs import replace

from outlast.agent.coordinator_link.hosting import Hosting
from outlast.launch import Endpoint
from outlast.protocol.chaos import ChaosBegun, ChaosFault, ChaosOrder
from outlast.protocol.checks import Findings
from outlast.settings.settings import Settings
from outlast.system import own_process, proc

log = logging.getLogger("agent")

LEAD = 0.05  # seconds for the answer to get away before the fault
DAMAGED = 64  # bytes
IN_WORKER = ("hang", "oom", "exit-code", "nan-gradient")
LASTING = ("overload-cpu", "fill-disk", "fill-shm", "cut-network", "slow-network", "clock-jump")

Act = Callable[[], None]


class ChaosImpossible(Exception):
    """It cannot be done here; the text says what it needs."""


class ChaosHands:
    """One node's. `pids`: its workers. `others`: where other nodes are."""

    def __init__(
        self,
        settings: Settings,
        *,
        send: Callable[[ChaosBegun], None],
        pids: Callable[[], Sequence[int]],
        hosting: Hosting,
        others: Callable[[], list[Endpoint]],
    ) -> None:
        self._allowed = settings.allow_chaos
        self._send = send
        self._pids = pids
        self._hosting = hosting
        self._others = others
        self._lasting: list[subprocess.Popen[bytes]] = []
        self._fails_check = False
        self.directory = tempfile.mkdtemp(prefix="outlast-chaos-") if self._allowed else ""

    def ordered(self, order: ChaosOrder) -> None:
        """Answer, and then do it."""
        if not self._allowed:
            self._send(ChaosBegun(order.number, False, "this node was started without --allow-chaos"))
            return
        try:
            text, act = self._prepare(order.fault)
        except (ChaosImpossible, OSError) as error:
            self._send(ChaosBegun(order.number, False, str(error)[:1000]))
            return
        log.warning("%s asks for chaos: %s", order.who, text)
        self._send(ChaosBegun(order.number, True, text[:1000]))
        asyncio.get_running_loop().call_later(LEAD, act)

    def spoiled(self, findings: Findings) -> Findings:
        """What a check has found here; a failure, once, if that was asked for."""
        if not self._fails_check:
            return findings
        self._fails_check = False
        return replace(findings, alone="outlast chaos wants this check to fail", certain=True)

    def close(self) -> None:
        """Take everything back."""
        self._take_back()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _fail_check(self) -> None:
        self._fails_check = True

    def _take_back(self) -> None:
        for process in self._lasting:
            process.terminate()
        for process in self._lasting:
            process.wait()
        self._lasting.clear()

    def _continue(self) -> None:
        """End what lasts, and let workers go on that were stopped."""
        self._take_back()
        self._fails_check = False
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _prepare(self, fault: ChaosFault) -> tuple[str, Act]:
        """What will be done, and how."""
        if fault.name == "kill-worker" or (fault.name == "hang" and fault.text == "stopped"):
            pid, number = self._worker(fault), signal.SIGKILL if fault.name == "kill-worker" else signal.SIGSTOP
            return f"{number.name} to worker {pid}", lambda: os.kill(pid, number)
        if fault.name in IN_WORKER:
            self._worker(fault)
            return f"{fault.name} {fault.text} in a worker, at its next step", lambda: self._leave(fault)
        if fault.name == "fail-check":
            return "the next check of this node fails", self._fail_check
        if fault.name == "end":
            return "whatever lasts is taken back", self._continue
        if fault.name in LASTING:
            return f"{fault.name} for {fault.seconds:g} s", self._last(fault)
        if fault.name == "corrupt-checkpoint":
            target = newest_file(Path(fault.text))
            return f"{DAMAGED} bytes of {target} are overwritten", lambda: damage(target)
        return self._end(fault)

    def _end(self, fault: ChaosFault) -> tuple[str, Act]:
        """What ends the agent, or the coordinator that it hosts."""
        own, coordinator = os.getpid(), self._hosting.pid
        if fault.name == "preempt":
            return f"SIGTERM to the agent, process {own}", lambda: os.kill(own, signal.SIGTERM)
        if fault.name == "kill-coordinator":
            if coordinator is None:
                raise ChaosImpossible("this node does not host the coordinator")
            return f"SIGKILL to the coordinator, process {coordinator}", lambda: os.kill(coordinator, signal.SIGKILL)
        if fault.name == "kill-agent":
            return f"SIGKILL to the agent, process {own}", lambda: self._die(())
        if fault.name == "lose-node":
            return f"SIGKILL to the agent, process {own}, and all that it started", lambda: self._die(
                proc.find_children(own)
            )
        raise ChaosImpossible(f"this node knows no fault {fault.name!r}: install the same version of outlast")

    def _die(self, others: Sequence[int]) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        for pid in [*others, os.getpid()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _worker(self, fault: ChaosFault) -> int:
        pids = self._pids()
        if fault.local_rank is None or fault.local_rank >= len(pids):
            raise ChaosImpossible("no such worker runs here now")
        return pids[fault.local_rank]

    def _leave(self, fault: ChaosFault) -> None:
        """Leave it where the worker looks before each step; whole, or not at all."""
        path = Path(self.directory) / str(fault.local_rank)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"what": fault.name, "kind": fault.text, "value": fault.value}))
        draft.replace(path)

    def _last(self, fault: ChaosFault) -> Act:
        if fault.name in ("cut-network", "slow-network", "clock-jump") and os.geteuid() != 0:
            raise ChaosImpossible(f"{fault.name} needs root on the node")
        peers = self._peers() if fault.name in ("cut-network", "slow-network") else []
        if fault.name in ("fill-disk", "fill-shm"):
            os.close(os.open(fault.text, os.O_RDONLY | os.O_DIRECTORY))  # raises what is wrong with it
        words = [fault.name, f"{fault.seconds}", f"{fault.value}", fault.text, *peers]
        argv = own_process.command("outlast.agent.chaos.lasting:main", str(os.getpid()), *words)
        return lambda: self._lasting.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True))

    def _peers(self) -> list[str]:
        """The addresses of the other nodes that are known here."""
        found = {place.host for place in self._others() if not place.loopback}
        peers = sorted(host for host in found if _is_address(host) and not _is_own(host))
        if not peers:
            raise ChaosImpossible("no other node is known here by an address that is not this machine's own")
        return peers


def newest_file(directory: Path) -> Path:
    """The largest of the files that were written last, below this directory. Raises ChaosImpossible."""
    if not directory.is_dir():
        raise ChaosImpossible(f"there is no directory {directory} on this node: give --path")
    files = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size > DAMAGED]
    if not files:
        raise ChaosImpossible(f"no checkpoint lies in {directory}")
    latest = max(path.stat().st_mtime for path in files)
    return max((path for path in files if latest - path.stat().st_mtime < 1), key=lambda path: path.stat().st_size)


def damage(path: Path) -> None:
    """Overwrite some bytes in its middle."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xa5" * DAMAGED)


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def _is_own(address: str) -> bool:
    import socket

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
