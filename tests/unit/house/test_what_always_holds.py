"""The table of docs/architecture.md that says which tests hold what: they exist, and `make test` runs some of each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TABLE = (ROOT / "docs" / "architecture.md").read_text().partition("## What always holds")[2]


def named_files() -> list[Path]:
    """A file by its path, or by its bare name after one of the same folder."""
    found, folder = [], Path()
    for name in re.findall(r"`([\w./]+\.py)`", TABLE):
        folder = Path(name).parent if "/" in name else folder
        found.append(folder / Path(name).name)
    return sorted(set(found))


def functions_of(path: Path) -> list[ast.FunctionDef]:
    return [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def is_thorough(test: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "pytest.mark.thorough" for decorator in test.decorator_list)


def test_the_table_names_files() -> None:
    assert len(named_files()) > 10


@pytest.mark.parametrize("path", [path for path in named_files() if path.name.startswith("test_")], ids=str)
def test_make_test_runs_some_of_what_holds_it(path: Path) -> None:
    assert not all(is_thorough(test) for test in functions_of(ROOT / path))
