"""A worker inside a restartable function: how it leaves its generation, and goes on in the next, without ending.

Its agent says over a socket that the generation is over. A thread hears it: it cuts the connections of all process
groups, so that no collective waits any longer, and interrupts the main thread with a signal, whose handler raises
`GenerationOver`. Once the function is out, its groups are destroyed, what was kept of the generation is let go, and the
worker says that it is parked. It then waits to be told which rank of which generation it is.

What does not leave in time is killed by the agent, as any worker is. So nothing here needs a deadline of its own.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import FrameType
from typing import Any, TypeVar

from outlast.protocol.in_place import (
    BECOME,
    DECLINED,
    DESCRIPTORS,
    ENTERED,
    FAILED,
    LEAVE,
    LONGEST,
    PARKED,
    RETURNED,
    STANDBY,
    VARIABLE,
)
from outlast.worker import generations
from outlast.worker.group_sockets import group_sockets

SIGNAL = 61  # SIGRTMAX - 3, beside that of `dump.py`
AGAIN = 0.1  # seconds from one interruption to the next, for code that has swallowed it

log = logging.getLogger("outlast")

Result = TypeVar("Result")


class GenerationOver(BaseException):
    """The generation is over, and this rank leaves the restartable function to enter it again in the next one.

    Let it pass. It is no `Exception`, so that `except Exception` does. Use `finally` or `with` to clean up.
    """


class Whereabouts(Enum):
    """Where the main thread is."""

    INSIDE = "inside"  # the function
    LEAVING = "leaving"  # it, as the agent has asked
    OUTSIDE = "outside"


class InPlaceWorker:
    """This process, from when it first enters the function until it has returned for good.

    worker = InPlaceWorker.of_agent(timeout=None)
    worker.stand_by()
    while not worker.attempt(function)[0]:
        worker.park(cleanup, health_check)
        worker.go_on()
    worker.close()
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._where = Whereabouts.OUTSIDE
        self._lock = threading.RLock()
        self._out = threading.Event()
        self._births: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._process = os.getpid()
        self._main = threading.get_ident()
        self._show = sys.excepthook
        # What is there before the function stays, and need not be looked at in each restart: that takes 0.2 s.
        gc.freeze()
        self._before = signal.signal(SIGNAL, self._interrupted)
        threading.Thread(target=self._listen, name="outlast-in-place", daemon=True).start()

    @classmethod
    def of_agent(cls, timeout: float | None) -> InPlaceWorker | None:
        """This process as a worker of an agent that restarts in place; None if it is not."""
        name = os.environ.get(VARIABLE)
        if not name or threading.current_thread() is not threading.main_thread():
            return None
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            link.settimeout(None)
            link.connect(f"\0{name}")
            link.send(ENTERED + (f" {timeout}" if timeout is not None else "").encode())
        except OSError:
            link.close()
            return None  # a process that the worker started, say, after the agent's end
        return cls(link)

    def attempt(self, function: Callable[[], Result]) -> tuple[bool, Result | None]:
        """Call the function: whether it has returned, and what. It has not, if the generation is over or it raised."""
        raised: BaseException | None = None
        try:
            try:
                self._set(Whereabouts.INSIDE)
                return True, function()
            finally:
                asked = self._left()
        except GenerationOver as over:
            self._left()
            raised = over
        except Exception as error:  # noqa: BLE001  (whatever the function raises)
            if not asked:
                self._tell_failure(error)
            raised = error
        _clear(raised)
        return False, None

    def park(self, cleanup: Callable[[], Any] | None, health_check: Callable[[], Any] | None) -> None:
        """Let go of the generation, and say so. Raises what the hooks raise; SystemExit if it cannot be done."""
        if why := group_sockets.stuck():
            self._decline(why)
            raise SystemExit(1)
        group_sockets.cut()
        try:
            _destroy_groups()
            generations.end()
            sys.excepthook = self._show  # torch adds a "[rank0]: " to it with every process group
            if cleanup is not None:
                cleanup()
            gc.collect()
            if health_check is not None:
                health_check()
        except Exception:
            self._say(DECLINED)
            raise
        group_sockets.cut()  # also what a hook may have begun
        group_sockets.forget()
        self._say(PARKED)

    def stand_by(self) -> None:
        """A process that replaces one that died, while others go on: wait for a generation before entering."""
        if os.environ.get(STANDBY):
            generations.end()  # set-up may have written to nobody's board
            self._say(PARKED)
            self.go_on()

    def go_on(self) -> None:
        """Wait for the next generation, and be its worker. Raises SystemExit if there is none."""
        descriptors = self._births.get()
        if not descriptors:
            raise SystemExit(1)
        changes, *streams = descriptors
        with os.fdopen(changes, "rb") as file:
            content = json.load(file)
        generations.begin(content, streams)
        for stream in streams:
            os.close(stream)

    def close(self) -> None:
        """The function is done, or has given up: from now on this worker is as any other."""
        self._left()
        with suppress(OSError):
            self._link.send(RETURNED)
            self._link.shutdown(socket.SHUT_RDWR)  # which ends the thread
        signal.signal(SIGNAL, self._before if self._before is not None else signal.SIG_DFL)

    # -- the main thread

    def _set(self, where: Whereabouts) -> None:
        with self._lock:
            self._where = where
            self._out.clear()

    def _left(self) -> bool:
        """The function is out: whether that was asked for."""
        with self._lock:
            before, self._where = self._where, Whereabouts.OUTSIDE
            self._out.set()
        return before is Whereabouts.LEAVING

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        if self._where is Whereabouts.LEAVING and os.getpid() == self._process and not _unwinding():
            raise GenerationOver("this generation of the job is over")

    def _tell_failure(self, error: Exception) -> None:
        """As if the exception had ended this process: shown, left on the board, and then said."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        self._say(FAILED)

    def _decline(self, why: str) -> None:
        log.warning("outlast: this rank is not restarted in place: %s", why)
        self._say(DECLINED)

    def _say(self, word: bytes) -> None:
        with suppress(OSError):  # the agent has gone, and so will we
            self._link.send(word)

    # -- the thread that hears the agent

    def _listen(self) -> None:
        with self._link:
            while True:
                try:
                    word, descriptors, _, _ = socket.recv_fds(self._link, LONGEST, DESCRIPTORS)
                except OSError:
                    word, descriptors = b"", []
                if word == LEAVE:
                    self._leave()
                elif word == BECOME:
                    self._births.put(list(descriptors))
                else:
                    self._births.put([])
                    return

    def _leave(self) -> None:
        with self._lock:
            if self._where is not Whereabouts.INSIDE:
                return  # it is on its way by itself
            if why := group_sockets.stuck():
                self._decline(why)
                return
            self._where = Whereabouts.LEAVING
        group_sockets.cut()
        while not self._out.is_set():
            signal.pthread_kill(self._main, SIGNAL)
            self._out.wait(AGAIN)


def _unwinding() -> bool:
    """Whether the thread that was interrupted is on its way out already, in some `finally` or `except`."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, GenerationOver):
        error = error.__context__
    return error is not None


def _destroy_groups() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()  # raises what a kernel may have done to this process: then it is replaced


def _clear(error: BaseException | None) -> None:
    """Let go of what the function's frames hold: a DDP that lived on would take part in the next backward."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        with suppress(RuntimeError):  # a frame that still runs: ours
            traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
