"""What people read uses one word for one thing: docs, log lines, errors and help texts (docs/glossary.md)."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# What is banned, and what to write instead.
BANNED = {
    r"\banew\b": "again, or start over",
    r"\btime-outs?\b": "timeout",
    r"\bleft out\b|\bleaves? out\b|\bleaving out\b": "excluded (a node), skipped (a module, a value), dropped (a line)",
    r"\bdear to\b": "expensive to",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bone that (all|the others|others) wait for\b": "blocks the others; the blocking rank",
    r"\bas nobody expected\b": "nothing",
    r"\bis no valid\b": "is not valid",
    r"\beffectual value\b|\bvalue that holds\b": "effective value",
}
GLOSSARY = "glossary.md"  # names the banned words
PAGES = sorted({*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"} - {ROOT / "docs" / GLOSSARY})
MODULES = sorted((ROOT / "src" / "outlast").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_banned_word(page: Path) -> None:
    lines = [re.sub(r"`[^`]*`", "", line) for line in page.read_text().splitlines()]  # names stay as they are
    assert not list(banned(enumerate(lines, start=1)))


def test_what_the_program_says_has_no_banned_word() -> None:
    found = {}
    for module in MODULES:
        if words := list(banned(texts(module))):
            found[str(module.relative_to(ROOT))] = words
    assert not found


def test_signatures_have_no_banned_word() -> None:
    for path in (ROOT / "src" / "outlast" / "diagnosis" / "signatures").glob("*.yaml"):
        said = re.findall(r"^  (?:title|explain|advice): (.*)$", path.read_text(), re.MULTILINE)
        assert not list(banned(enumerate(said))), path.name


@pytest.mark.parametrize("text", ["torch is imported anew", "after a time-out", "a node is left out"])
def test_a_banned_word_is_found(text: str) -> None:
    assert list(banned([(1, text)]))


def banned(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    for number, line in lines:
        for pattern, instead in BANNED.items():
            if found := re.search(pattern, line, re.IGNORECASE):
                yield f"line {number}: {found[0]!r}; write: {instead}"


def texts(module: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are no docstrings and more than a word: those may be shown."""
    tree = ast.parse(module.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docs:
            continue
        if " " in node.value:
            yield node.lineno, node.value
