"""The commands that watch a job, as people type them: on its nodes without flags, from elsewhere by any node."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosts import Host
from jobs import free_port, job, workers
from membership.job import PORT, QUICK, ElasticJob
from outlast.transport.wire import observer_token
from processes import Process, outlast, python

Hosts = Callable[[int], list[Host]]
TOKEN = "a token of these tests"
STEPS = """
import time, outlast
for step in range(1, 100_000):
    time.sleep(0.02)
    outlast.step(step)
    if step == 1:
        print("steps", flush=True)
"""
EVERYWHERE = f"--rdzv-endpoint=host-0:{PORT},host-1:{PORT},host-2:{PORT}"


def said(process: Process, code: int = 0) -> list[str]:
    """The lines of a command that ends with this exit code."""
    assert process.wait() == code, process.output
    return process.lines


def named(name: str, *flags: str, **options: Any) -> Process:
    """A job of one node with this name."""
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={name}")
    return job(*meeting, *flags, **options)


def on(host: Host, *words: str, token: str | None = None) -> Process:
    return host.start([python(), "-m", "outlast", *words], env={"OUTLAST_TOKEN": token})


def test_on_a_node_of_the_job_nothing_has_to_be_said() -> None:
    with named("bert", "--nproc-per-node=2", "--max-restarts=2") as process:
        first = workers(process, 1, 0, 1)
        assert said(outlast("why", "--job=bert")) == ["job bert: nothing has failed"]
        os.kill(first[1].pid, signal.SIGUSR2)
        second = workers(process, 2, 0, 1)
        while "generation  1" in (shown := said(outlast("status", "--job=bert")))[1]:
            continue  # a view may be a second old
        headline, *rows = shown
        assert headline == "job bert: running, healthy"
        assert [row.split()[0] for row in rows] == ["generation", "nodes", "restarts", "last"]
        status = json.loads("".join(said(outlast("status", "--job=bert", "--json"))))
        assert (status["health"], status["view"]["generation"]) == ("healthy", 2)
        (paragraph,) = said(outlast("why", "--job=bert"))
        assert "generation 1: rank 1 on node" in paragraph
        assert "restart 1 of 2. Generation 2 went on with 1 node. It cost" in paragraph
        told = [json.loads(line) for line in said(outlast("events", "--job=bert", "--json"))]
        assert [each["id"] for each in told] == list(range(1, len(told) + 1))
        assert {"node joined", "generation formed", "worker failed", "restarting"} <= {each["event"] for each in told}
        with outlast("events", "--job=bert", "-f", "--json", f"--after={told[-2]['id']}") as following:
            following.wait_for('"generation formed"')
            for worker in second:
                os.kill(worker.pid, signal.SIGUSR1)
            following.wait_for('"job over"')
            assert following.wait() == 0
        assert process.wait() == 0


def test_a_job_of_one_rank_shows_its_step_and_pace_also_without_straggler_detection(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    with named("solo", "--nproc-per-node=1", "--ft-straggler=off", script=script) as process:
        process.wait_for("steps")
        while "; step " not in (headline := said(outlast("status", "--job=solo"))[0]):
            continue  # the agent looks at its ranks once a second
        assert headline.startswith("job solo: training, healthy; step ")
        assert headline.endswith((" steps/s", " s/step"))
        said(outlast("stop", "--job=solo"))
        assert process.wait() == 1


def test_several_jobs_are_listed_and_none_is_said_to_be_none() -> None:
    with named("one") as one, named("two") as two:
        workers(one, 1, 0)
        workers(two, 1, 0)
        (asked,) = said(outlast("status"), 1)
        assert "which one? Give --job NAME" in asked
        assert "one at 127.0.0.1:" in asked
        assert "two at 127.0.0.1:" in asked
        (unknown,) = said(outlast("status", "--job=three"), 1)
        assert "no job 'three' runs on this machine, only: " in unknown
        for each in ("one", "two"):
            assert said(outlast("stop", f"--job={each}")) == [f"job {each} stops"]
        assert (one.wait(), two.wait()) == (1, 1)
    (gone,) = said(outlast("status", "--job=one"), 1)
    assert "no job" in gone
    (refused,) = said(outlast("status", f"--endpoint=127.0.0.1:{free_port()}"), 1)
    assert refused.startswith("outlast status: error: ")
    assert said(outlast("scale", "many"), 2)


def test_a_token_that_may_only_observe_is_made_from_the_jobs_and_runs_nothing() -> None:
    (token,) = said(outlast("token", "--observer", env={"OUTLAST_TOKEN": TOKEN}))
    assert token == observer_token(TOKEN)
    (missing,) = said(outlast("token", "--observer", env={"OUTLAST_TOKEN": None}), 1)
    assert "set OUTLAST_TOKEN" in missing
    refused = job(f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", env={"OUTLAST_TOKEN": token})
    assert "OUTLAST_TOKEN is one that may only observe" in said(refused, 1)[-1]


def test_a_pipe_that_closes_and_a_ctrl_c_are_no_errors() -> None:
    with named("piped") as process:
        (worker,) = workers(process, 1, 0)
        piped = f"{python()} -m outlast events --job=piped -f --json | head -1; exit ${{PIPESTATUS[0]}}"
        with Process(["bash", "-c", piped]) as head:
            head.wait_for('"job began"')
            assert said(outlast("scale", "--job=piped", "1"))
            assert "Traceback" not in head.output
        with outlast("events", "--job=piped", "-f") as following:
            following.wait_for("generation 1: 1 node")
            following.signal(signal.SIGINT)
            assert following.wait() == 130
            assert "Traceback" not in following.output
        os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0


def test_one_node_is_enough_to_watch_all_also_when_the_coordinators_host_is_lost(hosts: Hosts, tmp_path: Path) -> None:
    made = hosts(4)
    watcher = made.pop()
    with ElasticJob(made, tmp_path, "--nnodes=2:3", EVERYWHERE, *QUICK, worker=("--coupled",)) as elastic:
        a, b, c = elastic.start_all()
        elastic.line_up(a, b, c)
        # The watcher can reach host-1 alone, which passes it on to the coordinator on host-0.
        watcher.cut_from(made[0])
        watcher.cut_from(made[2])
        door = f"--endpoint=host-1:{PORT}"
        headline, *_ = said(on(watcher, "status", door, token=TOKEN))
        assert headline.endswith(": running, healthy")
        (wrong,) = said(on(watcher, "status", door, token="another token of these tests"), 1)
        assert "has another token" in wrong
        assert "healthy" in said(on(made[2], "status"))[0]  # without a flag, and without the token
        with on(watcher, "events", "-f", "--json", door, token=TOKEN) as following:
            following.wait_for('"generation formed"')
            made[0].kill()
            elastic.line_up(b, c)
            following.wait_for('"generation formed"')
            told = [json.loads(line) for line in following.lines if line.startswith("{")]
            assert not [each for each in told if "gap" in each], told
            numbers = [each["id"] for each in told]
            assert numbers == sorted(set(numbers))
            assert {each["term"] for each in told} == {1, told[-1]["term"]}
            everything = [json.loads(line) for line in said(on(watcher, "events", "--json", door, token=TOKEN))]
            assert [each["id"] for each in everything][: len(numbers)] == numbers
        elastic.succeeds(b, c)
