"""Nodes that are bad for real: who is named by a check, in how many rounds, who replaces it, who is accused wrongly.

Hosts are network namespaces (as root), with two processes each, the CPU accelerator and gloo. What goes wrong:

    overloaded   the host's processes share a tenth of a CPU, or get a fifth of what others get (control groups)
    killed       its check's processes are killed with SIGKILL, each time that they are started
    cut          it does not reach the other nodes
    narrow       its network has 100 Mbit/s
    healthy      nothing, N times over; with --busy, two processes per core burn the CPU beside it

Four warm nodes are checked again and again, by what an agent runs (checked_node.py) and the core's verdicts. With
--jobs each fault also comes to a job of four nodes and two spares (`outlast run --network-check --exclude-straggler`),
in which the bad one has to be replaced. One that is cut off still reaches the coordinator there; one that is unplugged
does not.

    python benchmarks/node_faults.py [--rounds 3] [--only overloaded,cut] [--jobs 1] [--healthy 50] [--busy] [--quick]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from outlast.core.node_checks.checks import Examination, Fitness
from outlast.core.node_checks.table import table
from outlast.protocol.checks import Findings, Probe

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hosts import Cluster, Host
from processes import Process

HERE = Path(__file__).parent
PORT = 29400
PATIENCE = 600.0
LIMIT = 60.0  # seconds: the default of --node-check-timeout
NODES, SPARES, NPROC = 4, 2, 2
ENV = {"OUTLAST_TOKEN": "a token for this benchmark", "OMP_NUM_THREADS": "1"}
SCRIPT = "import os; print('rank', os.environ['RANK'], 'ran on', os.uname().nodename)"
RATE = "100mbit"
PERIOD, QUOTA = 10_000, 1_000  # microseconds: short, for a product is not to fit into a whole period's quota
SLOWER = 5  # times less of the CPU than others get, where they want more than there is
CHECK = b"outlast.checks.process"  # in the title of a check's processes
GROUPS = Path("/sys/fs/cgroup")
ROW = re.compile(r"(host-\d+) +(good|faulty|slow|aside|lost)\b(.*)")
TOTAL = re.compile(r"\d+ nodes? checked in (\d+) rounds?: ")

Fault = Callable[[Host, list[Host]], AbstractContextManager[None]]


# -- what goes wrong


@contextmanager
def overloaded(host: Host, _: list[Host]) -> Iterator[None]:
    """All that runs on the host shares a tenth of a CPU, or a fifth of what others get, where that is less."""
    all_of_them = GROUPS / "cpu" if (GROUPS / "cpu").is_dir() else GROUPS  # version 1, or 2
    group = all_of_them / host.namespace
    group.mkdir()
    try:
        weight = 1024 / 1.25 ** os.getpriority(os.PRIO_PROCESS, 0) * NPROC / SLOWER
        if all_of_them == GROUPS:
            (group / "cpu.max").write_text(f"{QUOTA} {PERIOD}")
            (group / "cpu.weight").write_text(str(max(1, round(weight / 1024 * 100))))
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA))
            (group / "cpu.shares").write_text(str(max(2, round(weight))))
        _move(host, group)
        yield
    finally:
        _move(host, all_of_them)
        group.rmdir()


def _move(host: Host, group: Path) -> None:
    while here := set(host.processes()) - {int(pid) for pid in (group / "cgroup.procs").read_text().split()}:
        for pid in here:
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))


@contextmanager
def killed(host: Host, _: list[Host]) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            for pid in host.processes():
                with suppress(FileNotFoundError, ProcessLookupError):
                    if CHECK in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def cut(host: Host, others: list[Host]) -> Iterator[None]:
    first, *rest = others
    for other in rest:
        host.cut_from(other)
    host.cut_all_but(PORT, first)
    yield
    host.mend()
    host.heal()


@contextmanager
def unplugged(host: Host, _: list[Host]) -> Iterator[None]:
    host.cut()
    yield
    host.heal()


@contextmanager
def narrow(host: Host, _: list[Host]) -> Iterator[None]:
    def shape(*what: str) -> None:
        for namespace, device in host.cable:
            subprocess.run(["tc", "-netns", namespace, "qdisc", what[0], "dev", device, "root", *what[1:]], check=True)

    shape("add", "tbf", "rate", RATE, "burst", "64kb", "latency", "100ms")
    yield
    shape("del")


FAULTS: dict[str, tuple[Fault, Fitness]] = {
    "overloaded": (overloaded, Fitness.SLOW),
    "killed": (killed, Fitness.FAULTY),
    "cut": (cut, Fitness.FAULTY),
    "narrow": (narrow, Fitness.SLOW),
}
IN_JOBS = {**FAULTS, "unplugged": (unplugged, Fitness.LOST)}


class Seen(msgspec.Struct):
    """How one check went."""

    verdicts: dict[str, str]
    rounds: int
    seconds: float
    log: str
    replaced_by: str = ""

    def is_right(self, bad: str = "", expected: str = "") -> bool:
        return self.verdicts.get(bad, "") == expected and not self.accused(bad)

    def accused(self, bad: str = "") -> list[str]:
        """Who was said something bad of, though nothing was wrong with it."""
        return [f"{name} {said}" for name, said in self.verdicts.items() if said != "good" and name != bad]


# -- warm nodes


class Warm:
    """Nodes that are warm, checked again and again."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self._hosts = {host.name: host for host in cluster.hosts}
        self._chance = random.Random(seed)
        self._number = 0
        self._nodes: dict[str, Process] = {}
        self._read: dict[str, int] = dict.fromkeys(self._hosts, 0)
        for host in cluster.hosts:
            argv = [sys.executable, HERE / "checked_node.py", str(NPROC)]
            self._nodes[host.name] = host.start(argv, env=ENV, stdin=subprocess.PIPE)
        for node in self._nodes.values():
            node.wait_for("^ready", PATIENCE)

    def check(self) -> Seen:
        names = self._chance.sample(list(self._hosts), len(self._hosts))
        check = Examination(self._number + 1, names, names={name: name for name in names}, limit=LIMIT)
        began = time.monotonic()
        while (groups := check.advance(time.monotonic())) is not None:
            for group in groups:
                self._probe(group, check.number)
            self._hear(check)
        self._number = check.number
        result = check.result()
        verdicts = {name: row.standing.value for name, row in result.rows.items()}
        return Seen(verdicts, result.rounds, time.monotonic() - began, table(result))

    def _probe(self, group: Sequence[str], number: int) -> None:
        first = self._hosts[group[0]]
        for place, name in enumerate(group):
            # A port that the host has not used for a while: each is a network of its own.
            port = 20_000 + number % 10_000
            probe = Probe(1, number, place * NPROC, NPROC * len(group), first.address, port, LIMIT)
            stdin = self._nodes[name].stdin
            assert stdin is not None
            stdin.write(msgspec.json.encode(probe) + b"\n")
            stdin.flush()

    def _hear(self, check: Examination) -> None:
        """What nodes have said since, or a moment's pause."""
        heard = False
        for name, node in self._nodes.items():
            new = node.lines[self._read[name] :]
            self._read[name] += len(new)
            for line in new:
                if line.startswith("found "):
                    heard = True
                    check.take(name, msgspec.json.decode(line.removeprefix("found "), type=Findings), time.monotonic())
        if not heard:
            time.sleep(0.01)


# -- a job


def job(name: str, number: int, place: Path) -> tuple[bool, Seen, str]:
    """One of four nodes is bad, and two spares come. Whether it went as it should, how, and which host was bad."""
    fault, expected = IN_JOBS[name]
    script = place / "train.py"
    script.write_text(SCRIPT)
    with Cluster(NODES + SPARES) as cluster, ExitStack() as stack:
        hosts = cluster.hosts
        bad = hosts[1 + number % (NODES - 1)]
        last = next(host for host in hosts[1:NODES][::-1] if host is not bad)
        agents = {hosts[0]: start(hosts[0], hosts[0], script)}
        agents[hosts[0]].wait_for("joined the job", PATIENCE)
        for host in hosts[1:NODES]:
            if host is not last:
                agents[host] = start(host, hosts[0], script)
        for agent in agents.values():
            agent.wait_for("zygote is ready", PATIENCE, anywhere=True)
        stack.enter_context(fault(bad, cluster.others(bad)))
        began = time.monotonic()
        for host in (last, *hosts[NODES:]):
            agents[host] = start(host, hosts[0], script)
        fit = [agent for host, agent in agents.items() if host is not bad]
        ended = [agent.wait(PATIENCE) for agent in fit]
        seconds, log = time.monotonic() - began, agents[hosts[0]].output
        ran = {line.split()[-1] for agent in fit for line in agent.lines if "ran on" in line}
        rounds = [int(match[1]) for match in TOTAL.finditer(log)]
        verdicts = {match[1]: match[2] for match in ROW.finditer(log)}
        instead = ", ".join(sorted(ran - {host.name for host in hosts[:NODES]}))
        seen = Seen(verdicts, rounds[0] if rounds else 0, seconds, log, instead)
        right = not any(ended) and len(ran) == NODES and bad.name not in ran
        return right and seen.is_right(bad.name, expected.value), seen, bad.name


def start(host: Host, first: Host, script: Path) -> Process:
    flags = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first.name}:{PORT}", f"--nnodes={NODES}"]
    flags += [f"--nproc-per-node={NPROC}", "--accelerator=cpu", "--network-check", "--exclude-straggler"]
    flags += ["--ft-use-infra-group-rank=false", "--ft-log-level=debug", "--ft-node-timeout=20"]
    return host.start([sys.executable, "-m", "outlast", "run", *flags, script], env=ENV)


# -- all of it


class Report:
    """Prints how each check went, and all of them as a table in the end."""

    def __init__(self) -> None:
        self._lines = ["| | as it should be | rounds | seconds |", "|---|---|---|---|"]
        self._runs: dict[str, list[tuple[bool, Seen]]] = {}

    def add(self, what: str, right: bool, seen: Seen, bad: str = "") -> None:
        runs = self._runs.setdefault(what, [])
        runs.append((right, seen))
        said = f"{bad} {seen.verdicts.get(bad, 'not named')}" if bad else "all good" if right else ""
        instead = f", replaced by {seen.replaced_by}" if seen.replaced_by else ""
        load = f"load {os.getloadavg()[0]:.0f}"
        mark = "" if right else f"  WRONG, accused: {seen.accused(bad)}\n{seen.log}"
        print(
            f"{what} {len(runs)}: {said} in {seen.rounds} rounds{instead}, {seen.seconds:.1f} s, {load}{mark}",
            flush=True,
        )

    def __str__(self) -> str:
        lines = list(self._lines)
        for what, runs in self._runs.items():
            seconds = [seen.seconds for _, seen in runs]
            rounds = [seen.rounds for _, seen in runs]
            counted = ", ".join(f"{each} ({rounds.count(each)} times)" for each in sorted(set(rounds)))
            spread = f"{statistics.median(seconds):.1f} ({min(seconds):.1f}–{max(seconds):.1f})"
            lines.append(f"| {what} | {sum(right for right, _ in runs)} of {len(runs)} | {counted} | {spread} |")
        accused = sum(len(seen.accused()) for what, runs in self._runs.items() for _, seen in runs if "healthy" in what)
        return "\n".join([*lines, "", f"healthy nodes accused in a healthy cluster: {accused}"])


@contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that never rest, for as long as this one lives."""
    burn = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    burners = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def check_warm_nodes(report: Report, faults: Sequence[str], args: argparse.Namespace) -> None:
    with Cluster(NODES) as cluster:
        warm = Warm(cluster, args.seed)
        for name in faults:
            fault, expected = FAULTS[name]
            for number in range(args.rounds):
                bad = cluster.hosts[number % NODES]
                with fault(bad, cluster.others(bad)):
                    seen = warm.check()
                report.add(name, seen.is_right(bad.name, expected.value), seen, bad.name)
        with burning(2 * (os.cpu_count() or 1)) if args.busy else ExitStack():
            for _ in range(args.healthy):
                seen = warm.check()
                report.add("healthy, busy" if args.busy else "healthy", not seen.accused(), seen)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3, help="of each fault")
    parser.add_argument("--only", default=",".join(IN_JOBS), help="which faults, with commas")
    parser.add_argument("--jobs", type=int, default=0, help="how often each fault comes to a job with spares")
    parser.add_argument("--healthy", type=int, default=10, help="how often a healthy cluster is checked")
    parser.add_argument("--busy", action="store_true", help="meanwhile others want the CPU all the time")
    parser.add_argument("--seed", type=int, default=1, help="of who is tried with whom")
    parser.add_argument("--quick", action="store_true", help="each once")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.healthy = 1, 1
    faults = [name for name in args.only.split(",") if name]
    if unknown := set(faults) - set(IN_JOBS):
        parser.error(f"--only: no such fault: {', '.join(sorted(unknown))}; there are {', '.join(IN_JOBS)}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {NODES} nodes of {NPROC} processes\n", flush=True)
    report = Report()
    if args.healthy or args.rounds:
        check_warm_nodes(report, [name for name in faults if name in FAULTS], args)
    with tempfile.TemporaryDirectory() as directory:
        for name in faults if args.jobs else ():
            for number in range(args.jobs):
                right, seen, bad = job(name, number, Path(directory))
                report.add(f"{name}, in a job", right, seen, bad)
    print(f"\n{report}")


if __name__ == "__main__":
    main()
