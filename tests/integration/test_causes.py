"""Real scripts that really fail: the cause is named, and what is done about it is right."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobs import SCRIPTS, errors, free_port, job
from jobs import node as start_node
from outlast.ledger.summary import ledger, summarize
from outlast.observe.faults import why_paragraph
from outlast.reports.sources import recorded
from outlast.verdict import Verdict
from processes import Process

FAULTS = SCRIPTS / "faults.py"
NO_REQUEUE = 93
CGROUP = Path("/sys/fs/cgroup/memory")
# Each with how often it is tried, of up to two restarts: once where nothing can help, twice where nothing should.
CAUSES = [
    ("missing_module", "import-error", 2),
    ("missing_file", "missing-file", 2),
    ("raises", "exception", 3),
    ("too_many_files", "open-files", 3),
    ("no_memory", "allocation-failed", 3),
    ("segfault", "segfault", 3),
    ("bus_error", "bus-error", 3),
    ("port_in_use", "port-in-use", 3),
    ("unknown_host", "name-resolution", 3),
    ("nan_loss", "nan-loss", 3),
    ("corrupt", "corrupt-data", 3),
    ("stale", "stale-file-handle", 3),
    ("ends_itself SIGKILL", "killed", 3),  # and not a word of memory
    ("ends_itself SIGTERM", "preempted", 3),
    ("ends_itself SIGABRT", "aborted", 3),
    ("ends_itself SIGILL", "illegal-instruction", 2),
    ("ends_itself SIGFPE", "arithmetic-error", 3),
    ("leaves 14", "node-fault", 2),
    ("leaves 3", "unknown", 3),
]


def fail(
    place: Path, *args: str | Path, flags: tuple[str, ...] = (), script: Path = FAULTS, code: int = 1, **options: Any
) -> Process:
    """Run a job to its bitter end."""
    logs = (f"--log-dir={place / 'logs'}", "--redirects=3", f"--ft-verdict={place / 'verdict.json'}")
    logs += (f"--ft-events={place / 'events.jsonl'}",)
    with job("--ft-warm-start=false", *logs, *flags, script=script, args=args, **options) as process:
        assert process.wait(120) == code, process.output
    return process


def verdict(place: Path) -> Verdict:
    return msgspec.json.decode((place / "verdict.json").read_bytes(), type=Verdict)


def why(place: Path) -> str:
    """What `outlast why` says of the job's last fault."""
    told, _ = recorded([place / "events.jsonl"])
    return why_paragraph(told.events, summarize(ledger(told.events)))


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of its own, of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()

    def unmount() -> None:
        subprocess.run(["umount", str(place)], stderr=subprocess.DEVNULL)

    def mount(options: str) -> Path:
        unmount()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=256k,{options}", "tmpfs", str(place)])
        if made.returncode:
            pytest.skip("no file system can be mounted here")
        return place

    yield mount
    unmount()


@pytest.mark.parametrize(("kind", "cause", "generations"), CAUSES)
def test_the_cause_is_named_and_tried_as_often_as_it_is_worth(
    kind: str, cause: str, generations: int, tmp_path: Path
) -> None:
    would_fail_again = cause in ("import-error", "missing-file")  # also on other nodes
    code = NO_REQUEUE if would_fail_again else 1
    process = fail(tmp_path, *kind.split(), flags=("--max-restarts=2",), code=code)
    found = verdict(tmp_path)
    assert (found.cause.name, found.first.rank) == (cause, 0)
    assert f"{generations} generations" in process.output
    assert len(found.tried) == generations - 1
    assert f"cause:        {found.cause.title}" in process.output
    assert f"rank 0 on node {found.first.node} failed" in why(tmp_path)
    assert f"Evidence: {found.cause.title}" in why(tmp_path)
    if cause == "node-fault":
        assert "stays, for without it there are fewer than 1" in process.output


def test_what_is_no_python_is_not_tried_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def train(:\n")
    process = fail(tmp_path, script=script, flags=("--max-restarts=3",), code=NO_REQUEUE)
    assert verdict(tmp_path).cause.name == "syntax-error"
    (line,) = errors(process)
    assert line.endswith("the script is not valid Python (syntax-error); no restart, for it could not help")
    assert "1 generation, 0 restarts" in process.output


def test_a_disk_that_is_full_and_one_that_cannot_be_written_to(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    fail(tmp_path, "disk_full", tiny("rw"))
    found = verdict(tmp_path)
    assert (found.cause.name, found.cause.domain) == ("disk-full", "storage")
    assert found.first.exception == "OSError"
    fail(tmp_path, "read_only", tiny("ro"))
    assert verdict(tmp_path).cause.name == "read-only"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not")
def test_a_file_that_is_not_for_everybody(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    fail(tmp_path, "permission", secret)
    assert verdict(tmp_path).cause.name == "permission"


@pytest.mark.parametrize(("kind", "cause"), [("shapes", "shape-mismatch"), ("loader_killed", "data-loader-worker")])
def test_what_torch_says(kind: str, cause: str, tmp_path: Path) -> None:
    fail(tmp_path, kind)
    found = verdict(tmp_path)
    assert found.cause.name == cause
    assert found.first.exception == "RuntimeError"
    assert found.first.traceback.startswith("Traceback (most recent call last):")


def test_the_rank_that_failed_of_itself_is_the_root_and_the_one_that_waited_for_it_the_cascade(tmp_path: Path) -> None:
    fail(tmp_path, "peer_lost", flags=("--nproc-per-node=2", "--ft-restart-grace=5"))
    found = verdict(tmp_path)
    assert (found.first.rank, found.first.exception) == (1, "ZeroDivisionError")
    assert [each.rank for each in found.followed] == [0]
    assert found.followed[0].cause in ("gloo-error", "peer-lost")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 200 MB, below our own."""
    own = next(
        (line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if "memory" in line), ""
    )
    place = CGROUP / own.lstrip("/") / f"outlast-test-{uuid.uuid4().hex[:8]}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(200 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield place
    place.rmdir()


def test_a_worker_that_the_oom_killer_took_is_told_from_one_that_was_merely_killed(
    tmp_path: Path, small_cgroup: Path
) -> None:
    def enter() -> None:
        (small_cgroup / "cgroup.procs").write_text(str(os.getpid()))

    process = fail(tmp_path, "eats_memory", flags=("--max-restarts=1",), preexec_fn=enter)
    found = verdict(tmp_path)
    assert (found.cause.name, found.first.exit_code) == ("host-out-of-memory", -9)
    assert any("oom_kill in the memory cgroup rose by 1" in line for line in found.first.kernel), process.output


def test_a_signature_of_the_users_own(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "- {name: mine, title: my own trouble, role: root, domain: data, outlook: cannot help, explain: …,"
        " patterns: ['of the script']}"
    )
    fail(tmp_path, "raises", flags=(f"--ft-signatures={own}",))
    assert verdict(tmp_path).cause.name == "mine"


def test_without_log_files_the_exception_is_known_all_the_same() -> None:
    with job("--ft-warm-start=false", script=FAULTS, args=["missing_file"]) as process:
        assert process.wait() == 1
    assert "failed first: rank 0" in process.output
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'" in process.output
    assert "cause:        a file is missing (missing-file; data; a retry cannot help)" in process.output
    assert "To enable traceback see" in process.output  # torchrun's summary is as it was


def test_the_logs_of_torchrun_say_the_same(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    flags = [f"--log-dir={logs}", "--redirects=3", "--nproc-per-node=2"]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *flags, FAULTS, "missing_file"],
        env={**os.environ, "OUTLAST_GENERATION": "1"},
        capture_output=True,
    )
    told = subprocess.run([sys.executable, "-m", "outlast", "diagnose", logs], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "cause:        a file is missing (missing-file; data; a retry cannot help)" in told.stdout


# -- four strategies, by rule and by extension, on several nodes

EXTENSION = """
import outlast
class Mine(outlast.FailoverExtension):
    def get_user_failover_strategy(self, failure_info):
        assert failure_info.cause == "exception" and failure_info.node == "b", failure_info
        return outlast.FailoverStrategy.{strategy}
"""


@pytest.fixture(params=["rule", "extension"])
def three_nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., list[Process]]:
    """Nodes a and b of two, with c as a spare, on which rank 1 raises in the first generation."""

    def start(stack: ExitStack, strategy: str, *flags: str) -> list[Process]:
        if request.param == "rule":
            rules = tmp_path / "rules.yaml"
            rules.write_text(f"- {{when: {{exception: KeyError, node: b}}, then: {strategy.lower()}}}")
            by: tuple[str, ...] = (f"--ft-failover-rules={rules}",)
        else:
            (tmp_path / "mine.py").write_text(EXTENSION.format(strategy=strategy))
            by = ("--dynamic_failover_extension=mine::Mine",)
        port, nodes, go = free_port(), [], tmp_path / "go"
        os.mkfifo(go)
        common = ("--nnodes=2:2", "--max-restarts=1", "--ft-use-infra-group-rank=false", *by, *flags)
        for name in "abc":
            args, env = ["after", "1", "raises"], {"CULPRIT": "1", "GO": str(go)}
            process = start_node(name, port, *common, script=FAULTS, args=args, cwd=tmp_path, env=env)
            nodes.append(stack.enter_context(process))
            process.wait_for("joined the job", anywhere=True)
        go.write_bytes(b"!")
        return nodes

    return start


def test_normal_restarts_in_place(three_nodes: Callable[..., list[Process]]) -> None:
    with ExitStack() as stack:
        a, b, c = three_nodes(stack, "NORMAL")
        a.wait_for(r"generation 2: 2 nodes, 2 ranks, 1 spare \(a, b\)", anywhere=True)
        assert (a.wait(), b.wait(), c.wait()) == (0, 0, 0)


def test_node_goes_on_with_the_spare(three_nodes: Callable[..., list[Process]]) -> None:
    with ExitStack() as stack:
        a, b, c = three_nodes(stack, "NODE")
        a.wait_for("without node b for 1800 s: KeyError", anywhere=True)
        a.wait_for(r"generation 2: 2 nodes, 2 ranks \(a, c\)", anywhere=True)
        c.wait_for("rank 1 of 2 is well", anywhere=True)
        assert (a.wait(), b.wait(), c.wait()) == (0, 0, 0)


def test_global_starts_everything_anew(three_nodes: Callable[..., list[Process]]) -> None:
    with ExitStack() as stack:
        a, b, c = three_nodes(stack, "GLOBAL", "--ft-warm-preload=json")
        a.wait_for(r"restart 1 of 1: rank 1 on node b failed .*, everything restarted", anywhere=True)
        assert (a.wait(), b.wait(), c.wait()) == (0, 0, 0)


def test_abortion_ends_the_job(three_nodes: Callable[..., list[Process]]) -> None:
    with ExitStack() as stack:
        a, b, c = three_nodes(stack, "ABORTION")
        assert (a.wait(), b.wait(), c.wait()) == (NO_REQUEUE,) * 3
        for process in (a, b, c):
            (line,) = errors(process)
            assert "rank 1 on node b failed (exit code 1): KeyError (exception); no restart" in line
        assert "generation 2" not in a.output


def test_an_extension_that_hangs_does_not_hold_the_job_up(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import outlast, time\nclass Mine(outlast.FailoverExtension):\n"
        "    def get_user_failover_strategy(self, info): time.sleep(600)\n"
    )
    flags = ("--max-restarts=1", "--dynamic-failover-extension=mine::Mine", "--ft-extension-timeout=0.5")
    with job(*flags, script=FAULTS, args=["after", "1", "raises"], cwd=tmp_path) as process:
        assert process.wait() == 0
    assert "extension mine::Mine did not answer within 0.5 s (extension_timeout)" in process.output


def test_an_extension_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with job("--dynamic-failover-extension=nowhere::Mine", script=FAULTS, args=["raises"], cwd=tmp_path) as process:
        assert process.wait() == 1
    (line,) = errors(process)
    assert "dynamic_failover_extension nowhere::Mine: ModuleNotFoundError: No module named 'nowhere'" in line
    assert "generation 1" not in process.output


def test_a_crash_loop_ends_long_before_the_restarts_do(tmp_path: Path) -> None:
    process = fail(tmp_path, "raises", flags=("--max-restarts=100", "--ft-crash-loop=3"), code=NO_REQUEUE)
    (line,) = errors(process)
    assert "a crash loop: the same failure 3 times without progress" in line
    assert len(verdict(tmp_path).tried) == 2
