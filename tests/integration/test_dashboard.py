"""The page of real jobs: it finds them, follows them through the loss of a coordinator, and nobody misses it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from jobs import free_port, node, workers
from processes import Process, arguments, outlast

PATIENCE = 120.0
LINK = r"its token is in (\S+)\)"


def link(process: Process) -> tuple[str, dict[str, str], Path]:
    """Where the page of this process is, what opens it, and the file that says so."""
    file = Path(process.wait_for(LINK)[1])
    url, _, token = file.read_text().strip().partition("/#token=")
    return url, {"authorization": f"Bearer {token}"}, file


def rows(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    kind = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            kind = value
        elif field == "data" and kind == "story":
            yield from json.loads(value)["rows"]


def the(what: bytes, process: Process) -> int:
    (pid,) = [pid for pid in process.tree() if any(what in word for word in arguments(pid))]
    return pid


def test_a_page_follows_its_job_through_the_loss_of_the_coordinator_to_the_end() -> None:
    port = free_port()
    with ExitStack() as stack:
        job = stack.enter_context(node("a", port, "--nnodes=1:2", "--ft-last-call=0"))
        (worker,) = workers(job, 1, 0)
        page = stack.enter_context(outlast("dashboard", f"--endpoint=127.0.0.1:{port}", "--port=0"))
        url, token, _ = link(page)
        assert httpx.get(f"{url}/api/about", timeout=PATIENCE).status_code == 401
        with httpx.stream("GET", f"{url}/api/stream", headers=token, timeout=PATIENCE) as stream:
            told = []
            for row in rows(stream.iter_lines()):
                told.append(row["n"])
                if row["k"] == "generation formed":
                    os.kill(the(b"outlast.coordinator", job), signal.SIGKILL)
                elif row["k"] == "coordinator took over":
                    os.kill(worker.pid, signal.SIGUSR1)
                elif row["k"] == "job over":
                    break
        assert told == sorted(set(told))
        assert job.wait() == 0
        page.signal(signal.SIGTERM)
        assert page.wait() == 0


def test_nobody_misses_the_page_beside_a_run_that_was_killed() -> None:
    with node("a", free_port(), "--nnodes=1", "--dashboard", "--ft-dashboard-port=0") as job:
        (worker,) = workers(job, 1, 0)
        url, token, file = link(job)
        assert httpx.get(f"{url}/api/about", headers=token, timeout=PATIENCE).status_code == 200
        os.kill(the(b"outlast.cli.dashboard", job), signal.SIGKILL)
        file.unlink()
        os.kill(worker.pid, signal.SIGUSR1)
        assert job.wait() == 0


def test_the_page_beside_a_run_ends_with_it() -> None:
    with node("a", free_port(), "--nnodes=1", "--dashboard", "--ft-dashboard-port=0") as job:
        (worker,) = workers(job, 1, 0)
        *_, file = link(job)
        os.kill(worker.pid, signal.SIGUSR1)
        assert job.wait() == 0
        assert not file.exists()


def test_a_page_elsewhere_reads_a_ranks_log_through_its_node(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        job = stack.enter_context(
            node("a", port, "--nnodes=1:2", "--ft-last-call=0", "--tee=3", f"--log-dir={tmp_path}")
        )
        (worker,) = workers(job, 1, 0)
        page = stack.enter_context(outlast("dashboard", f"--endpoint=127.0.0.1:{port}", "--port=0"))
        url, token, _ = link(page)
        while not (tail := httpx.get(f"{url}/api/log?rank=0", headers=token, timeout=PATIENCE).json())["text"]:
            continue  # a line has a time within a quarter of a second
        assert f"rank 0 of 1 started in generation 1: pid {worker.pid}" in tail["text"]
        page.signal(signal.SIGTERM)
        assert page.wait() == 0
        os.kill(worker.pid, signal.SIGUSR1)
        assert job.wait() == 0
