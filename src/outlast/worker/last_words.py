"""What a worker ends with, also without torch's `@record`: the exception that nobody caught, left on the board.

Loaded before the script, so nothing is imported here that Python has not imported by itself; the rest follows when
there is an exception. What the script prints, and whatever hook it has, stays as it is.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import NoReturn, TextIO

BOARD = "OUTLAST_BOARD"  # board.VARIABLE, which is not loaded yet

TRACE_LINES = 60  # that a traceback is condensed to

_told: list[BaseException] = []
_address = ""


def begin_anew() -> None:
    """Find this process's board again: it goes on in a new generation."""
    global _address
    _address = os.environ.get(BOARD, "")
    _told.clear()


def install() -> None:
    """Leave the exception that ends this process on its board, if it has one."""
    begin_anew()
    if not _address:
        return
    worker, shown, pythons = os.getpid(), sys.excepthook, sys.exit

    def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # A child of the worker is not the worker.
        if os.getpid() == worker and error not in _told:
            _told.append(error)
            try:
                write(_address, kind, error, trace)
            except Exception as problem:  # noqa: BLE001  (whatever it is, the script's own exception is the news)
                error.__dict__.setdefault("__outlast__", problem)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        leave(kind, error, trace)
        shown(kind, error, trace)

    def ending() -> None:
        # A script with a hook of its own: Python keeps what it gave to it.
        error = getattr(sys, "last_value", None) or exiting[0]
        if isinstance(error, BaseException):
            leave(type(error), error, error.__traceback__)

    # `sys.exit("why")` is no exception to Python: it prints the text, and no hook hears of it.
    exiting: list[SystemExit | None] = [None]

    def exit(status: str | int | None = None, /) -> NoReturn:  # noqa: A001  (tracebacks name it so)
        exiting[0] = SystemExit(status) if isinstance(status, str) else None
        pythons(status)

    if shown is sys.__excepthook__:
        # A script that looks whether it has a hook finds none, and one that calls Python's own calls this. (Not where
        # a module that was preloaded has a hook already: that one may call Python's own, too.)
        sys.__excepthook__ = hook
    sys.excepthook = hook
    sys.exit = exit
    _listen(sys.stderr, lambda text: exiting.__setitem__(0, SystemExit(text)))
    atexit.register(ending)


def _listen(stream: TextIO | None, heard: Callable[[str], None]) -> None:
    """Hear what Python itself writes to this stream when it ends, the text of `raise SystemExit("why")`.

    No hook is told of that exception, and it is gone before anything else runs.
    """
    if type(stream).__name__ != "TextIOWrapper":
        return
    assert stream is not None
    put = stream.write

    def write(text: str, /) -> int:
        try:
            sys._getframe(1)
        except ValueError:  # no Python code has called this
            if text.strip():
                heard(text)
        return put(text)

    stream.write = write  # type: ignore[method-assign]


def write(address: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Put it down."""
    import time
    import traceback

    from outlast.board.layout import PID
    from outlast.board.readings import LastWords
    from outlast.board.slot import BoardSlot
    from outlast.tracebacks import condensed

    slot = BoardSlot.at(address)
    if slot.words[PID] not in (0, os.getpid()):
        return
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(error)
    except Exception as problem:  # noqa: BLE001  (of the user's own class)
        message = f"<its message raised {type(problem).__name__}>"
    text = condensed("".join(traceback.format_exception(kind, error, trace)), TRACE_LINES)
    slot.leave(LastWords(time.time(), name, message, text))
