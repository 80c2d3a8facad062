"""`outlast logs` on real jobs: all nodes merged, followed to the last line, and read again after the end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from jobs import Worker, free_port, job, node, workers
from outlast.transport.wire import observer_token
from processes import Process, outlast

TOKEN = "a token of these tests"
NASTY = """
import os, sys
os.write(1, b"\\x1b[2J<script>alert(1)</script>\\tand\\x07 \\xff\\n")
os.write(1, b"x" * 50_000_000 + b"\\n")
os.write(2, b"no end of line")
os.read(os.open(sys.argv[1], os.O_RDONLY), 1)
"""


def said(process: Process, code: int = 0) -> list[str]:
    """The lines of a command that ends with this exit code."""
    assert process.wait() == code, process.output
    return process.lines


def test_lines_of_all_nodes_are_followed_through_a_restart_to_the_last_and_read_afterwards(tmp_path: Path) -> None:
    port = free_port()
    flags = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--tee=3", f"--log-dir={tmp_path}")
    with (
        node("a", port, *flags, env={"OUTLAST_TOKEN": TOKEN}) as a,
        node("b", port, *flags, env={"OUTLAST_TOKEN": TOKEN}) as b,
    ):
        found = {"a": a, "b": b}
        a.wait_for("started in generation 1")
        b.wait_for("started in generation 1")
        # A token that may only read is enough.
        watcher = {"OUTLAST_TOKEN": observer_token(TOKEN)}
        where = f"--endpoint=127.0.0.1:{port}"
        with outlast("logs", where, "-f", "--json", env=watcher) as following:
            for rank in (0, 1):
                following.wait_for(f'"rank":{rank},.*rank {rank} of 2 started in generation 1', anywhere=True)
            victim = next(worker for each in found.values() for worker in _here(each, 1))
            os.kill(victim.pid, signal.SIGUSR2)
            for rank in (0, 1):
                following.wait_for(f'"rank":{rank},.*rank {rank} of 2 started in generation 2', anywhere=True)
            (line,) = said(outlast("logs", where, "--rank=1", "--json", env=watcher))
            told = json.loads(line)
            assert (told["rank"], told["generation"], told["stream"], told["cut"]) == (1, 2, "stdout", False)
            assert said(outlast("logs", where, f"--node={told['node']}", env=watcher))[0].endswith(told["text"])
            (unknown,) = said(outlast("logs", where, "--node=c", env=watcher), 1)
            assert unknown == "outlast logs: error: no node 'c' is in the job, only: a, b"
            since = said(outlast("logs", where, "--since-fault", env=watcher))
            assert any(f"rank {victim.rank} got SIGUSR2 in generation 1" in each for each in since)
            for each in found.values():
                for worker in _here(each, 2):
                    os.kill(worker.pid, signal.SIGUSR1)
            for rank in (0, 1):
                following.wait_for(f"rank {rank} got SIGUSR1 in generation 2", anywhere=True)
            assert following.wait() == 0
        assert (a.wait(), b.wait()) == (0, 0)
    lines = [json.loads(line) for line in said(outlast("logs", tmp_path, "--all", "--json"))]
    assert [each["time"] for each in lines] == sorted(each["time"] for each in lines)
    assert {each["node"] for each in lines} == {"a", "b"}
    assert {(each["rank"], each["generation"]) for each in lines} == {(0, 1), (1, 1), (0, 2), (1, 2)}
    # Whoever followed has seen every line once.
    seen = [line for line in following.lines if line.startswith("{")]
    assert sorted(json.loads(line)["text"] for line in seen) == sorted(each["text"] for each in lines)


def _here(process: Process, generation: int) -> list[Worker]:
    """The worker of this node."""
    match = process.wait_for(rf"rank (\d) of 2 started in generation {generation}", anywhere=True)
    return workers(process, generation, int(match[1]))


def test_whatever_a_rank_prints_the_reader_gets_lines_and_the_job_is_not_held_up(tmp_path: Path) -> None:
    script, gate, logs = tmp_path / "nasty.py", tmp_path / "gate", tmp_path / "logs"
    script.write_text(NASTY)
    os.mkfifo(gate)
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=nasty")
    with job(*meeting, "--redirects=3", f"--log-dir={logs}", script=script, args=[gate]) as process:
        process.wait_for("started rank 0 of 1")
        with outlast("logs", "--job=nasty", "-f", "--all") as following:
            first = following.wait_for(r"\[rank0\] .*script")[0]
            assert following.lines[0].endswith(r"[rank0] \x1b[2J<script>alert(1)</script>   and\x07 �"), first
            long = following.wait_for(r"\[rank0\] x+ …$")[0]
            assert len(long) < 10_000
            with gate.open("w") as opened:
                opened.write("go")
            following.wait_for(r"\[rank0 err\] no end of line")
            assert following.wait() == 0
        assert process.wait() == 0
    assert [line[12:60] for line in said(outlast("logs", logs, "--all"))][2] == "[rank0 err] no end of line"
    assert "follow is for a running job" in "".join(said(outlast("logs", logs, "-f"), 2))


def test_a_job_without_log_files_says_how_to_have_some() -> None:
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bare")
    with job(*meeting) as process:
        workers(process, 1, 0)
        (line,) = said(outlast("logs", "--job=bare"), 1)
        assert line.endswith("start the job with --tee=3 or --redirects=3 to have logs")
        (calm,) = said(outlast("logs", "--job=bare", "--since-fault"), 1)
        assert calm == "outlast logs: error: nothing has failed: remove --since-fault"
        assert said(outlast("stop", "--job=bare")) == ["job bare stops"]
        assert process.wait() == 1
    (gone,) = said(outlast("logs", "--job=bare"), 1)
    assert "no job" in gone
