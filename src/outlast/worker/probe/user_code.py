"""Which line of the user's own code is at work: the innermost one that is neither Python's, nor installed, nor ours."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parents[2])
_INSTALLED = tuple(
    dict.fromkeys(
        os.path.realpath(path) + os.sep
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    )
)


@cache
def is_users(filename: str) -> bool:
    """Whether this file is the user's.

    >>> is_users(os.__file__), is_users("<frozen importlib._bootstrap>"), is_users("/home/me/train.py")
    (False, False, True)
    """
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    return not path.startswith((*_INSTALLED, _OURS + os.sep)) and "site-packages" not in path


def line_of(frame: FrameType | None) -> str:
    """`file:line` of the innermost frame of the user's at or above this one; empty, if there is none."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{os.path.realpath(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def calling_line() -> str:
    """The user's line that has led here."""
    return line_of(sys._getframe(1))
