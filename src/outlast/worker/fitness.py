"""Whether a fork of this process is as good as a new one. Whatever is in doubt is said, and never forked."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from outlast.system import proc

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/davinci", "/dev/accel", "/dev/infiniband")
FORK_AWARE = (b"jemalloc_bg_thd",)  # pyarrow's: its allocator does without, after a fork
OWN = {*(f"{of}{what}" for of in ("", "LOCAL_", "GROUP_", "ROLE_") for what in ("RANK", "WORLD_SIZE"))}
OWN |= {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "OUTLAST_GENERATION"}
# Those who keep a rank that they read when they were imported, each in its own `rank_zero_only.rank`: what they take it
# from, and who reads it on their behalf. They are too common to be left out.
RANK_KEEPERS = {"lightning_utilities.core.rank_zero": "RANK", "torchmetrics.utilities.prints": "LOCAL_RANK"}
RANK_READERS = (*RANK_KEEPERS, "lightning.fabric.utilities.rank_zero", "lightning_fabric.utilities.rank_zero")


class Doubt(NamedTuple):
    """One thing that makes a fork of this process worse than a new one."""

    what: str  # which thread, process, file or variable
    why: str
    bound: bool = True  # to this process, not to its surroundings: it is as good as ever, if it is not forked


def doubts(known: Collection[str] = ()) -> list[Doubt]:
    """All that makes it so, but for what is known."""
    threads = [each for each in _threads() if f"thread {each}" not in known]
    if threads:
        # Libraries that know about forks (OpenBLAS) end their threads before one, and start them again when needed.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        threads = _threads()
    found = [Doubt(f"thread {each}", "it left a thread running") for each in threads]
    found += [Doubt(f"process {each}", "it left a process running") for each in proc.children(os.getpid())]
    devices = {target for _, target in proc.open_files(proc.SELF) if target.startswith(DEVICES)}
    found += [Doubt(each, f"it opened {each}") for each in sorted(devices)]
    if isinstance(os.environ, WatchedEnvironment) and os.environ.read:
        variable = os.environ.read
        found.append(Doubt(variable, f"it reads {variable}, which differs from worker to worker", bound=False))
    return [doubt for doubt in found if doubt.what not in known]


def unfit() -> str:
    """What makes it so first; "" if nothing does."""
    return next((doubt.why for doubt in doubts()), "")


class WatchedEnvironment(os._Environ[str]):
    """Remembers who asked for what only workers have: it would go on with the answer that a zygote got."""

    read = ""

    def __getitem__(self, name: str) -> str:
        if name in OWN and _asker() not in RANK_READERS:
            WatchedEnvironment.read = WatchedEnvironment.read or name
        return super().__getitem__(name)


def watch_environment() -> None:
    os.environ.__class__ = WatchedEnvironment


def unwatch_environment() -> None:
    os.environ.__class__ = os._Environ


def settle_ranks() -> None:
    """In a worker: give those who keep a rank the right one."""
    for keeper, variable in RANK_KEEPERS.items():
        module = sys.modules.get(keeper)
        if module is not None and hasattr(module.rank_zero_only, "rank"):
            module.rank_zero_only.rank = int(os.environ[variable])


def overshadowed(directory: str, usual: Collection[str]) -> str:
    """The file beside the script that the script would import, were there not a module of that name already.

    `usual` are the modules that every Python has imported before it comes to the script.
    """
    try:
        entries = sorted(os.listdir(directory or os.curdir))  # noqa: PTH208  (many files may lie there)
    except OSError:
        return ""
    for entry in entries:
        name, _, suffix = entry.partition(".")
        module = sys.modules.get(name)
        if module is None or name in usual or name in sys.builtin_module_names or name == "outlast":
            continue
        path = Path(directory, entry)
        if suffix == "" and (path / "__init__.py").exists():
            path = path / "__init__.py"
        elif suffix != "py" and not suffix.endswith("so"):
            continue
        if str(path) != getattr(module, "__file__", None):
            return entry
    return ""


def _threads() -> list[str]:
    """All but the main one."""
    others = [task for task in proc.tasks(proc.SELF) if task != str(os.getpid())]
    names = {task: proc.read(proc.SELF, f"task/{task}/comm").strip() for task in others}
    return [task for task, name in names.items() if name and name not in FORK_AWARE]


def _asker() -> str:
    """The module that reads the environment: the first one up the stack that is not the mapping's own."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))
