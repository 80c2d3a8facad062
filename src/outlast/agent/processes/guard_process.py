"""The guard: a process beside the agent that kills the workers when their lease ends, whatever the agent does.

An agent that is stopped, or gets no processor, cannot end its workers in time. This process shares one page of memory
with it: the end of the lease, and who the workers are. It sleeps until the end that it last read, and reads again:
while leases are renewed it wakes once per lease, and not at all where no worker runs. A pipe from the agent wakes
it when that would be too late: a byte says that there are new workers or an earlier end; its end is the agent's.

Run by its path, `python -I -S guard_process.py MEMORY BELL`, with few imports: it is there for as long as the agent
is, on every node. Of ours it imports `system/proc.py` alone, which imports nothing that is not here already. It tells
time as `outlast/system/clock.py` does, and says why there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import sys
import time

if __name__ == "__main__":  # the path has nothing but the standard library
    sys.path.append(__file__.rpartition("/outlast/")[0])

from outlast.system import proc

WORD = 8  # bytes. The page is the end of the lease, then one word per worker; each is written by a single store
PID_BITS = 22  # no pid needs more, by the kernel's own limit
NOBODY = 0

SIGKILL = 9  # here and below without the modules that would have the names: they are larger than this one
CLOCK_BOOTTIME = 7
TFD_CLOEXEC = 0o2000000
TFD_TIMER_ABSTIME = 1

_libc = ctypes.CDLL(None, use_errno=True)


def main(memory: int, bell: int) -> None:
    """Guard until the agent is gone."""
    page = memoryview(mmap.mmap(memory, 0, access=mmap.ACCESS_READ))
    lease, places = page[:WORD].cast("d"), page[WORD:].cast("q")
    timer = checked(_libc.timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC))
    poll = select.poll()
    poll.register(timer, select.POLLIN)
    poll.register(bell, select.POLLIN)
    while True:
        wake_at(timer, tend(lease, places))
        for descriptor, _ in poll.poll():
            if descriptor == bell and not os.read(bell, 4096):
                return


def tend(lease: memoryview[float], places: memoryview[int]) -> float:
    """Kill the workers if their lease has ended; returns when to look again."""
    workers = [word for word in places if word != NOBODY]
    if not workers:
        return float("inf")
    end = lease[0]
    if time.clock_gettime(CLOCK_BOOTTIME) < end:
        return end
    kill(workers)
    return float("inf")  # until the agent is back, and rings for the next ones


def wake_at(timer: int, moment: float) -> None:
    """Set the timer, to a moment by the clock that counts a machine's sleep; never: to infinity."""
    # Zero disarms it. One more than rounded down: woken a trace too early, it would have to go to sleep again.
    seconds, nanoseconds = divmod(int(moment * 1e9) + 1, 10**9) if moment < float("inf") else (0, 0)
    setting = (ctypes.c_long * 4)(0, 0, seconds, nanoseconds)
    checked(_libc.timerfd_settime(timer, TFD_TIMER_ABSTIME, setting, None))


def kill(workers: list[int]) -> None:
    """SIGKILL workers, and all that is left in their sessions.

    The workers and their process groups go first and at once; then what has a process group of its own is looked for.
    What has left even the session is for the agent to find, which inherits it.
    """
    sessions = {pid for pid in map(pid_of, workers) if identity(pid) in workers}
    for pid in sessions:
        send_kill(pid)
        send_kill(-pid)  # the process group
    killed: set[int] = set()
    # Again as long as there is somebody new: one that was killed may have forked before. Nobody twice, as one that is
    # stuck in the kernel stays to be found.
    while found := members(sessions) - killed:
        for pid in found:
            send_kill(pid)
        killed |= found


def send_kill(target: int) -> None:
    """SIGKILL, to one that may be gone, or another user's by now (sudo)."""
    try:
        os.kill(target, SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def members(sessions: set[int]) -> set[int]:
    """The processes in these sessions that have not ended."""
    stats = ((pid, proc.stat(pid)) for pid in proc.pids())
    return {pid for pid, stat in stats if stat is not None and not stat.ended and stat.session in sessions}


def identity(pid: int) -> int:
    """A process in one word: its pid, and when it started, so that no later process of that pid is taken for it."""
    stat = proc.stat(pid)
    return stat.started << PID_BITS | pid if stat is not None else NOBODY


def pid_of(word: int) -> int:
    return word & (1 << PID_BITS) - 1


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
