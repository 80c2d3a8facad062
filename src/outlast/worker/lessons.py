"""What a worker tells its agent about itself: the installed modules that it imported, so that the zygote can, too.

Told once, after the first optimizer steps (the imports that hide in the first step are among them), or else at its end.
Never the user's own modules: their code may have changed by the next time.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import json
import os
import socket
import sys
import sysconfig
import zlib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TORCH, OPTIMIZER = "torch", "torch.optim.optimizer"
STEPS = 2  # whatever the first one imports is there when the second one has ended
_INSTALLED = tuple({sysconfig.get_path(kind) + os.sep for kind in ("purelib", "platlib", "stdlib", "platstdlib")})


class _Lesson:
    """Sent once, by this process alone: not by a child that it forks."""

    def __init__(self, descriptor: int) -> None:
        self._link: socket.socket | None = socket.socket(fileno=descriptor)
        self._link.set_inheritable(False)
        self._pid = os.getpid()
        self._steps = 0

    def after_step(self, *_: Any) -> None:
        if self._steps < STEPS:
            self._steps += 1
            if self._steps == STEPS:
                self.send()

    def send(self) -> None:
        """The whole lesson, and the last word."""
        if TORCH in sys.modules:
            self.say(installed_modules())
        if self._link is not None:
            self._link.close()
            self._link = None

    def say(self, modules: list[str]) -> None:
        if self._link is not None and os.getpid() == self._pid:
            try:
                self._link.send(zlib.compress(json.dumps(modules).encode(), 1), socket.MSG_DONTWAIT)
            except OSError:
                pass  # an agent that does not listen learns nothing; that is no matter of training's


def report_later(descriptor: int) -> None:
    """Tell the agent, over this socket, once there is something to tell."""
    lesson = _Lesson(descriptor)
    atexit.register(lesson.send)
    if OPTIMIZER in sys.modules:
        _hook(sys.modules[OPTIMIZER], lesson)
    else:
        sys.meta_path.insert(0, _Watch(lesson))


def installed_modules() -> list[str]:
    """The modules that this process has imported from what is installed, in the order in which it did."""
    names = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if spec is None or spec.name != name or name == "__main__" or name.partition(".")[0] == "outlast":
            continue
        if origin in ("built-in", "frozen") or (isinstance(origin, str) and origin.startswith(_INSTALLED)):
            names.append(name)
    return names


def settle_ranks() -> None:
    """Mend what modules took from the environment when the zygote imported them, which then knew no rank."""
    lightning = sys.modules.get("lightning_utilities.core.rank_zero")
    if lightning is not None:
        lightning.rank_zero_only.rank = int(os.environ.get("RANK", "0"))


def _hook(module: ModuleType, lesson: _Lesson) -> None:
    module.register_optimizer_step_post_hook(lesson.after_step)


class _Watch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Tells when torch is being imported, waits for its optimizers, hooks into them, and is gone."""

    def __init__(self, lesson: _Lesson) -> None:
        self._lesson = lesson
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == TORCH:
            self._lesson.say([TORCH])  # so that the zygote can begin with it now
        if name != OPTIMIZER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _hook(module, self._lesson)
