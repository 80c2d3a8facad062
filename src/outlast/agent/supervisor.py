"""The process that starts an agent again when it was killed or has crashed: `outlast run --supervise`.

It is there for as long as the job, and does nothing: so it is small. `become` replaces the process that the user
started by a bare interpreter that runs this file by its path, without site-packages; it must import next to nothing.

The agent is its child, in a session of its own: what a terminal or a `kill` sends to the process group reaches the
supervisor alone, which passes it on once. (To an agent a second signal means: end at once.) When the supervisor dies,
the kernel kills the agent, and with it the workers.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

if __name__ == "__main__":  # the path has nothing but the standard library
    sys.path.append(__file__.rpartition("/outlast/")[0])

from outlast.system import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import NoReturn

CRASHED = 70  # the exit code of an agent that met an error of its own; sysexits.h calls it EX_SOFTWARE
DEATHS = 5  # within WINDOW seconds, and it is given up
WINDOW = 60.0
FIRST_DELAY = 0.5  # seconds before the second start in a row, then twice as many each time
ABANDON_AFTER = 10.0  # seconds, as for workers: after SIGKILL only the kernel can hold a process

# Not for the agent: what stops and continues a process, what its own faults raise, what a terminal says in passing.
_NOT_PASSED_ON = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
    *(signal.SIGCHLD, signal.SIGPIPE, signal.SIGURG, signal.SIGWINCH),
}
PASSED_ON = signal.valid_signals() - _NOT_PASSED_ON
# Who dies of one of these was asked to end, before it could handle it.
_REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}

_supervisor = 0  # in an agent: the process that it is bound to


def become(command: Sequence[str]) -> NoReturn:
    """Turn this process into the supervisor of an agent: `command` starts it, and calls `bind` with our pid."""
    from outlast.system import prctl  # not in the supervisor: there ctypes would cost a megabyte for nothing

    prctl.inherit_orphans()  # what a dead agent leaves behind comes to us
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *command])


def bind(supervisor: int) -> None:
    """Make this process an agent that dies with its supervisor, and tells it when it has crashed."""
    from outlast.system import prctl

    global _supervisor
    prctl.die_with(supervisor)
    _supervisor = supervisor
    sys.excepthook = _crash


def bound() -> bool:
    """Whether this process is the agent of a supervisor."""
    return _supervisor != 0


def patience(deaths: Sequence[float], now: float) -> float | None:
    """Seconds to wait, after these deaths, before the agent is started again; None: it dies too often.

    >>> patience([100.0], 100.0), patience([98.0, 99.0, 100.0], 100.0), patience([1.0, 100.0], 100.0)
    (0.0, 1.0, 0.0)
    """
    recent = sum(1 for death in deaths if death > now - WINDOW)
    if recent >= DEATHS:
        return None
    return FIRST_DELAY * 2.0 ** (recent - 2) if recent > 1 else 0.0


class Supervisor:
    """One agent after the other, until one ends of itself, or there have been too many."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._asked = ""  # the last signal that was passed on: after that, an agent's end is no accident
        self._deaths: list[float] = []
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some parents leave it, no exit code would come
        self._heard = {signal.SIGCHLD, *PASSED_ON}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)

    def run(self) -> int:
        """Supervise; returns the exit code for this process."""
        while True:
            how, code = self._life()
            if how is None:
                return code
            if self._asked:
                return _give_up(f"the agent {how}, after {self._asked}")
            now = time.monotonic()
            self._deaths = [*(death for death in self._deaths if death > now - WINDOW), now]
            delay = patience(self._deaths, now)
            if delay is None:
                times = f"the agent has died {len(self._deaths)} times within {WINDOW:.0f} s"
                return _give_up(f"{times}, and is not started again: at last it {how}")
            when = f"in {delay:g} s" if delay else "now"
            _say(f"the agent {how}: starting it again {when} ({len(self._deaths)} of {DEATHS} within {WINDOW:.0f} s)")
            if self._told_within(delay):
                return _give_up(f"{self._asked}, while no agent was running")

    def _life(self) -> tuple[str | None, int]:
        """Start an agent and await its end: how it died, or None and the exit code with which it has ended."""
        try:
            agent = self._start()
        except OSError as error:
            return f"could not be started ({error.strerror})", 0
        code = self._attend(agent)
        if 0 <= code != CRASHED:
            return None, code
        self._clear_up_after(agent)
        if code == CRASHED:
            return "crashed (its last words are above)", code
        if -code in _REQUESTS:
            self._asked = self._asked or _name(-code)
        return f"(pid {agent}) was killed by {_name(-code)}", code

    def _start(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own would raise, in between
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            os.execv(self._command[0], self._command)
        except OSError as error:
            _say(f"cannot start {self._command[0]}: {error.strerror}")
        finally:
            os._exit(CRASHED)

    def _attend(self, agent: int) -> int:
        """Pass signals on until the agent has ended; its exit code, as subprocess gives it."""
        while True:
            status = _reap(agent)
            if status is not None:
                return os.waitstatus_to_exitcode(status)
            number = self._hear()
            if number:
                os.kill(agent, number)  # not reaped yet, so the pid is still its own

    def _hear(self, timeout: float | None = None) -> int:
        """Await a signal: one that asks for something, or 0 when a child has ended or the time is over."""
        info = signal.sigwaitinfo(self._heard) if timeout is None else signal.sigtimedwait(self._heard, timeout)
        if info is None or info.si_signo == signal.SIGCHLD:
            return 0
        self._asked = _name(info.si_signo)
        return info.si_signo

    def _told_within(self, seconds: float) -> bool:
        """Whether somebody asks for the end, or has, before the time is over."""
        until = time.monotonic() + seconds
        while not self._asked:
            left = until - time.monotonic()
            if not self._hear(max(left, 0)) and left <= 0:
                break
            _reap(0)
        return bool(self._asked)

    def _clear_up_after(self, agent: int) -> None:
        """Await the end of a dead agent's workers, which the kernel has killed, and kill what they leave behind."""
        mark = f"OUTLAST_WORKER_GROUP={agent}-".encode()
        deadline = time.monotonic() + ABANDON_AFTER
        # A child of one that we kill is ours a moment later, so this goes down the tree, generation by generation.
        while left := [pid for pid in proc.find_children(os.getpid()) if _is_marked(pid, mark)]:
            if time.monotonic() >= deadline:
                _say(f"processes of workers are still there {ABANDON_AFTER:.0f} s after SIGKILL: {left}")
                return
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._hear(0.1)
            _reap(0)


def _reap(agent: int) -> int | None:
    """Take leave of every child that has ended; the agent's status if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == agent:
                status = ended
    return status


def _is_marked(pid: int, mark: bytes) -> bool:
    """Whether it is of a worker, and has not ended: a zombie has no environment."""
    return any(entry.startswith(mark) for entry in proc.environment(pid))


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What ends an agent that nobody foresaw: the traceback, and an exit code that means nothing else."""
    sys.__excepthook__(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CRASHED)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one


def _say(text: str) -> None:
    _write(f"{time.strftime('%H:%M:%S')} outlast supervisor: {text}\n")


def _give_up(why: str) -> int:
    _write(f"outlast run: error: {why}\n")
    return 1


def _write(line: str) -> None:
    with suppress(OSError):  # a terminal that has gone away must not take the job with it
        os.write(2, line.encode(errors="replace"))


if __name__ == "__main__":
    sys.exit(Supervisor(sys.argv[1:]).run())
