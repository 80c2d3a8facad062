"""A real Slurm for tests: slurmctld and several slurmd, each on a host of its own (a network namespace)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosts import BOOT, Cluster, Host
from processes import PATIENCE, TEST_ID, Process, arguments

SLURMD = "/usr/sbin/slurmd"
NEEDED = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
# cred_expire is also how long a requeued job waits; the time-outs are short so that tests see them pass.
CONF = """\
ClusterName=test
SlurmctldHost=host-0({control})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=6817
SlurmdPort=6818
SlurmctldPidFile={place}/slurmctld.pid
SlurmctldLogFile={place}/slurmctld.log
StateSaveLocation={place}/state
SlurmdPidFile={place}/slurmd.%n.pid
SlurmdLogFile={place}/slurmd.%n.log
SlurmdSpoolDir={place}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
SlurmctldTimeout=10
SlurmdTimeout={slurmd_timeout}
TCPTimeout=2
InactiveLimit=0
KillWait=5
MinJobAge=300
OverTimeLimit=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{site}
{nodes}
PartitionName=work Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


class SlurmCluster:
    """Login host 0 with slurmctld, and compute hosts with slurmd. `home` is a directory that all of them see."""

    def __init__(self, cluster: Cluster, place: Path, *, slurmd_timeout: int = 10, site: str = "") -> None:
        missing = [name for name in NEEDED if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
        if missing:
            raise RuntimeError(f"tests with Slurm need {', '.join(missing)}: run scripts/install-slurm")
        self.login, *self.nodes = cluster.hosts
        self.place = place
        self.home = place / "home"
        self.home.mkdir(mode=0o700)
        (place / "state").mkdir()
        lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs=2 State=UNKNOWN" for node in self.nodes]
        self.conf = place / "slurm.conf"
        self.conf.write_text(
            CONF.format(
                control=self.login.address,
                place=place,
                nodes="\n".join(lines),
                slurmd_timeout=slurmd_timeout,
                site=site,
            )
        )
        # Hosts have a /sys of their own, without control groups: do not look for them.
        (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        self.env = {"SLURM_CONF": str(self.conf), "HOME": str(self.home)}
        self.outputs: list[Path] = []

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        key = self.place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key-file": key, "socket": self.place / "munge.socket"}
        files |= {f"{name}-file": self.place / f"munged.{name}" for name in ("pid", "log", "seed")}
        flags = [f"--{name}={path}" for name, path in files.items()]
        self._daemon(self.login, "/usr/sbin/munged", "--foreground", "--force", *flags)
        self._until(files["socket"].exists, "munged")
        self._daemon(self.login, "/usr/sbin/slurmctld", "-D", "-c")
        for node in self.nodes:
            self.start_node(node)
        self.until_idle(*self.nodes)

    def start_node(self, node: Host) -> None:
        """Start slurmd on a node; one that lost its power is turned on."""
        (self.place / f"spool.{node.name}").mkdir(exist_ok=True)
        if not node.on:
            node.power_on()
        self._daemon(node, SLURMD, "-D", "-N", node.name)

    def _daemon(self, host: Host, *argv: str) -> None:
        """Start what lives as long as the cluster: no child of the test that starts it, and not its to end."""
        enter = ["setsid", "--fork", "ip", "netns", "exec", host.namespace, "unshare", "--uts"]
        boot = ["sh", "-c", BOOT, "sh", host.name, str(host.shm), *argv]
        own = {"HOSTNAME": host.name, "TMPDIR": str(host.tmp), **self.env}
        environ = {name: value for name, value in {**os.environ, **own}.items() if name != TEST_ID}
        with (self.place / "daemons.log").open("ab") as log:
            subprocess.run([*enter, *boot], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)

    def until_idle(self, *nodes: Host) -> None:
        """Wait until Slurm can use these nodes, and nobody does."""
        for node in nodes:
            self._until(lambda node=node: self.state(node) == "idle", f"node {node.name} is not idle")

    def state(self, node: Host) -> str:
        """What Slurm makes of a node: idle, alloc, down*, …"""
        return self.ask("sinfo", "-h", "-o", "%t", "-p", "work", "-n", node.name).strip()

    def command(self, *argv: str | Path, env: Mapping[str, str | None] | None = None, **popen: Any) -> Process:
        """Start a command on the login host."""
        return self.login.start(argv, env={**self.env, **(env or {})}, **popen)

    def ask(self, *argv: str | Path) -> str:
        """What a command on the login host prints; fails if it fails."""
        process = self.command(*argv)
        code = process.wait()
        assert code == 0, f"{argv}: {process.output}"
        return process.output

    def sbatch(self, *argv: str | Path) -> BatchJob:
        """Submit a job; its output goes to a file of its own."""
        out = self.home / f"out-{len(self.outputs)}.log"
        self.outputs.append(out)
        said = self.ask("sbatch", "--parsable", f"--output={out}", "--open-mode=append", *argv)
        return BatchJob(self, said.split()[-1].partition(";")[0], out)

    def clean(self) -> None:
        """End all jobs, and wait until all nodes are free. Nodes that are down come back."""
        self.ask("scancel", "--signal=KILL", "--full", "--user=root")
        self.ask("scancel", "--user=root")
        for node in self.nodes:
            if not any(arguments(pid)[:1] == [SLURMD.encode()] for pid in node.processes()):
                self.start_node(node)
            node.heal()
            state = self.state(node)
            if "drain" in state or "drng" in state or "down" in state:
                self.ask("scontrol", "update", f"nodename={node.name}", "state=resume")
        self._until(lambda: not self.ask("squeue", "-h", "-o", "%i").strip(), "jobs are left")
        self.until_idle(*self.nodes)

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} after {PATIENCE:g} s\n{self.log()}")
            time.sleep(0.1)

    def log(self) -> str:
        """The last lines of slurmctld's log."""
        path = self.place / "slurmctld.log"
        return "\n".join(path.read_text().splitlines()[-40:]) if path.exists() else ""


class BatchJob:
    """A job in the queue, and what it has written."""

    def __init__(self, cluster: SlurmCluster, number: str, out: Path) -> None:
        self.cluster = cluster
        self.number = number
        self.out = out
        self._seen = 0

    @property
    def output(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def wait_for(self, pattern: str, *, timeout: float = PATIENCE, anywhere: bool = False) -> re.Match[str]:
        """Await a line after the one that the last call found (or `anywhere`)."""
        deadline, regex = time.monotonic() + timeout, re.compile(pattern)
        while time.monotonic() < deadline:
            lines = self.output.splitlines()
            for at, line in enumerate(lines):
                if (anywhere or at >= self._seen) and (found := regex.search(line)):
                    self._seen = self._seen if anywhere else at + 1
                    return found
            time.sleep(0.05)
        raise AssertionError(f"no line {pattern!r} within {timeout:g} s; job {self.facts()}\n{self.output[-6000:]}")

    def facts(self) -> dict[str, str]:
        """What Slurm says of the job."""
        said = self.cluster.ask("scontrol", "-o", "show", "job", self.number)
        return dict(re.findall(r"(\w+)=(\S*)", said))

    def wait(self, *states: str, timeout: float = PATIENCE) -> str:
        """Await one of these states, by default an end, and return it."""
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        deadline = time.monotonic() + timeout
        while (state := self.facts()["JobState"]) not in wanted:
            if time.monotonic() > deadline:
                raise AssertionError(f"job {self.number} is {state} after {timeout:g} s\n{self.output[-6000:]}")
            time.sleep(0.2)
        return state


@contextmanager
def slurm(place: Path, size: int, **options: Any) -> Iterator[SlurmCluster]:
    """A cluster of so many compute nodes, until the end of the block."""
    with Cluster(size + 1) as cluster:
        made = SlurmCluster(cluster, place, **options)
        made.start()
        yield made
    subprocess.run(["rm", "-rf", place / "state"], check=True)
