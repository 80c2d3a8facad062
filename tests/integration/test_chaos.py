"""`outlast chaos` against real jobs: every fault is done, noticed, named and answered; nothing is left behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hosts import Cluster, Host
from jobs import SCRIPTS, free_port, node
from processes import Process, outlast, python

CHAOTIC = SCRIPTS / "chaotic.py"
ALLOWED = "--allow-chaos"
HEARTBEAT = "--ft-rank-heartbeat-timeout=10"


class Job:
    """Two nodes of one rank each, that can be hurt. A node that ends is not started again by itself."""

    def __init__(self, stack: ExitStack, place: Path, *flags: str) -> None:
        self._stack, self._place, self._flags, self._port = stack, place, flags, free_port()
        self.nodes = {name: self.start(name) for name in ("a",)}
        self.nodes["a"].wait_for("joined the job")
        self.nodes["b"] = self.start("b")
        self.await_training()

    def start(self, name: str) -> Process:
        common = ("--nnodes=1:2", "--max-restarts=50", "--ft-use-infra-group-rank=false", "--ft-last-call=1")
        started = node(name, self._port, *common, HEARTBEAT, *self._flags, script=CHAOTIC, args=[self._place / "c"])
        return self._stack.enter_context(started)

    def await_training(self, nodes: int = 2) -> None:
        """Await steps on so many nodes."""
        while True:
            view = self.status()
            if view["members"] == nodes and view["phase"] == "running" and view["progress"] is not None:
                return
            time.sleep(0.2)

    def status(self) -> dict[str, Any]:
        asked = outlast("status", "--json", f"--endpoint=127.0.0.1:{self._port}")
        asked.wait()
        lines = [line for line in asked.lines if line.startswith("{")]
        view: dict[str, Any] = json.loads(lines[0])["view"] if lines else {"members": 0, "phase": "", "progress": None}
        return view

    def chaos(self, *args: str, code: int = 0) -> dict[str, Any]:
        """Ask for it; what came of it."""
        process = self.ask("--json", *args)
        assert process.wait() == code, process.output
        [line] = [line for line in process.lines if line.startswith("{")]
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self) -> None:
        """End it as a person does: nothing is left behind then."""
        outlast("stop", f"--endpoint=127.0.0.1:{self._port}").wait()
        for each in self.nodes.values():
            each.wait()

    def ask(self, *args: str) -> Process:
        return outlast("chaos", f"--endpoint=127.0.0.1:{self._port}", *args)


@contextmanager
def running(place: Path, *flags: str) -> Iterator[Job]:
    with ExitStack() as stack:
        job = Job(stack, place, *flags)
        yield job
        job.stop()


def test_a_killed_worker_an_exit_code_and_a_killed_coordinator_are_told_from_each_other(tmp_path: Path) -> None:
    with running(tmp_path, ALLOWED) as job:
        killed = job.chaos("kill-worker", "--rank=1")
        assert "rank 1 on node b failed (signal 9)" in killed["named"]
        assert killed["restarts"] == 1
        assert killed["noticed"] is not None
        assert killed["training"] >= killed["noticed"]
        assert killed["steps_lost"] is not None
        ended = job.chaos("exit-code", "--value=7", "--rank=0")
        assert "rank 0 on node a failed (exit code 7)" in ended["named"]
        coordinator = job.chaos("kill-coordinator")
        assert "term 2: took over" in coordinator["named"]
        assert (coordinator["restarts"], coordinator["training"]) == (0, None)  # no worker has noticed
        assert "this job may be hurt on purpose: outlast chaos --chaos-token=chaos-" in job.nodes["a"].output
    assert not list(Path(tmp_path).glob("outlast-chaos-*"))


def test_a_job_without_the_flag_and_a_wrong_token_are_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        refused = job.ask("kill-worker")
        assert refused.wait() == 1
        assert refused.lines[-1] == ("outlast chaos: error: this job allows no chaos: start it with --allow-chaos")
    with running(tmp_path / "other", ALLOWED) as job:
        refused = job.ask("kill-worker", "--chaos-token=chaos-guessed")
        assert refused.wait() == 1
        assert "error: this is not the job's chaos token" in refused.lines[-1]
        for args, text in (
            (["kill-worker", "--rank=9"], "there is no rank 9 there, only: 0, 1"),
            (["preempt", "--node=z"], "no node 'z' is here, only: a, b"),
            (["cut-network", "--node=b"], "no other node is known here by an address"),
            (["corrupt-checkpoint", f"--path={tmp_path}/gone"], "there is no directory"),
        ):
            refused = job.ask(*args)
            assert refused.wait() == 1
            assert text in refused.lines[-1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "named"),
    [("sleep", "sleep"), ("lock", ""), ("collective", ""), ("stopped", "its process is stopped")],
)
def test_a_hang_of_any_kind_is_named_and_cured(tmp_path: Path, kind: str, named: str) -> None:
    with running(tmp_path, ALLOWED) as job:
        hung = job.chaos("hang", f"--kind={kind}", "--rank=1")
        assert "rank 1 on b" in hung["named"], hung
        assert named in hung["named"]
        assert hung["restarts"] == 1
        assert hung["training"] is not None


@pytest.mark.thorough
def test_memory_gradients_cpu_and_checkpoints(tmp_path: Path) -> None:
    with running(tmp_path, ALLOWED) as job:
        memory = job.chaos("oom", "--rank=1")
        assert "memory of the host could not be allocated" in memory["named"]
        gpu = job.chaos("oom", "--kind=gpu", "--rank=1")
        assert "memory" in gpu["named"]
        assert gpu["restarts"] == 1
        gradient = job.chaos("nan-gradient", "--rank=0", "--seconds=2")
        assert gradient["noticed"] is None  # nobody looks at losses: training goes on
        job.nodes["a"].wait_for("the loss is not finite")
        busy = job.chaos("overload-cpu", "--node=b", "--seconds=2", "--value=0.5")
        assert (busy["training"], busy["restarts"], busy["over"]) == (None, 0, "")
        damaged = job.chaos("corrupt-checkpoint", "--node=a", f"--path={tmp_path / 'c'}", "--seconds=0")
        assert str(tmp_path / "c") in damaged["did"]
        verified = outlast("checkpoints", "verify", tmp_path / "c")
        assert verified.wait() != 0
        again = job.chaos("kill-worker", "--rank=0")  # from memory: the damage on disk costs nothing
        assert again["training"] is not None


@pytest.mark.thorough
def test_nodes_that_are_killed_lost_and_preempted(tmp_path: Path) -> None:
    with running(tmp_path, ALLOWED) as job:
        for fault, cost in (("kill-agent", "was lost"), ("preempt", "drain"), ("lose-node", "was lost")):
            gone = job.chaos(fault, "--node=b")
            assert cost in gone["named"], gone
            assert (gone["restarts"], gone["over"]) == (0, "")
            assert gone["training"] is not None
            job.nodes["b"].wait()
            job.nodes["b"] = job.start("b")
            job.await_training()


@pytest.mark.thorough
def test_a_plan_hits_by_its_seed_and_an_interrupted_fault_is_taken_back(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("seed: 3\nfaults:\n  - kill-worker\n  - {fault: exit-code, value: 9, after: 1}\n")
    with running(tmp_path, ALLOWED) as job:
        process = job.ask("--json", f"--plan={plan}")
        assert process.wait() == 0, process.output
        outcomes = [json.loads(line) for line in process.lines if line.startswith("{")]
        assert [each["fault"] for each in outcomes] == ["kill-worker", "exit-code"]
        assert "exit code 9" in outcomes[1]["named"]
        stopped = job.ask("hang", "--kind=stopped", "--rank=1")
        stopped.wait_for("this will make a worker hang")
        job.nodes["b"].wait_for("asks for chaos: SIGSTOP")
        stopped.signal(signal.SIGINT)
        assert stopped.wait() == 1
        job.nodes["b"].wait_for("asks for chaos: whatever lasts is taken back")


def await_free(place: Path, test: Callable[[int], bool]) -> None:
    deadline = time.monotonic() + 60
    while not test(shutil.disk_usage(place).free):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.thorough
def test_a_full_disk_is_full_for_a_while_and_nothing_is_left(tmp_path: Path, tiny_disk: Path) -> None:
    with running(tmp_path, ALLOWED) as job:
        process = job.ask("--json", "fill-disk", "--node=b", f"--path={tiny_disk}", "--seconds=8")
        await_free(tiny_disk, lambda free: free == 0)
        assert process.wait() == 0, process.output
        await_free(tiny_disk, lambda free: free > 0)


@pytest.mark.thorough
def test_a_node_that_is_cut_off_is_lost_and_comes_back_when_the_cut_is_over(tmp_path: Path) -> None:
    with Cluster(3) as cluster:
        first = cluster.hosts[0]
        nodes = [_on(host, first, tmp_path) for host in cluster.hosts]
        nodes[0].wait_for(r"generation \d+: 3 nodes")
        asked = first.start(
            [python(), "-m", "outlast", "chaos", "cut-network", "--json", "--node=host-2", "--seconds=15"],
            env={"OUTLAST_TOKEN": "the token of a chaos test"},
        )
        assert asked.wait() == 0, asked.output
        [line] = [line for line in asked.lines if line.startswith("{")]
        outcome = json.loads(line)
        assert "host-2" in outcome["named"]
        assert outcome["restarts"] == 0
        nodes[0].wait_for(r"generation \d+: 2 nodes")
        nodes[0].wait_for(r"generation \d+: 3 nodes")  # the rules are gone
        rules = cluster.hosts[2].start(["iptables", "-S"])
        rules.wait()
        assert "DROP" not in rules.output


def _on(host: Host, first: Host, place: Path) -> Process:
    flags = ["--nnodes=2:3", "--max-restarts=5", "--allow-chaos", "--ft-use-infra-group-rank=false"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:29400", f"--ft-node-name={host.name}"]
    command = [python(), "-m", "outlast", "run", *flags, *meeting, CHAOTIC, place / "c"]
    return host.start(command, env={"OUTLAST_TOKEN": "the token of a chaos test", "GLOO_SOCKET_IFNAME": "eth0"})
