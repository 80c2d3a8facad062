"""The guard: workers end with their lease, whatever their agent does, and nobody else is touched."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from outlast.agent.processes import guard_process
from outlast.agent.processes.guard import ATTEMPTS, Guard
from outlast.agent.processes.guard_process import NOBODY, PID_BITS, identity, pid_of
from outlast.agent.processes.workers import WorkerGroup
from outlast.system.clock import now
from outlast.system.pidfd import exited
from processes import Process, alive, await_exit, descriptors, python

DEADLINE = 120.0
NEVER = float("inf")

# A worker with two children in its session, one of them in a process group of its own.
FAMILY = """
import os, subprocess, sys, time
near = subprocess.Popen(["sleep", "1000"])
far = subprocess.Popen(["sleep", "1000"], preexec_fn=os.setpgrp)
os.write(1, f"family {os.getpid()} {near.pid} {far.pid}\\n".encode())
time.sleep(1000)
"""

# An agent that starts such a worker, and goes on renewing its lease, of as many seconds as its command line says.
AGENT = f"""
import asyncio, os, subprocess, sys
from outlast.agent.processes.guard import Guard
from outlast.system.clock import now

async def main():
    guard = Guard(places=1)
    guard.start()
    guard.renew(now() + float(sys.argv[1]))
    worker = subprocess.Popen([sys.executable, "-c", {FAMILY!r}], start_new_session=True)
    guard.watch([worker.pid])
    print(f"guard {{guard.pid}}")
    while True:
        guard.renew(now() + float(sys.argv[1]))
        await asyncio.sleep(0.1)

asyncio.run(main())
"""


class Node:
    """A guard with workers that sleep."""

    def __init__(self, places: int) -> None:
        self.guard = Guard(places)
        self.workers: list[subprocess.Popen[bytes]] = []

    def worker(self, command: Sequence[str] = ("sleep", "1000"), **popen: Any) -> int:
        self.workers.append(subprocess.Popen(command, start_new_session=True, **popen))
        return self.workers[-1].pid

    async def guarded(self) -> psutil.Process:
        """The guard, once it is at its post and sleeps."""
        assert self.guard.pid is not None
        guard = psutil.Process(self.guard.pid)
        await until(lambda: has_timer(guard.pid))
        await until(lambda: guard.status() == psutil.STATUS_SLEEPING)
        return guard

    def close(self) -> None:
        self.guard.close()
        for worker in self.workers:
            worker.kill()
            worker.wait()


def has_timer(pid: int) -> bool:
    with suppress(FileNotFoundError):  # what Python itself opens as it starts is closed again
        return any("timerfd" in str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


async def until(true: Callable[[], bool]) -> None:
    """Await what no descriptor tells of."""
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def ends(pid: int) -> None:
    await asyncio.wait_for(exited(pid), DEADLINE)


def with_node(body: Callable[[Node], Awaitable[None]], places: int = 2) -> None:
    async def run() -> None:
        node = Node(places)
        try:
            await body(node)
        finally:
            node.close()

    asyncio.run(run())


def start_agent(lease: float) -> tuple[Process, int, list[int]]:
    """An agent in a process of its own: it, its guard, and the worker with its children."""
    agent = Process([python(), "-c", AGENT, str(lease)])
    guard = int(agent.wait_for(r"^guard (\d+)$", anywhere=True)[1])
    family = agent.wait_for(r"^family (\d+) (\d+) (\d+)$", anywhere=True)
    return agent, guard, [int(pid) for pid in family.groups()]


@pytest.mark.parametrize("stop", [os.kill, os.killpg], ids=["alone", "with its process group"])
def test_a_worker_and_its_session_end_with_the_lease_of_a_stopped_agent(stop: Callable[[int, int], None]) -> None:
    agent, guard, family = start_agent(lease=2.0)
    with agent:
        assert all(map(alive, family))
        stop(agent.pid, signal.SIGSTOP)
        assert await_exit(family, DEADLINE) == []
        assert psutil.Process(agent.pid).status() == psutil.STATUS_STOPPED
        assert alive(guard)


@pytest.mark.parametrize("before", [[], [signal.SIGSTOP]], ids=["running", "stopped"])
def test_the_guard_dies_with_its_agent(before: list[signal.Signals]) -> None:
    agent, guard, family = start_agent(lease=NEVER)
    with agent:
        for signum in [*before, signal.SIGKILL]:
            agent.signal(signum)
        assert await_exit([guard], DEADLINE) == []
        assert all(map(alive, family))  # these were not bound to the agent, and their lease had not ended


def test_a_lease_that_ends_kills_every_worker_that_is_watched_and_no_other() -> None:
    async def body(node: Node) -> None:
        first, second, other = node.worker(), node.worker(), node.worker()
        node.guard.start()
        node.guard.renew(now() + 0.1)
        node.guard.watch([first, second])
        await ends(first)
        await ends(second)
        await node.guarded()
        assert alive(other)

    with_node(body)


def test_what_a_worker_that_has_ended_left_in_its_session_is_killed() -> None:
    async def body(node: Node) -> None:
        reading, writing = os.pipe()
        worker = node.worker(["sh", "-c", "sleep 1000 & echo $!"], stdout=writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            child = int(pipe.readline())
        await ends(worker)
        node.guard.start()
        node.guard.watch([worker])
        await ends(child)

    with_node(body)


def test_renewals_keep_workers_alive_and_wake_the_guard_once_per_lease() -> None:
    async def body(node: Node) -> None:
        worker = node.worker()
        node.guard.renew(NEVER)
        node.guard.watch([worker])
        node.guard.start()
        guard = await node.guarded()
        before = guard.num_ctx_switches().voluntary
        node.guard.renew(now() + 1.0)
        await until(lambda: guard.num_ctx_switches().voluntary > before)
        # It has set its clock to this end. For a thousand later ones it wakes once: when the first has come.
        for renewal in range(1000):
            node.guard.renew(now() + 1.0 + renewal)
        await until(lambda: guard.num_ctx_switches().voluntary > before + 1)
        await node.guarded()
        assert guard.num_ctx_switches().voluntary < before + 10
        assert alive(worker)

    with_node(body)


def test_an_infinite_lease_never_ends_until_there_is_an_end() -> None:
    async def body(node: Node) -> None:
        worker = node.worker()
        node.guard.start()
        node.guard.renew(NEVER)
        node.guard.watch([worker])
        await node.guarded()
        assert alive(worker)
        node.guard.renew(now())
        await ends(worker)

    with_node(body)


def test_without_any_lease_nothing_may_run() -> None:
    async def body(node: Node) -> None:
        node.guard.start()
        await node.guarded()
        worker = node.worker()
        node.guard.watch([worker])
        await ends(worker)

    with_node(body)


def test_a_worker_that_is_no_longer_watched_outlives_the_lease() -> None:
    async def body(node: Node) -> None:
        released, kept = node.worker(), node.worker()
        node.guard.start()
        node.guard.renew(NEVER)
        node.guard.watch([released])
        node.guard.watch([kept])
        node.guard.renew(now())
        await ends(kept)
        assert alive(released)

    with_node(body)


def test_workers_of_the_next_generation_are_killed_as_well() -> None:
    async def body(node: Node) -> None:
        node.guard.start()
        for _ in range(2):
            worker = node.worker()
            node.guard.renew(now() + 0.1)
            node.guard.watch([worker])
            await ends(worker)
            node.guard.watch(())

    with_node(body)


def test_a_later_process_with_the_pid_of_a_worker_is_spared() -> None:
    async def body(node: Node) -> None:
        stranger = node.worker()
        a_tick = 1 << PID_BITS
        assert pid_of(identity(stranger) - a_tick) == stranger
        guard_process.kill([identity(stranger) - a_tick])
        assert alive(stranger)
        guard_process.kill([identity(stranger)])
        await ends(stranger)

    with_node(body)


def test_one_that_has_ended_and_was_taken_leave_of_is_nobody() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert identity(child.pid) == NOBODY


def test_a_guard_that_dies_is_replaced_and_its_successor_knows_the_workers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(node: Node) -> None:
        worker = node.worker()
        node.guard.start()
        node.guard.renew(NEVER)
        node.guard.watch([worker])
        first = (await node.guarded()).pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: node.guard.pid not in (first, None))
        assert alive(worker)
        node.guard.renew(now())
        await ends(worker)

    with caplog.at_level(logging.WARNING, "agent"):
        with_node(body)
    assert [record.getMessage() for record in caplog.records] == ["the guard ended with -9: started another"]


def test_guards_that_cannot_live_are_given_up_and_the_log_says_what_that_means(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(node: Node) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        node.guard.start()
        await until(lambda: len(caplog.records) == ATTEMPTS)
        assert node.guard.pid is None
        node.guard.renew(now())
        node.guard.watch([node.worker()])

    with caplog.at_level(logging.WARNING, "agent"):
        with_node(body)
    assert re.match(r"no guard lives here .*: should this agent be stopped", caplog.records[-1].getMessage())


def test_a_guard_that_cannot_be_started_is_said_and_does_no_harm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(node: Node) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        node.guard.start()
        assert node.guard.pid is None
        node.guard.renew(NEVER)

    with caplog.at_level(logging.WARNING, "agent"):
        with_node(body)
    assert len(caplog.records) == 1
    assert "no guard: should this agent be stopped" in caplog.records[0].getMessage()


def test_closing_leaves_no_process_and_no_descriptor() -> None:
    before = descriptors()
    children = psutil.Process().children()

    async def body(node: Node) -> None:
        node.guard.start()
        node.guard.renew(NEVER)
        node.guard.watch([node.worker()])

    with_node(body)
    assert descriptors() <= before
    assert psutil.Process().children() == children


def test_the_guard_is_in_a_session_of_its_own_and_no_orphan_of_a_worker() -> None:
    async def body(node: Node) -> None:
        node.guard.start()
        assert node.guard.pid is not None
        assert os.getsid(node.guard.pid) == node.guard.pid
        group = WorkerGroup.start([], [], [], lambda *_: None)
        group.reap_orphans()
        await group.stop(grace=0)
        assert alive(node.guard.pid)

    with_node(body)


HIDDEN = """
import os, signal
from outlast.agent.processes import guard_process
from outlast.system import proc
os.setresuid(12345, 12345, 12345)
child = os.fork()
if child == 0:
    signal.pause()
try:
    assert guard_process.members({os.getsid(0)}) >= {os.getpid(), child}
    assert proc.find_children(os.getpid()) == [child]
finally:
    os.kill(child, signal.SIGKILL)
"""


def test_where_processes_of_others_are_hidden_ours_are_found() -> None:
    mounted = 'mount -t proc -o hidepid=1 proc /proc && exec "$@"'
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", mounted, "sh", sys.executable, "-c", HIDDEN]
    subprocess.run(command, check=True, timeout=60, start_new_session=True)
