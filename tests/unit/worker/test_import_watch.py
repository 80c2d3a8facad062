"""What is done when a script imports a certain module: the script notices nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from outlast.worker import imports


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two that can be imported, and none of them is afterwards."""
    (tmp_path / "awaited_one.py").write_text("import awaited_two; there = True")
    (tmp_path / "awaited_two.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in ("awaited_one", "awaited_two"):
        sys.modules.pop(name, None)


def test_several_wait_for_several_modules_and_are_gone_when_these_are_imported() -> None:
    seen: list[str] = []
    finders = list(sys.meta_path)
    imports.before("awaited_one", lambda: seen.append("before one"))
    imports.after("awaited_one", lambda module: seen.append(f"after one: {module.there}"))
    imports.after("awaited_two", lambda module: seen.append(f"after {module.__name__}"))
    module = importlib.import_module("awaited_one")
    assert seen == ["before one", "after awaited_two", "after one: True"]
    assert sys.meta_path == finders
    assert module.__spec__ is not None
    assert type(module.__loader__) is type(module.__spec__.loader) is SourceFileLoader


def test_for_a_module_that_is_imported_already_it_is_done_now() -> None:
    seen: list[ModuleType] = []
    module = importlib.import_module("awaited_one")
    finders = list(sys.meta_path)
    imports.after("awaited_one", seen.append)
    imports.before("awaited_one", lambda: pytest.fail("it is too late for that"))
    assert seen == [module]
    assert sys.meta_path == finders


def test_a_module_that_is_not_there_is_missed_as_ever() -> None:
    imports.after("awaited_three", lambda _: pytest.fail("there is none"))
    with pytest.raises(ModuleNotFoundError, match="No module named 'awaited_three'"):
        importlib.import_module("awaited_three")
