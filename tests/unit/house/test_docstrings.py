"""What docstrings show is so: every example in them is run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from test_layers import modules, name_of


@pytest.mark.parametrize("path", [path for path in modules() if ">>>" in path.read_text()], ids=name_of)
def test_the_examples_of_a_module_are_true(path: Path) -> None:
    assert not doctest.testmod(importlib.import_module(name_of(path))).failed
