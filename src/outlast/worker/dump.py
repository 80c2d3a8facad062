"""A worker shows its Python stack whenever its agent asks: by a signal, and without the worker's help.

Python's faulthandler writes it down in the signal handler itself, in C. So it works while the interpreter is held by a
call that never returns. `agent/monitoring/stacks.py` asks: it finds the file among the descriptors of the
process by its name, and sends nothing to a process that has none.

Loaded before the script, so nothing is imported here that could be a file of the user's: these are built into Python,
or ours and as careful.
"""

from __future__ import annotations

import faulthandler
import os

from outlast.system import proc

NAME = "outlast-dump"
SIGNAL = 62  # SIGRTMAX - 2: far from those that glibc keeps, and from SIGUSR1, which scripts and Slurm use
# Far from the small numbers, which a program closes that wants to be rid of what it inherited.
PLACE = 900


def install() -> None:
    """Be ready to show this process's stack; a forked process shares its parent's file, and calls this again."""
    try:
        memory = os.memfd_create(NAME, os.MFD_CLOEXEC)
    except OSError:
        return  # without memory or descriptors the worker has other worries than to be seen
    try:
        # Opened again to append, so that whoever reads it may empty it.
        file = os.open(proc.descriptor_path(memory), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
    finally:
        os.close(memory)
    # Without `chain`, most system calls that were interrupted go on as if nothing had been.
    faulthandler.register(SIGNAL, file=_out_of_the_way(file), all_threads=True, chain=False)


def _out_of_the_way(descriptor: int) -> int:
    try:
        if NAME not in os.readlink(proc.descriptor_path(PLACE)):  # noqa: PTH115  (pathlib may be the user's)
            return descriptor  # somebody else has it
    except OSError:
        pass  # nobody has it; or else it is that of the process that this one was forked from
    try:
        os.dup2(descriptor, PLACE, inheritable=False)
    except OSError:
        return descriptor  # so many are not allowed
    os.close(descriptor)
    return PLACE
