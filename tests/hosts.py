"""Hosts for tests: network namespaces around a switch, with names, memory and temporary files of their own.

The switch is a bridge in a namespace of its own. Nothing joins it to the machine's network: what hosts say
stays among them, the machine's addresses and firewall do not matter, and clusters cannot collide.

Neighbours know each other's hardware addresses from the start, so that there is no ARP that could turn
silence into "no route to host", and a cable that is put back works at once.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from processes import Process, alive, in_namespace, kill_all

NAMESPACES = Path("/run/netns")
ETC = Path("/etc/netns")  # what lies in ETC/<namespace> takes the place of /etc there: see ip-netns(8)
SHM = Path("/dev/shm")

# `ip netns exec` has made a mount namespace already; each step is an exec, so that the process that was
# started is the command itself and gets its signals.
BOOT = 'echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /dev/shm && shift 2 && exec "$@"'

KEPT = ("places", "last-logs")  # runtime files that stay: of all jobs, and empty; of the newest one
NOBODY = "02:00:00:00:ff:ff"  # a hardware address that no host answers to

_counter = itertools.count(1)


class Host:
    """One host of a cluster. It is on from the start; `kill` is a power loss, the next `start` turns it on."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        self.name = f"host-{index}"
        self.address = f"{cluster.network}.{index + 1}"
        self.namespace = f"{cluster.name}h{index}"
        self.shm = SHM / self.namespace  # what is /dev/shm on the host
        self.tmp = Path(tempfile.gettempdir()) / self.namespace  # its TMPDIR; the rest of /tmp is shared
        self.on = False
        self._cluster = cluster
        self._mac = f"02:00:00:00:00:{index + 1:02x}"
        self._port = f"h{index}"  # the switch's end of the cable
        self._processes: list[Process] = []

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} ({self.namespace})>"

    @property
    def cable(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Both ends of its cable, each as namespace and device."""
        return (self.namespace, "eth0"), (self._cluster.switch, self._port)

    def start(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str | None] | None = None, **popen: Any
    ) -> Process:
        """Start a command on the host, which is turned on if it was killed. Arguments as of `Process`."""
        if not self.on:
            self.power_on()
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        boot = ["sh", "-c", BOOT, "sh", self.name, self.shm, *argv]
        own = {"HOSTNAME": self.name, "TMPDIR": str(self.tmp), **(env or {})}
        title = f"{self.name}: {' '.join(map(str, argv))}"
        process = Process([*enter, *boot], env=own, title=title, **popen)
        self._processes.append(process)
        return process

    def processes(self) -> list[int]:
        """The process ids of all that runs on the host."""
        # A command that was just started may not be in the namespace yet.
        starting = [process.pid for process in self._processes if process.running]
        return sorted({*starting, *in_namespace("net", NAMESPACES / self.namespace)})

    def cut(self) -> None:
        """Pull the network cable: silence both ways, and no connection is told."""
        ip(f"link set {self._port} down", on=self._cluster.switch)

    def cut_to(self, other: Host) -> None:
        """Lose what this host sends to `other`, silently; what `other` sends still arrives."""
        self._aim(other, NOBODY)

    def cut_from(self, other: Host) -> None:
        """Lose what this host and `other` send each other, both ways."""
        self.cut_to(other)
        other.cut_to(self)

    def cut_all_but(self, port: int, other: Host) -> None:
        """Lose what this host sends to `other`, silently, but for TCP from and to this port."""
        ip(
            f"rule add priority 10 to {other.address} ipproto tcp dport {port} lookup main",
            f"rule add priority 11 to {other.address} ipproto tcp sport {port} lookup main",
            f"rule add priority 12 to {other.address} blackhole",
            on=self.namespace,
        )

    def mend(self) -> None:
        """Undo `cut_all_but`."""
        ip("rule del priority 10", "rule del priority 11", "rule del priority 12", on=self.namespace)

    def heal(self) -> None:
        """Put the cable back, and undo every cut between this host and another; turn it on if it is off."""
        if not self.on:
            self.power_on()
            return
        ip(f"link set {self._port} up", on=self._cluster.switch)
        for other in self._cluster.others(self):
            if other.on:
                self._aim(other, other._mac)
                other._aim(self, self._mac)

    def kill(self) -> None:
        """Power loss: the network first, so that nobody gets a goodbye, then every process, then memory.

        The sockets go with the namespace: nothing of the past is sent when the host comes back.
        """
        if self.on:
            self.cut()
            self.end_processes()
            # It would go with the namespace, but in the kernel's own time: the host may come back before.
            ip(f"link delete {self._port}", on=self._cluster.switch)
            self.remove()

    def power_on(self) -> None:
        """Make the host and its cable, as new and with no cuts."""
        cluster = self._cluster
        self.shm.mkdir()
        self.shm.chmod(0o1777)
        self.tmp.mkdir()
        etc = ETC / self.namespace
        etc.mkdir(parents=True)
        names = "".join(f"{host.address} {host.name}\n" for host in cluster.hosts)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
        ip(f"netns add {self.namespace}")
        self.on = True
        ip(
            f"link add {self._port} type veth peer name eth0 netns {self.namespace}",
            f"link set {self._port} master bridge addrgenmode none",
            on=cluster.switch,
        )
        ip(
            "link set lo up",
            f"link set eth0 address {self._mac} addrgenmode none up",
            f"addr add {self.address}/24 dev eth0",
            on=self.namespace,
        )
        self.heal()

    def end_processes(self) -> None:
        """SIGKILL all that runs on the host, and await its end."""
        kill_all(self.processes)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def remove(self) -> None:
        """Remove all of the host but the switch's end of the cable, however much of it was made."""
        self.end_processes()
        remove(self.namespace)
        shutil.rmtree(self.tmp, ignore_errors=True)
        self.on = False

    def leftovers(self) -> list[Path]:
        """Shared memory and runtime files that nobody is left to use or remove; none while something runs."""
        if self.processes():
            return []
        runtime = self.tmp / f"outlast-{os.getuid()}"
        return sorted([*self.shm.glob("*"), *(path for path in runtime.glob("*") if path.name not in KEPT)])

    def _aim(self, other: Host, mac: str) -> None:
        ip(f"neigh replace {other.address} lladdr {mac} dev eth0 nud permanent", on=self.namespace)


class Cluster:
    """`size` hosts on one switch, from `with` to its end; then nothing of them is left."""

    def __init__(self, size: int) -> None:
        number = next(_counter)
        self.name = f"ol{os.getpid()}x{number}"
        self.network = f"10.{os.getpid() % 254 + 1}.{number % 256}"
        self.switch = f"{self.name}s"
        self.hosts = [Host(self, index) for index in range(size)]

    def others(self, host: Host) -> list[Host]:
        """The hosts but this one."""
        return [other for other in self.hosts if other is not host]

    def __enter__(self) -> Cluster:
        require()
        remove_stale()
        remove(self.name)  # of a dead process that had our process id
        try:
            ip(f"netns add {self.switch}")
            ip(
                "link add bridge type bridge mcast_snooping 0",
                "link set bridge addrgenmode none up",
                on=self.switch,
            )
            for host in self.hosts:
                host.power_on()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything on the hosts and remove them, however much of them was made."""
        for host in self.hosts:
            host.remove()
        remove(self.name)


def require() -> None:
    """Refuse with the reason where hosts cannot be made. Not a skip: unseen, these tests would never run."""
    if os.geteuid() != 0:
        raise RuntimeError("tests with hosts make network namespaces: run them as root")
    missing = [command for command in ("ip", "unshare", "mount") if not shutil.which(command)]
    if missing:
        raise RuntimeError(f"tests with hosts need {', '.join(missing)}: run scripts/install-system-packages")


def ip(*commands: str, on: str | None = None) -> None:
    """Carry out `ip` commands, on the namespace `on`."""
    where = ["-netns", on] if on else []
    result = subprocess.run(
        ["ip", *where, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False
    )
    if result.returncode:
        hint = ": network namespaces need a privileged container" if "not permitted" in result.stderr else ""
        raise RuntimeError(f"ip {' '.join(where)}: {result.stderr.strip()}{hint} (of {'; '.join(commands)})")


def remove(name: str) -> None:
    """Remove all of the cluster, or of the one namespace, that has this name, processes included."""
    pattern = re.compile(re.escape(name) + r"(h\d+|s)?")
    for namespace in sorted(entries(NAMESPACES)):
        if pattern.fullmatch(namespace):
            kill_all(partial(in_namespace, "net", NAMESPACES / namespace))
            try:
                ip(f"netns delete {namespace}")
            except RuntimeError:
                if namespace in entries(NAMESPACES):  # else another run was quicker to remove what is stale
                    raise
    for place in (ETC, SHM):
        for entry in entries(place):
            if pattern.fullmatch(entry):
                shutil.rmtree(place / entry, ignore_errors=True)


def remove_stale() -> None:
    """Remove what test runs left that were killed before they could."""
    for name in {name for place in (NAMESPACES, ETC, SHM) for name in entries(place)}:
        maker = made_by(name)
        if maker and not alive(maker):
            remove(name)


def made_by(name: str) -> int | None:
    """The process that made the cluster that something of this name is part of; None: no cluster's name."""
    match = re.fullmatch(r"ol(\d+)x\d+(h\d+|s)", name)
    return int(match[1]) if match else None


def entries(directory: Path) -> list[str]:
    """The names in a directory; none if it is not there."""
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
