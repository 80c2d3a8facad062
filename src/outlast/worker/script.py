"""Becoming the user's script: this interpreter goes on as if it had been started with `python -u script.py args…`.

Used by workers that the zygote forked and by those that were started the ordinary way alike, so that there is one
way in which a script runs.
"""

from __future__ import annotations

import ctypes
import io
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

ARG_START, ARG_END = 47, 48  # fields of /proc/self/stat, counted from 0


def become(command: list[str]) -> None:
    """Run `[python, "-u", "script.py", args…]` or `[python, "-u", "-m", "module", args…]` in this process.

    Returns when the script has come to its end; what it raises comes out, without frames of ours.
    """
    sys.orig_argv = list(command)
    _show_as(command)
    if command[2] == "-m":
        _run_module(command[3], command[4:])
    else:
        _run_script(command[2], command[3:])


def _run_module(module: str, arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]
    _set_first_path(str(Path.cwd()))
    _fresh_main()
    # What `python -m` itself calls: it fills in sys.argv[0], __spec__ and __package__.
    runpy._run_module_as_main(module)  # type: ignore[attr-defined]


def _run_script(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    _set_first_path(str(Path(path).resolve().parent))
    main = _fresh_main()
    absolute = os.path.abspath(path)  # noqa: PTH100  (as the interpreter does: no symbolic links followed)
    main.__file__ = absolute
    main.__loader__ = SourceFileLoader("__main__", absolute)
    main.__dict__["__cached__"] = None
    with io.open_code(absolute) as file:
        source = file.read()
    try:
        exec(compile(source, absolute, "exec"), main.__dict__)
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        raise


def _fresh_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    return main


def _set_first_path(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = directory


def _show_as(command: list[str]) -> None:
    """Let `ps` and `pkill -f` see the command, as far as it fits where the interpreter's own arguments were."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[ARG_START - 2]), int(fields[ARG_END - 2])
    except (OSError, ValueError, IndexError):
        return
    room = end - start
    if room <= 0:
        return
    text = b"\0".join(os.fsencode(word) for word in command)[: room - 1]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)
