"""What a worker tells its agent about itself: the installed modules that it imported, so that the zygote can, too.

Told once, after the first optimizer steps (the imports that hide in the first step are among them), or else at its end.
Never the user's own modules: their code may have changed by the next time.

Loaded before the script, so nothing is imported here that Python has not imported by itself.
"""

from __future__ import annotations

import atexit
import os
import sys

from outlast.worker import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

TORCH, OPTIMIZER = "torch", "torch.optim.optimizer"
STEPS = 2  # whatever the first one imports is there when the second one has ended


class _Lesson:
    """Sent once, by this process alone: not by a child that it forks."""

    def __init__(self, descriptor: int, known: frozenset[str]) -> None:
        self._descriptor = descriptor
        self._socket = os.fstat(descriptor).st_ino
        self._pid = os.getpid()
        self._known = known
        self._steps = 0

    def after_step(self, *_: object) -> None:
        if self._steps < STEPS:
            self._steps += 1
            if self._steps == STEPS:
                self.send()

    def send(self) -> None:
        """The whole lesson, and the last word."""
        if self._pid != os.getpid():
            return
        self._steps = STEPS
        if TORCH in sys.modules:
            self.say([name for name in installed_modules() if name not in self._known])
        if self._ours():
            os.close(self._descriptor)
        self._pid = 0

    def say(self, modules: list[str]) -> None:
        if modules and self._pid == os.getpid() and self._ours():
            import zlib

            try:
                os.write(self._descriptor, zlib.compress("\n".join(modules).encode(), 1))
            except OSError:
                pass  # an agent that does not listen learns nothing; that is no matter of training's

    def _ours(self) -> bool:
        """Whether the descriptor is still what it was: a script may have closed all that it did not know."""
        try:
            return os.fstat(self._descriptor).st_ino == self._socket
        except OSError:
            return False


def report_later(descriptor: int, known: frozenset[str] = frozenset()) -> None:
    """Tell the agent, over this socket, what the zygote does not know yet, once there is something to tell."""
    os.set_inheritable(descriptor, False)
    lesson = _Lesson(descriptor, known)
    atexit.register(lesson.send)
    imports.before(TORCH, lambda: lesson.say([TORCH]))  # so that the zygote can begin with it now
    imports.after(OPTIMIZER, lambda module: module.register_optimizer_step_post_hook(lesson.after_step))


def installed_modules() -> list[str]:
    """The modules that this process has imported from what is installed, in the order in which it began to."""
    installed = _installed()
    names = []
    for name, module in list(sys.modules.items()):
        spec = _spec(module)
        if spec is None or spec.name != name or name == "__main__" or name.partition(".")[0] == "outlast":
            continue
        origin = spec.origin
        if origin in ("built-in", "frozen") or (isinstance(origin, str) and origin.startswith(installed)):
            names.append(name)
    return names


def _installed() -> tuple[str, ...]:
    import site

    places = [os.__file__.rpartition(os.sep)[0], *site.getsitepackages(), site.getusersitepackages()]
    return tuple(place + os.sep for place in places)


def _spec(module: object) -> ModuleSpec | None:
    """Its `__spec__`, without waking a module that loads itself when it is first looked at."""
    try:
        attributes: dict[str, object] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return None
    spec = attributes.get("__spec__")
    return spec if hasattr(spec, "origin") and hasattr(spec, "name") else None  # type: ignore[return-value]
