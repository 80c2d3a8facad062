"""What is to be done when a script imports a certain module, without importing it for the script.

Loaded before the script, so nothing is imported here that Python has not imported by itself.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def before(name: str, action: Callable[[], None]) -> None:
    """Call `action` when the import of this module begins, if it has not been imported."""
    if name not in sys.modules:
        sys.meta_path.insert(0, _Watch(name, before=action))


def after(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action(module)` once this module has been imported; now, if it has been."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watch(name, after=action))


class _Watch:
    """Waits for the import of one module, and is gone. It stands in for the loader while that does its work."""

    def __init__(
        self,
        name: str,
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[ModuleType], None] | None = None,
    ) -> None:
        self._name = name
        self._before = before
        self._after = after
        self._loader: Loader | None = None

    def find_spec(self, name: str, _path: object = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        if self._before is not None:
            self._before()
        # Asked for here, because the one who asks us goes on along a list that is one shorter now.
        spec = importlib.util.find_spec(name)
        if self._after is not None and spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        assert self._after is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._after(module)
