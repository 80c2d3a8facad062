"""Which modules a zygote has to leave out: those whose import binds the process, and all that import them.

A module that starts a thread, say, is imported by others, and those by others again. Were only the outermost one left
out, its neighbours would come to the same end, one zygote after the other. So the module itself is looked for: each
import is followed by a look at the process, and what was being imported at that moment is left out with it. The process
is of no use any more, but it goes on to find the rest: a module that is left out already is not imported again.
"""

from __future__ import annotations

import importlib._bootstrap as bootstrap  # the one place that all imports pass
import sys
import threading
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple

from outlast.worker.fitness import WatchedEnvironment, doubts


class LeftOut(BaseException):
    """This module is not imported here. No `Exception`, as modules may do without one that raises such."""


class Culprit(NamedTuple):
    """The module that puts the process in doubt, and what it does; `bound` as in `Doubt`."""

    module: str
    why: str
    bound: bool


class ImportWatch(AbstractContextManager["ImportWatch"]):
    """Watches the imports of this thread. `left_out`: the modules to do without, and because of what."""

    def __init__(self) -> None:
        self.left_out: dict[str, Culprit] = {}
        self._stack: list[str] = []
        self._known: set[str] = set()
        self._thread = threading.get_ident()

    def __enter__(self) -> ImportWatch:
        self._load = bootstrap._load_unlocked  # type: ignore[attr-defined]
        bootstrap._load_unlocked = self._watched  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        bootstrap._load_unlocked = self._load  # type: ignore[attr-defined]

    def look(self, module: str) -> None:
        """Whether the import of this one has left something behind."""
        for doubt in doubts(self._known):
            self._known.add(doubt.what)
            self._leave_out([*self._stack, module], Culprit(module, doubt.why, doubt.bound))
        WatchedEnvironment.read = ""

    def _watched(self, spec: Any) -> ModuleType:
        if threading.get_ident() != self._thread:
            return self._load(spec)  # type: ignore[no-any-return]
        name = spec.name
        if name in self.left_out:
            self._leave_out(self._stack, self.left_out[name])
            raise LeftOut(name)
        self._stack.append(name)
        try:
            module: ModuleType = self._load(spec)
        finally:
            self._stack.pop()
            self.look(name)
        if name in self.left_out:
            sys.modules.pop(name, None)
            raise LeftOut(name)
        return module

    def _leave_out(self, names: list[str], culprit: Culprit) -> None:
        for name in names:
            self.left_out.setdefault(name, culprit)
