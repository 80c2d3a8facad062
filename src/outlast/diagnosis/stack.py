"""Where a process is: what its Python, and the kernel, say of it at one moment. Plain data, and how to read it.

Two tools tell: py-spy, which reads the process's memory, and Python's own faulthandler, which writes it down when a
signal comes. Their output is text of another process, perhaps cut off in the middle: what cannot be read is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

INNER, OUTER = 32, 8  # of a deep stack, so many frames are kept at either end
THREADS = 4  # besides the main one

Text = Annotated[str, msgspec.Meta(max_length=512)]


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One call: the function, and the line that it is at."""

    function: Text
    file: Text
    line: int
    source: Text = ""  # the text of the line, where somebody has read it


class Child(msgspec.Struct, frozen=True, array_like=True):
    """A process that the worker has started."""

    pid: int
    name: Text
    state: Text


class Stack(msgspec.Struct, frozen=True, array_like=True):
    """Where a process is. Frames are the innermost first; none, if nobody could tell."""

    frames: tuple[Frame, ...] = ()  # of the main thread
    others: tuple[tuple[Frame, ...], ...] = ()  # of threads that run the user's code
    state: Text = ""  # the kernel's letter: R, S, D, T, t, Z, X; empty: there is no such process
    wchan: Text = ""  # the function of the kernel in which the main thread sleeps
    syscall: int | None = None  # its number; None: in no system call, or not to be seen
    kernel: tuple[Text, ...] = ()  # the kernel's own stack, where we may see it
    children: tuple[Child, ...] = ()
    how: Text = ""  # "py-spy", "signal"; empty: by /proc alone
    age: float = 0.0  # seconds since then
    trouble: Text = ""  # why there are no frames


class ThreadStack(msgspec.Struct, frozen=True):
    """The frames of one thread, the innermost first."""

    frames: tuple[Frame, ...]
    main: bool = False


_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\):$")
_FRAME = re.compile(r'  File (?:"(?P<file>.*)"|\?\?\?), line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def read_faulthandler(text: str) -> list[ThreadStack]:
    """The threads that faulthandler has written down. The last of them is the main thread: it lists the newest first.

    >>> read_faulthandler('Current thread 0x01 (most recent call first):\\n  File "a.py", line 3 in f\\n')[0].frames
    (Frame(function='f', file='a.py', line=3, source=''),)
    """
    threads: list[list[Frame]] = []
    for line in text.replace("\0", "").splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            number = int(match["line"]) if match["line"].isdecimal() else 0
            threads[-1].append(_frame(match["function"], match["file"] or "???", number))
    return [ThreadStack(tuple(frames), main=frames is threads[-1]) for frames in threads]


def read_py_spy(text: str, pid: int) -> list[ThreadStack]:
    """The threads in what `py-spy dump --json` has written; none if it cannot be read."""
    try:
        listed: Any = json.loads(text)
        return [
            ThreadStack(
                tuple(_frame(each["name"], each["filename"], int(each["line"])) for each in thread["frames"]),
                main=thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread",
            )
            for thread in listed
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


@lru_cache(maxsize=4096)  # the ranks of a job are mostly in the same files
def library(file: str) -> str:
    """The file within its library, `torch/_tensor.py`; "-" for Python's own; empty for the user's.

    >>> library("/opt/venv/lib/python3.11/site-packages/torch/_tensor.py"), library("/home/me/train.py")
    ('torch/_tensor.py', '')
    """
    if file.startswith("<") and file not in ("<string>", "<stdin>"):
        return "-"  # <frozen importlib._bootstrap>
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return file.rpartition(mark)[2]
    if re.search(r"/lib(64)?/python3\.?\d+(\.zip)?/", file):
        return "-"
    # Installed from a checkout.
    match = re.search(r"/((?:torch/(?:distributed|utils|autograd|nn)|outlast/(?:worker|integrations))/.*)", file)
    return match[1] if match else ""


def is_user(frame: Frame) -> bool:
    """Whether a frame is of the user's own code."""
    return not library(frame.file)


def interesting(threads: Iterable[ThreadStack]) -> tuple[tuple[Frame, ...], ...]:
    """The frames of the threads, but the main one, that run code of the user's."""
    return tuple(trim(each.frames) for each in threads if not each.main and any(map(is_user, each.frames)))[:THREADS]


def trim(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """A stack without the middle of a deep recursion."""
    if len(frames) <= INNER + OUTER:
        return tuple(frames)
    return (*frames[:INNER], *frames[-OUTER:])


def _frame(function: str, file: str, line: int) -> Frame:
    # py-spy gives qualified names, faulthandler does not; compared with one another, they must be alike.
    return Frame(function.rpartition(".")[2][:512], file[-512:], line)
