"""A worker with what multiprocessing keeps in /dev/shm: semaphores, a shared-memory segment, a child that uses both.

In the first generation it waits for its end, `--stubborn` or not; later ones exit with 0.
"""

import multiprocessing
import os
import signal
import sys
from multiprocessing.shared_memory import SharedMemory


def hold(lock, queue) -> None:
    with lock:
        queue.put("held")
        signal.pause()


if __name__ == "__main__":
    generation, rank = os.environ["OUTLAST_GENERATION"], os.environ["RANK"]
    if generation != "1":
        sys.exit(0)
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context = multiprocessing.get_context("spawn")
    segment = SharedMemory(create=True, size=4096)
    queue, lock = context.Queue(), context.Lock()
    child = context.Process(target=hold, args=(lock, queue))
    child.start()
    queue.get()
    os.write(1, f"rank {rank} shares: pid {os.getpid()}\n".encode())
    signal.pause()
