"""Worker processes: every end is noticed, and nothing of a worker outlives its group."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from outlast.agent.processes import spawning, workers
from outlast.agent.processes.spawning import WorkersNotStarted
from outlast.agent.processes.worker import Streams
from outlast.agent.processes.workers import WorkerGroup, be_subreaper
from processes import descriptors

DEADLINE = 120.0
FOREVER = "sleep 1000"
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1000; done"


@pytest.fixture
def subreaper() -> Iterator[None]:
    be_subreaper()
    yield
    be_subreaper(False)


class Node:
    """Workers that run shell scripts, with one pipe for what they print."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int, int]] = []
        self.changed = asyncio.Event()
        self.output, self._writer = os.pipe()
        self.group: WorkerGroup

    def start(self, *scripts: str, environment: dict[str, str] | None = None) -> WorkerGroup:
        self.group = WorkerGroup.start(
            [("/bin/sh", "-c", script) for script in scripts],
            [dict(os.environ) if environment is None else environment for _ in scripts],
            [Streams(os.dup(self._writer), None, "") for _ in scripts],
            self._exited,
        )
        return self.group

    def _exited(self, local_rank: int, pid: int, exit_code: int) -> None:
        self.exits.append((local_rank, pid, exit_code))
        self.changed.set()

    async def exited(self, count: int) -> dict[int, int]:
        while len(self.exits) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), DEADLINE)
        return {local_rank: code for local_rank, _, code in self.exits}

    async def lines(self, count: int) -> list[str]:
        readable, text = asyncio.Event(), b""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.output, readable.set)
        try:
            while text.count(b"\n") < count:
                readable.clear()
                await asyncio.wait_for(readable.wait(), DEADLINE)
                text += os.read(self.output, 4096)
        finally:
            loop.remove_reader(self.output)
        return text.decode().splitlines()

    def close(self) -> None:
        os.close(self.output)
        os.close(self._writer)


def with_node(body: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node()
        try:
            await body(node)
        finally:
            if hasattr(node, "group"):
                await node.group.stop(grace=0)
            node.close()

    asyncio.run(run())


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def zombies() -> list[int]:
    return [child.pid for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_each_exit_code_is_told_once() -> None:
    async def body(node: Node) -> None:
        group = node.start("exit 0", "exit 3", "kill -SEGV $$")
        assert await node.exited(3) == {0: 0, 1: 3, 2: -signal.SIGSEGV}
        assert sorted(pid for _, pid, _ in node.exits) == sorted(group.pids)
        assert group.alive == ()
        await group.stop()
        assert len(node.exits) == 3

    with_node(body)


def test_twenty_quick_exits_are_all_noticed() -> None:
    async def body(node: Node) -> None:
        node.start(*[f"exit {code}" for code in range(20)])
        assert await node.exited(20) == {code: code for code in range(20)}

    with_node(body)


def test_a_worker_that_ends_on_the_signal_is_not_killed() -> None:
    async def body(node: Node) -> None:
        group = node.start("trap 'exit 7' TERM; echo ready; while :; do sleep 1000 & wait $!; done", FOREVER)
        await node.lines(1)
        assert await group.stop(grace=DEADLINE) == ()
        assert await node.exited(2) == {0: 7, 1: -signal.SIGTERM}

    with_node(body)


def test_a_worker_that_ignores_the_signal_is_killed_after_its_grace() -> None:
    async def body(node: Node) -> None:
        group = node.start(STUBBORN)
        await node.lines(1)
        await group.stop(grace=0.1)
        assert await node.exited(1) == {0: -signal.SIGKILL}

    with_node(body)


def test_without_grace_workers_are_killed_at_once() -> None:
    async def body(node: Node) -> None:
        group = node.start("trap 'exit 0' TERM; echo ready; while :; do sleep 1000; done")
        await node.lines(1)
        await group.stop(grace=0)
        assert await node.exited(1) == {0: -signal.SIGKILL}
        assert all(gone(pid) for pid in group.pids)

    with_node(body)


def test_the_shorter_of_two_graces_wins() -> None:
    async def body(node: Node) -> None:
        group = node.start(STUBBORN)
        await node.lines(1)
        patient = asyncio.create_task(group.stop(grace=1000))
        await asyncio.sleep(0)
        assert group.alive == (0,)
        await asyncio.wait_for(group.stop(grace=0), DEADLINE)
        await asyncio.wait_for(patient, DEADLINE)
        assert await node.exited(1) == {0: -signal.SIGKILL}

    with_node(body)


def test_a_worker_is_signalled_once_however_often_it_is_stopped() -> None:
    """A second signal would interrupt what its handler does."""
    counts = "n=0; trap 'n=$((n + 1)); echo $n' TERM; trap 'echo total $n; exit' USR1; echo ready"

    async def body(node: Node) -> None:
        group = node.start(f"{counts}; while :; do sleep 1000 & wait $!; done")
        await node.lines(1)
        stops = [asyncio.create_task(group.stop(grace=DEADLINE))]
        assert await node.lines(1) == ["1"]
        stops += [asyncio.create_task(group.stop(grace=DEADLINE - more)) for more in (0, 1, 2)]
        await asyncio.sleep(0)
        group.send_signal(signal.SIGUSR1)
        assert await node.lines(1) == ["total 1"]
        await asyncio.gather(*stops)

    with_node(body)


def test_stop_may_be_called_again_and_again() -> None:
    async def body(node: Node) -> None:
        group = node.start(FOREVER)
        await asyncio.gather(group.stop(grace=0), group.stop(), group.stop(grace=0))
        await group.stop()
        assert len(node.exits) == 1

    with_node(body)


def test_a_stop_that_was_cancelled_can_be_repeated() -> None:
    async def body(node: Node) -> None:
        group = node.start(STUBBORN)
        await node.lines(1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(group.stop(grace=1000), 0.05)
        assert group.alive == (0,)
        await group.stop(grace=0)
        assert await node.exited(1) == {0: -signal.SIGKILL}

    with_node(body)


def test_a_forwarded_signal_reaches_every_live_worker() -> None:
    async def body(node: Node) -> None:
        script = "trap 'exit 5' USR1; echo ready; while :; do sleep 1000 & wait $!; done"
        group = node.start(script, script)
        await node.lines(2)
        group.send_signal(signal.SIGUSR1)
        assert await node.exited(2) == {0: 5, 1: 5}

    with_node(body)


@pytest.mark.usefixtures("subreaper")
@pytest.mark.parametrize("grace", [0, DEADLINE])
def test_children_of_workers_do_not_outlive_them(grace: float) -> None:
    async def body(node: Node) -> None:
        in_group = f"{FOREVER} & echo $!"
        own_session = f"setsid {FOREVER} & echo $!"
        deeper = f"setsid sh -c '{FOREVER} & echo $!; wait' & wait"
        group = node.start(f"{in_group}; {own_session}; {deeper}")
        children = [int(line) for line in await node.lines(3)]
        await group.stop(grace=grace)
        assert [pid for pid in children if not gone(pid)] == []
        assert zombies() == []

    with_node(body)


@pytest.mark.usefixtures("subreaper")
def test_children_of_a_worker_that_ended_by_itself_are_gone_after_stop() -> None:
    async def body(node: Node) -> None:
        group = node.start(f"{FOREVER} & echo $!; setsid {FOREVER} & echo $!; (trap '' TERM; {FOREVER}) & echo $!")
        children = [int(line) for line in await node.lines(3)]
        assert await node.exited(1) == {0: 0}
        await group.stop()
        assert [pid for pid in children if not gone(pid)] == []
        assert zombies() == []

    with_node(body)


@pytest.mark.usefixtures("subreaper")
def test_what_workers_that_succeeded_left_running_can_be_left_alone_and_ended_later() -> None:
    async def body(node: Node) -> None:
        group = node.start(f"{FOREVER} & echo $!; setsid {FOREVER} & echo $!", "exit 0")
        children = sorted(int(line) for line in await node.lines(2))
        await node.exited(2)
        assert group.succeeded
        assert sorted(group.background()) == children
        assert not any(gone(pid) for pid in children)
        await group.stop(signal.SIGKILL, 0)
        assert all(gone(pid) for pid in children)
        assert group.background() == []

    with_node(body)


@pytest.mark.usefixtures("subreaper")
def test_a_process_that_is_not_of_the_workers_is_left_alone() -> None:
    bystander = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    finished = subprocess.Popen(["sh", "-c", "exit 9"], start_new_session=True)

    async def body(node: Node) -> None:
        group = node.start(f"setsid {FOREVER} & echo $!")
        await node.lines(1)
        await group.stop(grace=0)
        group.reap_orphans()

    try:
        with_node(body)
        assert bystander.poll() is None
        assert finished.wait(DEADLINE) == 9
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.usefixtures("subreaper")
def test_exited_orphans_are_reaped_while_the_worker_runs() -> None:
    async def body(node: Node) -> None:
        chld = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, chld.set)
        group = node.start(f"sh -c 'sh -c \"read x\" < /dev/null & echo $!'; {FOREVER}")
        orphan = int((await node.lines(1))[0])
        end = loop.time() + DEADLINE
        while not gone(orphan) and loop.time() < end:
            chld.clear()  # before looking: a signal that comes in between is then not lost
            group.reap_orphans()
            # /proc may leave a child out that changes its parent just then: the next look has it.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(chld.wait(), 0.05)
        assert gone(orphan)
        loop.remove_signal_handler(signal.SIGCHLD)
        assert group.alive == (0,)

    with_node(body)


def test_no_descriptor_and_no_zombie_is_left() -> None:
    async def body(node: Node) -> None:
        before = descriptors()
        for _ in range(3):
            group = node.start("exit 1", FOREVER, FOREVER)
            await group.stop(grace=0)
        assert descriptors() <= before
        assert zombies() == []

    with_node(body)


def test_a_worker_has_no_descriptors_but_the_first_three() -> None:
    async def body(node: Node) -> None:
        stray = os.open("/dev/null", os.O_RDONLY)
        os.set_inheritable(stray, True)
        node.start("ls /proc/$$/fd; echo end")
        listed = await node.lines(4)
        os.close(stray)
        assert str(stray) not in listed
        assert {"0", "1", "2"} <= set(listed)

    with_node(body)


def test_a_worker_has_the_signals_of_the_launchers_parent_its_own_session_and_an_empty_mask() -> None:
    async def body(node: Node) -> None:
        before = {signum: signal.getsignal(signum) for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE)}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        try:
            command = "grep -E '^Sig(Blk|Ign)' /proc/self/status; cut -d' ' -f6 /proc/$$/stat"
            group = node.start(command)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for signum, handler in before.items():
                signal.signal(signum, handler)
        lines = await node.lines(3)
        # 32 and 33 are the C library's own: make ignores them for all that it starts, and nobody can take that back.
        masks = [int(line.split()[1], 16) & ~0x180000000 for line in lines if line.startswith("Sig")]
        assert masks == [0, 1 << (signal.SIGHUP - 1)]
        assert lines[2] == str(group.pids[0])

    with_node(body)


def test_the_environment_is_the_one_given() -> None:
    async def body(node: Node) -> None:
        node.start("echo $GREETING", environment={"GREETING": "hello", "PATH": os.environ["PATH"]})
        assert await node.lines(1) == ["hello"]

    with_node(body)


@pytest.mark.parametrize(
    ("name", "content", "mode", "hint"),
    [
        ("missing", None, 0, "check the path"),
        ("plain", "#!/bin/sh\n", 0o644, "chmod"),
        ("nonsense", "\x00\x01nonsense", 0o755, "first line"),
        ("lost", "#!/no/such/interpreter\n", 0o755, "interpreter"),
    ],
)
def test_a_command_that_cannot_run_is_one_line_and_leaves_nobody(
    tmp_path: Path, name: str, content: str | None, mode: int, hint: str
) -> None:
    program = tmp_path / name
    if content is not None:
        program.write_text(content)
        program.chmod(mode)

    async def body(node: Node) -> None:
        before, children = descriptors(), psutil.Process().children()
        ends = [Streams(os.dup(1), None, "") for _ in range(2)]
        commands = [("/bin/sh", "-c", FOREVER), (str(program),)]
        with pytest.raises(WorkersNotStarted, match=hint) as raised:
            WorkerGroup.start(commands, [dict(os.environ)] * 2, ends, node._exited)
        assert str(program) in str(raised.value)
        assert "\n" not in str(raised.value)
        assert descriptors() <= before
        assert psutil.Process().children() == children

    with_node(body)


def test_processes_that_are_there_and_cannot_be_watched_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the agent has no descriptor left: nobody would end them, and the next generation's would run beside."""
    forked = [subprocess.Popen(["/bin/sh", "-c", FOREVER], start_new_session=True) for _ in range(3)]
    opened: list[int] = []

    def open_two(pid: int) -> int:
        if len(opened) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(os.pidfd_open(pid))
        return opened[-1]

    monkeypatch.setattr(spawning, "pidfd_open", open_two)
    pids = [process.pid for process in forked]
    streams = [Streams(None, None, "") for _ in forked]

    async def scene() -> None:
        with pytest.raises(WorkersNotStarted, match="cannot watch a worker: Too many open files"):
            WorkerGroup.start(3 * [["sh"]], 3 * [{}], streams, lambda *_: None, fork=lambda *_: pids)

    asyncio.run(scene())
    for process in forked:
        process.returncode = 0  # it was waited for
    assert not any(map(psutil.pid_exists, pids))
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_worker_stuck_in_the_kernel_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Uninterruptible sleep cannot be made at will: here, the signals are what does not arrive."""
    monkeypatch.setattr(workers, "ABANDON_AFTER", 0.1)

    async def body(node: Node) -> None:
        group = node.start(FOREVER)
        with monkeypatch.context() as deaf:
            for kill in ("kill", "killpg"):
                deaf.setattr(os, kill, lambda *_: None)
            assert await asyncio.wait_for(group.stop(grace=0), DEADLINE) == group.pids
        assert node.exits == []
        assert "stuck in the kernel" in caplog.text
        stuck.extend(group.pids)

    stuck: list[int] = []
    with_node(body)
    os.killpg(stuck[0], signal.SIGKILL)
    os.waitpid(stuck[0], 0)


OWNER = """
import asyncio, os
from outlast.agent.processes.worker import Streams
from outlast.agent.processes.workers import WorkerGroup, be_subreaper

async def main():
    be_subreaper()
    command = ("/bin/sh", "-c", "trap '' TERM HUP; exec sleep 1000")
    group = WorkerGroup.start([command] * 2, [dict(os.environ)] * 2, [Streams(None, None, "")] * 2, print)
    print(*group.pids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_when_the_agent_is_killed_its_workers_die_with_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        pidfds = [os.pidfd_open(pid) for pid in pids]
        owner.kill()
        owner.wait()
    assert len(pids) == 2
    deadline = time.monotonic() + DEADLINE
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], max(deadline - time.monotonic(), 0))[0], "a worker outlived its agent"
        os.close(pidfd)


def test_forked_workers_that_cannot_be_watched_do_not_live_on() -> None:
    children: list[subprocess.Popen[bytes]] = []
    taken: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def fork(*_: object) -> list[int]:
        children.extend(subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(3))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        os.close(taken.pop())  # one is left, for the first
        return [child.pid for child in children]

    async def start() -> None:
        WorkerGroup.start([("x",)] * 3, [{}] * 3, [Streams(None, None, "")] * 3, lambda *_: None, fork=fork)

    try:
        with pytest.raises(WorkersNotStarted, match="free file descriptors"):
            asyncio.run(start())
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for child in children:
        child.returncode = 0  # waited for by the group
        assert not psutil.pid_exists(child.pid)
