"""The worker processes of one generation on one node: started, watched by pidfd, and gone after `stop`.

Nothing of a worker that is stopped outlives it. Each has a session of its own, so that its children can be killed with
it; the kernel kills it when the agent dies; and the agent, as a subreaper, inherits and kills what slipped away. Only
where all have exited with 0 what they left running is left alone.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from outlast.system import prctl, proc
from outlast.system.pidfd import exited, pidfd_open

logger = logging.getLogger(__name__)

OnExit = Callable[[int, int, int], None]
Fork = Callable[[Sequence[Sequence[str]], Sequence[Mapping[str, str]], "Sequence[Streams]"], "list[int] | None"]

# After SIGKILL only the kernel can hold a process (uninterruptible sleep, on a GPU or a dead file server).
ABANDON_AFTER = 10.0
# Programs that remove semaphores and shared memory of the processes that they serve, when the last of these has ended.
TIDIERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
TIDYING = 2.0  # seconds for that

_MARK = "OUTLAST_WORKER_GROUP"  # tells our workers' descendants from all other children of this process
_SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class WorkersNotStarted(OSError):
    """A worker could not be started, and none runs. The message is one line that says what to change."""


@dataclass(frozen=True)
class Streams:
    """Where one worker writes: file descriptors, or None to share the agent's own stream."""

    stdout: int | None
    stderr: int | None
    error_file: str  # "" where the worker has none
    logs: tuple[str, ...] = ()  # the files that its output goes to, by itself or through us

    def close(self) -> None:
        """Close the descriptors: the worker has its own copies of them."""
        for descriptor in {self.stdout, self.stderr} - {None}:
            assert descriptor is not None
            os.close(descriptor)


@dataclass(eq=False)
class Worker:
    """One worker process. It stays a zombie until the group is stopped or left, so that its pid stays its own."""

    local_rank: int
    pid: int
    pidfd: int
    exit_code: int | None = None
    reaped: bool = False
    ending: bool = False  # it was told to end with a signal of its own

    def kill_group(self, signum: int) -> None:
        """Signal the worker and every child that stayed in its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def signal(self, signum: int) -> None:
        """Signal the worker and its process group; SIGKILL the worker alone, as the sweep knows whom to spare."""
        if signum != signal.SIGKILL:
            self.kill_group(signum)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signum)

    def reap(self) -> None:
        """Collect a worker that has exited, or is about to."""
        if not self.reaped:
            self.reaped = True
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


class WorkerGroup:
    """The workers of one generation on this node. `stop` has to be awaited in the end, however they ended."""

    def __init__(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._workers: list[Worker] = []
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._over = asyncio.Event()
        self._asked_to_end = False
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._abandoned: tuple[int, ...] = ()
        self._sweeping = asyncio.Lock()
        self._swept = False

    @classmethod
    def start(
        cls,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
        on_exit: OnExit,
        *,
        fork: Fork | None = None,
        cold: Callable[[Mapping[str, str]], Mapping[str, str]] = dict,
        pass_fds: Sequence[int] = (),
    ) -> WorkerGroup:
        """Start one worker per command. Local rank i gets the i-th of each; the streams are closed here.

        `fork` may give them as processes that are there already, children of this one; if it gives None, they are
        started here, with the environment that `cold` makes of theirs, and the descriptors of `pass_fds` open.
        `on_exit(local_rank, pid, exit_code)` is called from the event loop, once per worker; a negative exit code
        is the signal that ended it. Raises `WorkersNotStarted`; those already started are dead by then.
        """
        group = cls(on_exit)
        try:
            environments = [{**environment, _MARK: group._mark} for environment in environments]
            pids = fork(commands, environments, streams) if fork is not None else None
            if pids is not None:
                group._workers += _watched(pids)
            else:
                started = enumerate(zip(commands, map(cold, environments), streams, strict=True))
                group._workers += (_spawn(local_rank, *birth, pass_fds) for local_rank, birth in started)
        except OSError:
            group._undo_start()
            raise
        finally:
            for ends in streams:
                ends.close()
        for worker in group._workers:
            group._loop.add_reader(worker.pidfd, group._exited, worker)
        if not group._workers:
            group._over.set()
        return group

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker processes, by local rank."""
        return tuple(worker.pid for worker in self._workers)

    @property
    def alive(self) -> tuple[int, ...]:
        """The local ranks of the workers that still run."""
        return tuple(worker.local_rank for worker in self._running)

    def send_signal(self, signum: int) -> None:
        """Forward a signal to every live worker and the children in its process group."""
        for worker in self._running:
            if not worker.ending or signum == signal.SIGKILL:
                worker.signal(signum)

    def end(self, local_rank: int, signum: int) -> None:
        """Tell one worker to end with this signal, also if it is stopped; `stop` is to follow, and asks it no more."""
        worker = self._workers[local_rank]
        if worker.exit_code is None:
            worker.ending = True
            worker.signal(signum)
            worker.kill_group(signal.SIGCONT)  # after it, so that it does nothing else first

    async def stop(self, signum: int = signal.SIGTERM, grace: float = 30.0) -> tuple[int, ...]:
        """End every worker and all of its descendants; returns when they are gone.

        `signum` first and SIGKILL after `grace` seconds, SIGKILL at once without grace. May be called again, also
        while another call waits: the shorter grace wins, and no worker gets a second `signum`, which would interrupt
        a handler that saves. Returns the pids that not even SIGKILL ended, for which `on_exit` is not called:
        processes stuck in the kernel, on a node that should not be used again.
        """
        timer = None
        if grace > 0:
            if not self._asked_to_end:
                self._asked_to_end = True
                self.send_signal(signum)
            timer = self._loop.call_later(grace, self._kill)
        else:
            self._kill()
        try:
            await self._over.wait()
        finally:
            if timer is not None:
                timer.cancel()
        async with self._sweeping:
            if not self._swept:
                await self._sweep()
                self._swept = True
        return self._abandoned

    @property
    def succeeded(self) -> bool:
        """Whether every worker has exited with 0."""
        return all(worker.exit_code == 0 for worker in self._workers)

    def background(self) -> list[int]:
        """What workers that have exited left running, as far as it is our child now; `stop` would end it."""
        self.reap_orphans()
        return self._orphans()

    def reap(self) -> None:
        """Collect the workers, which have exited, and leave alone what they left running."""
        for worker in self._workers:
            worker.reap()

    def reap_orphans(self) -> None:
        """Collect what our workers left behind and has exited. Cheap; meant for SIGCHLD in a long run."""
        for pid in self._orphans():
            _reap(pid)

    @property
    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.exit_code is None]

    def _exited(self, worker: Worker) -> None:
        self._forget(worker)
        worker.exit_code = _exit_code(worker.pid)
        if not self._running:
            self._over.set()
            if self._abandon_timer is not None:
                self._abandon_timer.cancel()
        self._on_exit(worker.local_rank, worker.pid, worker.exit_code)

    def _forget(self, worker: Worker) -> None:
        self._loop.remove_reader(worker.pidfd)
        os.close(worker.pidfd)

    def _kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        if self._running and self._abandon_timer is None:
            self._abandon_timer = self._loop.call_later(ABANDON_AFTER, self._abandon)

    def _abandon(self) -> None:
        stuck = self._running
        for worker in stuck:
            logger.error(
                "worker %d (pid %d) is still there %.0f s after SIGKILL, stuck in the kernel; going on without it,"
                " this machine may need a reboot",
                worker.local_rank,
                worker.pid,
                ABANDON_AFTER,
            )
            self._forget(worker)
            worker.exit_code = -signal.SIGKILL
            worker.reaped = True  # so that nobody waits for it again
        self._abandoned = tuple(worker.pid for worker in stuck)
        self._over.set()

    async def _sweep(self) -> None:
        """Kill and reap what the workers left behind, children first, the workers' own zombies last."""
        deadline = self._loop.time() + ABANDON_AFTER
        await self._kill_orphans(deadline, spare=True)
        for pid in self._orphans():  # once all that it serves are gone, it removes what they left, and ends
            await _gone(pid, TIDYING)
        await self._kill_orphans(deadline + TIDYING, spare=False)
        for worker in self._workers:
            worker.kill_group(signal.SIGKILL)  # where this process is no subreaper, its orphans are not our children
        self.reap()

    async def _kill_orphans(self, deadline: float, *, spare: bool) -> None:
        # A child of one that we kill is ours a moment later, so this goes down the tree, generation by generation.
        while orphans := [pid for pid in self._orphans() if not (spare and _tidies_up(pid))]:
            for pid in orphans:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                await _gone(pid, deadline - self._loop.time())
            if self._loop.time() >= deadline:
                logger.error("processes that workers left behind do not die after SIGKILL: %s", orphans)
                break

    def _orphans(self) -> list[int]:
        """Our children that a worker of this group started, in whichever session they are now."""
        mine = set(self.pids)
        mark = f"{_MARK}={self._mark}".encode()
        return [pid for pid in proc.children(os.getpid()) if pid not in mine and _descends(pid, mine, mark)]

    def _undo_start(self) -> None:
        for worker in self._workers:
            worker.kill_group(signal.SIGKILL)
            worker.reap()
            self._forget(worker)
        self._workers.clear()


def be_subreaper(on: bool = True) -> None:
    """Make this process inherit the orphans among its descendants, for as long as it is an agent."""
    prctl.inherit_orphans(on)
    # Ignored, as some parents leave it, the kernel would throw our workers' exit codes away.
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _spawn(
    local_rank: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    ends: Streams,
    pass_fds: Sequence[int],
) -> Worker:
    try:
        process = start_bound(command, environment, stdout=ends.stdout, stderr=ends.stderr, pass_fds=pass_fds)
    except OSError as error:
        raise WorkersNotStarted(_why_not(command[0], error)) from error
    try:
        pidfd = pidfd_open(process.pid)
    except OSError as error:
        process.kill()
        process.wait()
        raise _unwatched(error) from error
    process.returncode = 0  # it is ours to wait for, not subprocess's
    return Worker(local_rank, process.pid, pidfd)


def _watched(pids: Sequence[int]) -> list[Worker]:
    """Workers that are there already; if one of them cannot be watched, none is left."""
    pidfds: list[int] = []
    try:
        pidfds += map(pidfd_open, pids)
    except OSError as error:
        for pidfd in pidfds:
            os.close(pidfd)
        for local_rank, pid in enumerate(pids):
            worker = Worker(local_rank, pid, -1)
            worker.kill_group(signal.SIGKILL)
            worker.reap()
        raise _unwatched(error) from error
    return [Worker(local_rank, *ids) for local_rank, ids in enumerate(zip(pids, pidfds, strict=True))]


def _unwatched(error: OSError) -> WorkersNotStarted:
    return WorkersNotStarted(
        f"cannot watch a worker: {error.strerror}; Outlast needs Linux 5.3 or newer, and free file descriptors"
    )


def start_bound(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int | None,
    stderr: int | None,
    pass_fds: Sequence[int],
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, with default signals, that dies with this process."""
    # A signal between fork and exec would run the agent's handlers in the child, on the agent's own wake-up pipe.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SETTABLE)
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=_before_exec(os.getpid()),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _before_exec(agent: int) -> Callable[[], None]:
    def prepare() -> None:
        prctl.die_with(agent)
        for signum in _SETTABLE:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    return prepare


def _why_not(program: str, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT:
            hint = "check the path, or whether the interpreter on its first line exists"
        case errno.EACCES:
            hint = "make it executable (chmod +x), or leave --no-python out to run it with Python"
        case errno.ENOEXEC:
            hint = "give it a first line such as #!/bin/sh, or leave --no-python out to run it with Python"
        case errno.EAGAIN:
            hint = "too many processes: raise ulimit -u or the container's pids limit"
        case errno.ENOMEM:
            hint = "this machine is out of memory"
        case errno.E2BIG:
            hint = "its arguments and environment are too long"
        case _:
            hint = "see the worker command"
    return f"cannot start {program!r}: {error.strerror}; {hint}"


def _exit_code(pid: int) -> int:
    """The exit code of a process that has exited, which stays a zombie."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        result = None
    if result is None:
        logger.warning("the exit code of worker process %d was taken by somebody else; it counts as failed", pid)
        return 255
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


async def _gone(pid: int, timeout: float) -> None:
    """Wait until our child has exited, and reap it."""
    try:
        await asyncio.wait_for(exited(pid), max(timeout, 0))
    except asyncio.TimeoutError:
        pass  # the caller watches the deadline
    _reap(pid)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _tidies_up(pid: int) -> bool:
    command = proc.command(pid)
    return any(tidier in command for tidier in TIDIERS)


def _descends(pid: int, sessions: set[int], mark: bytes) -> bool:
    try:
        return os.getsid(pid) in sessions or mark in proc.environment(pid)
    except (ProcessLookupError, PermissionError):
        return False
