"""Starts worker processes, or takes over ones that exist already, and watches each by a pidfd."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from outlast.agent.processes.worker import Streams, Worker
from outlast.system import prctl
from outlast.system.pidfd import pidfd_open

_SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python itself ignores them


class WorkersNotStarted(OSError):
    """A worker could not be started, and none runs. The message is one line that says what to change."""


def spawn(
    local_rank: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    ends: Streams,
    pass_fds: Sequence[int],
) -> Worker:
    """Start one worker and watch it. Raises `WorkersNotStarted`."""
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


def gone_on(
    parked: Sequence[Worker], environments: Sequence[Mapping[str, str]], streams: Sequence[Streams]
) -> Iterator[Worker]:
    """The parked workers that are there, told to go on; new objects, as the old ones are still their group's."""
    for each in parked:
        rank, link = each.local_rank, each.link
        if each.exit_code is not None:
            continue
        if link is not None and link.become(each.environment, environments[rank], streams[rank]):
            yield Worker(rank, each.pid, each.pidfd, link=link)
        else:
            each.kill_group(signal.SIGKILL)


def watched(local_ranks: Sequence[int], pids: Sequence[int]) -> list[Worker]:
    """Workers that are there already; if one of them cannot be watched, none is left."""
    pidfds: list[int] = []
    try:
        pidfds += map(pidfd_open, pids)
    except OSError as error:
        for pidfd in pidfds:
            os.close(pidfd)
        for local_rank, pid in zip(local_ranks, pids, strict=True):
            worker = Worker(local_rank, pid, -1)
            worker.kill_group(signal.SIGKILL)
            worker.reap()
        raise _unwatched(error) from error
    return [Worker(*ids) for ids in zip(local_ranks, pids, pidfds, strict=True)]


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
    """Start a program in a session of its own that dies with this process.

    Its signals are as under torchrun: default, but for those that whoever started this process (`nohup`, a shell's `&`)
    had it ignore, and that it does not handle itself.
    """
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
            if signum in _PYTHONS or signal.getsignal(signum) is not signal.SIG_IGN:
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
