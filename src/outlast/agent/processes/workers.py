"""The worker processes of one generation on one node: started, watched by pidfd, and gone after `stop`.

Nothing of a worker that is stopped outlives it. Each has a session of its own, so that its children can be killed with
it; the kernel kills it when the agent dies; and the agent, as a subreaper, inherits and kills what slipped away. Only
where all have exited with 0 what they left running is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from outlast.agent.processes.spawning import gone_on, spawn, watched
from outlast.agent.processes.worker import Streams, Worker
from outlast.system import prctl, proc
from outlast.system.pidfd import exited

logger = logging.getLogger(__name__)

OnExit = Callable[[int, int, int], None]
Fork = Callable[[Sequence[Sequence[str]], Sequence[Mapping[str, str]], "Sequence[Streams]"], "list[int] | None"]

# After SIGKILL only the kernel can hold a process (uninterruptible sleep, on a GPU or a dead file server).
ABANDON_AFTER = 10.0
# Programs that remove semaphores and shared memory of the processes that they serve, when the last of these has ended.
TIDIERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
TIDYING = 2.0  # seconds for that

_MARK = "OUTLAST_WORKER_GROUP"  # tells our workers' descendants from all other children of this process


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
        self._leaving_signal, self._leaving_grace = int(signal.SIGTERM), 0.0
        self._shares_mark = False  # what has this mark may belong to workers of another group
        self.parked_died: Callable[[], None] = lambda: None

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
        parked: Sequence[Worker] = (),
        only: Collection[int] | None = None,
    ) -> WorkerGroup:
        """Start one worker per command. Local rank i gets the i-th of each; the streams are closed here.

        `only`: just these local ranks, beside those that are parked in other groups, with the mark that they have.

        Those that are `parked`, of an earlier group, go on as the workers of their local ranks. Others are new.
        `fork` may give them as processes that are there already, children of this one; if it gives None, they are
        started here, with the environment that `cold` makes of theirs, and the descriptors of `pass_fds` open.
        `on_exit(local_rank, pid, exit_code)` is called from the event loop, once per worker; a negative exit code
        is the signal that ended it. Raises `WorkersNotStarted`; those already started are dead by then.
        """
        group = cls(on_exit)
        try:
            # What a parked worker started in an earlier generation has the mark of that one.
            group._mark = next((each.environment[_MARK] for each in parked), group._mark)
            if only is not None:
                group._mark, group._shares_mark = environments[0][_MARK], True
            environments = [{**environment, _MARK: group._mark} for environment in environments]
            group._workers += gone_on(parked, environments, streams)
            stayed = {worker.local_rank for worker in group._workers}
            wanted = range(len(commands)) if only is None else sorted(only)
            ranks = [rank for rank in wanted if rank not in stayed]
            births = [(commands[rank], environments[rank], streams[rank]) for rank in ranks]
            pids = fork(*zip(*births, strict=True)) if fork is not None and births else None
            if pids is not None:
                group._workers += watched(ranks, pids)
            else:
                for rank, (command, environment, ends) in zip(ranks, births, strict=True):
                    group._workers.append(spawn(rank, command, cold(environment), ends, pass_fds))
        except OSError:
            group._undo_start()
            raise
        finally:
            for ends in streams:
                ends.close()
        group._workers.sort(key=lambda worker: worker.local_rank)
        for worker in group._workers:
            worker.environment = environments[worker.local_rank]
            group._loop.add_reader(worker.pidfd, group._exited, worker)
        if not group._workers:
            group._over.set()
        return group

    @classmethod
    def of_parked(cls, parked: Sequence[Worker]) -> WorkerGroup:
        """Workers that wait for a generation that does not come: to be stopped."""
        group = cls(lambda _rank, _pid, _code: None)
        group._mark = next((each.environment[_MARK] for each in parked), group._mark)
        group._workers += (Worker(each.local_rank, each.pid, each.pidfd) for each in parked if each.exit_code is None)
        for worker in group._workers:
            group._loop.add_reader(worker.pidfd, group._exited, worker)
        group._look_whether_over()
        return group

    @property
    def workers(self) -> Sequence[Worker]:
        """All of them, by local rank."""
        return self._workers

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker processes, by local rank."""
        return tuple(worker.pid for worker in self._workers)

    @property
    def alive(self) -> tuple[int, ...]:
        """The local ranks of the workers that still run."""
        return tuple(worker.local_rank for worker in self._running)

    @property
    def restartable(self) -> tuple[int, ...]:
        """The local ranks of the workers inside a restartable function, which can be told to leave it."""
        return tuple(worker.local_rank for worker in self._running if worker.link is not None)

    def send_signal(self, signum: int) -> None:
        """Forward a signal to every live worker and the children in its process group."""
        for worker in self._running:
            if not worker.leaving and (not worker.ending or signum == signal.SIGKILL):
                worker.signal(signum)

    def running(self, pid: int) -> Worker | None:
        """The worker that is this process, if it is one and has neither exited nor been parked."""
        return next((worker for worker in self._running if worker.pid == pid), None)

    def park(self, worker: Worker) -> None:
        """It has left its function, and nothing of it can reach this generation any more."""
        worker.parked, worker.leaving = True, False
        self._look_whether_over()

    def give_up_on(self, worker: Worker) -> None:
        """It will not leave, or is no longer inside the function: end it as any other, if it was to leave."""
        worker.link = None
        if worker.leaving and worker.exit_code is None:
            worker.leaving = False
            worker.signal(self._leaving_signal)
            self._loop.call_later(self._leaving_grace, self._kill)

    @property
    def parked(self) -> list[Worker]:
        """The workers that wait for the next generation."""
        return [worker for worker in self._workers if worker.parked and worker.exit_code is None]

    def end(self, local_rank: int, signum: int) -> None:
        """Tell one worker to end with this signal, also if it is stopped; `stop` is to follow, and asks it no more."""
        worker = self._workers[local_rank]
        if worker.exit_code is None:
            worker.ending = True
            worker.signal(signum)
            worker.kill_group(signal.SIGCONT)  # after it, so that it does nothing else first

    async def end_some(self, local_ranks: Sequence[int], signum: int, grace: float) -> None:
        """Tell these workers to end, and kill those that have not after `grace` seconds. The others go on."""
        some = [self._workers[each] for each in local_ranks]
        for worker in some:
            worker.signal(signum)
        await asyncio.sleep(grace)
        for worker in some:
            if worker.exit_code is None:
                worker.signal(signal.SIGKILL)

    async def clear(self, local_rank: int) -> None:
        """End what a worker that has exited left behind, so that another can take its place."""
        worker = self._workers[local_rank]
        worker.kill_group(signal.SIGKILL)
        await self._kill_orphans(self._loop.time() + ABANDON_AFTER, spare=False, of=worker)
        worker.reap()

    def replace(
        self,
        local_rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        streams: Streams,
        cold: Callable[[Mapping[str, str]], Mapping[str, str]] = dict,
    ) -> None:
        """Start another process in the place of a worker that was cleared. Raises `WorkersNotStarted`."""
        environment = {**environment, _MARK: self._mark}
        try:
            worker = spawn(local_rank, command, cold(environment), streams, ())
        finally:
            streams.close()
        worker.environment = environment
        self._workers[local_rank] = worker
        self._over.clear()
        self._loop.add_reader(worker.pidfd, self._exited, worker)

    async def stop(
        self, signum: int = signal.SIGTERM, grace: float = 30.0, *, in_place: bool = False
    ) -> tuple[int, ...]:
        """End every worker and all of its descendants; returns when they are gone.

        `in_place`: those inside a restartable function are told to leave it instead, and are parked then; those that
        do not leave in time are ended. Without grace nobody is asked, and those that are parked already stay so.

        `signum` first and SIGKILL after `grace` seconds, SIGKILL at once without grace. May be called again, also
        while another call waits: the shorter grace wins, and no worker gets a second `signum`, which would interrupt
        a handler that saves. Returns the pids that not even SIGKILL ended, for which `on_exit` is not called:
        processes stuck in the kernel, on a node that should not be used again.
        """
        timer = None
        if grace > 0:
            if not self._asked_to_end:
                self._asked_to_end = True
                if in_place:
                    self._ask_to_leave(signum, grace)
                self.send_signal(signum)
            timer = self._loop.call_later(grace, self._kill)
        else:
            for worker in self._running:
                worker.leaving = False
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
            if not worker.parked:
                worker.reap()

    def reap_orphans(self) -> None:
        """Collect what our workers left behind and has exited. Cheap; meant for SIGCHLD in a long run."""
        for pid in self._orphans():
            _reap(pid)

    @property
    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.exit_code is None and not worker.parked]

    def _exited(self, worker: Worker) -> None:
        self._forget(worker)
        worker.exit_code = _exit_code(worker.pid)
        if worker.parked:
            worker.kill_group(signal.SIGKILL)
            worker.reap()
            self.parked_died()
            return
        self._look_whether_over()
        if not worker.failed:
            self._on_exit(worker.local_rank, worker.pid, worker.exit_code)

    def _look_whether_over(self) -> None:
        if not self._running:
            self._over.set()
            if self._abandon_timer is not None:
                self._abandon_timer.cancel()

    def _ask_to_leave(self, signum: int, grace: float) -> None:
        self._leaving_signal, self._leaving_grace = signum, grace
        for worker in self._running:
            if worker.link is not None and not worker.ending and worker.link.leave():
                worker.leaving = True
                self._loop.call_later(worker.link.timeout, self._too_late, worker)

    def _too_late(self, worker: Worker) -> None:
        if worker.leaving:
            logger.warning(
                "worker %d (pid %d) has not left its restartable function in time, and is replaced by a new process",
                worker.local_rank,
                worker.pid,
            )
            self.give_up_on(worker)

    def _forget(self, worker: Worker) -> None:
        self._loop.remove_reader(worker.pidfd)
        os.close(worker.pidfd)

    def _kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        if any(not worker.leaving for worker in self._running) and self._abandon_timer is None:
            self._abandon_timer = self._loop.call_later(ABANDON_AFTER, self._abandon)

    def _abandon(self) -> None:
        stuck = [worker for worker in self._running if not worker.leaving]
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
        self._abandoned += tuple(worker.pid for worker in stuck)
        self._abandon_timer = None
        self._look_whether_over()

    async def _sweep(self) -> None:
        """Kill and reap what the workers left behind, children first, the workers' own zombies last."""
        deadline = self._loop.time() + ABANDON_AFTER
        await self._kill_orphans(deadline, spare=True)
        for pid in self._orphans():  # once all that it serves are gone, it removes what they left, and ends
            await _gone(pid, TIDYING)
        await self._kill_orphans(deadline + TIDYING, spare=False)
        for worker in self._workers:
            if worker.parked:
                continue
            worker.kill_group(signal.SIGKILL)  # where this process is no subreaper, its orphans are not our children
        self.reap()

    async def _kill_orphans(self, deadline: float, *, spare: bool, of: Worker | None = None) -> None:
        # A child of one that we kill is ours a moment later, so this goes down the tree, generation by generation.
        while orphans := [pid for pid in self._orphans(of) if not (spare and _tidies_up(pid))]:
            for pid in orphans:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                await _gone(pid, deadline - self._loop.time())
            if self._loop.time() >= deadline:
                logger.error("processes that workers left behind do not die after SIGKILL: %s", orphans)
                break

    def _orphans(self, of: Worker | None = None) -> list[int]:
        """Our children that a worker of this group started, in whichever session they are now.

        While workers are parked, only those in the session of one that is not: others may be what those still use.
        `of`: only those in the session of this one.
        """
        mine = set(self.pids)
        if of is not None:
            return [pid for pid in proc.children(os.getpid()) if pid not in mine and _descends(pid, {of.pid}, None)]
        mark = f"{_MARK}={self._mark}".encode() if not (self.parked or self._shares_mark) else None
        sessions = mine - {worker.pid for worker in self.parked}
        return [pid for pid in proc.children(os.getpid()) if pid not in mine and _descends(pid, sessions, mark)]

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


def _exit_code(pid: int) -> int:
    """The exit code of a process that has exited, which stays a zombie."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        result = None
    if result is None:
        logger.warning("the exit code of worker process %d was taken by another process; it counts as failed", pid)
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


def _descends(pid: int, sessions: set[int], mark: bytes | None) -> bool:
    try:
        return os.getsid(pid) in sessions or (mark is not None and mark in proc.environment(pid))
    except (ProcessLookupError, PermissionError):
        return False
