"""Who may import whom: arrows point down only, and neither agent nor coordinator ever loads torch."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("outlast").origin).parent  # type: ignore[union-attr, arg-type]

# What each room may import of ours, besides itself. Rooms that are not named here may import anything.
ALLOWED = {
    "system": set(),
    "settings": set(),
    "launch": {"protocol"},
    "console": {"system"},
    "log": {"console"},
    "board": {"system"},
    "diagnosis": {"board"},
    "protocol": {"diagnosis", "settings", "events"},
    "transport": {"launch", "protocol", "system", "events"},
    "events": set(),
    "logs": {"protocol"},
    "ledger": {"events"},
    "core": {"protocol", "settings", "diagnosis", "board", "events"},
    "workloads": {"launch", "protocol", "settings", "system"},
    "errors": {"protocol"},
    "signatures": {"diagnosis"},
    "tracebacks": set(),
    "verdict": {"protocol", "tracebacks"},
    "failover": {"protocol"},
    "dlrover": {"failover"},
    "rulebook": {"core", "signatures"},
    "journal": {"core", "protocol", "events"},
    "notices": {"events", "system"},
    "metrics": {"events", "ledger"},
    "tracing": {"events"},
    "reports": {"core", "events", "journal", "ledger"},
    "data": {"worker", "core", "protocol"},
    "jobs": {"settings"},
    "k8s": {"settings", "launch", "agent", "events", "observe"},
}
FORBIDDEN = {
    "observe": {"coordinator", "worker", "data", "cli"},
    "agent": {"coordinator", "worker", "data", "cli"},
    "coordinator": {"agent", "worker", "data", "cli"},
    "worker": {"agent", "coordinator", "core", "cli"},
    "dashboard": {"coordinator", "worker", "data", "cli", "checkpoint"},
    "progress": {"coordinator", "worker", "data", "cli", "checkpoint", "dashboard"},
    "platforms": {"agent", "coordinator", "worker", "cli"},
    "providers": {"agent", "coordinator", "worker", "cli"},
    "checks": {"agent", "coordinator", "core", "cli"},
    "checkpoint": {"agent", "coordinator", "core", "cli"},
}
# Within checkpoint, only the trainer's side loads torch, and nothing below it imports it.
WITHOUT_TORCH = {"background", "collector", "interval", "per_rank"}
# Nothing off the wire is unpickled: what cannot unpickle, does not.
UNPICKLES = {"pickle", "_pickle", "cPickle", "shelve", "marshal", "dill", "cloudpickle", "torch"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Every module that this one imports, at the top or within functions; for types alone it may be any."""
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports of ours are absolute"
            # `from outlast.transport import token` names a module, `from outlast.transport.token import make` does not.
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(module: str) -> str:
    """The room in the house: the first name below the package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "outlast" and len(parts) > 1 else ""


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_arrows_point_down_only(path: Path) -> None:
    here = room(name_of(path))
    rooms = {entry.stem for entry in PACKAGE.iterdir()}
    others = {room(module) for module in imported(path)} & rooms - {here}
    if here in ALLOWED:
        assert others <= ALLOWED[here], f"{here} may not import {', '.join(sorted(others - ALLOWED[here]))}"
    assert not others & FORBIDDEN.get(here, set())


def test_memory_and_storage_know_nothing_of_the_trainer() -> None:
    for part in ("memory", "storage"):
        for path in (PACKAGE / "checkpoint" / part).glob("*.py"):
            assert not [name for name in imported(path) if name.startswith("outlast.checkpoint.trainer")], path


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_proc_is_read_and_prctl_called_in_one_module_each(path: Path) -> None:
    tree = ast.parse(path.read_text())
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    module = name_of(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            assert module == "outlast.system.proc" or not re.search(r"/proc\b", node.value), f"line {node.lineno}"
        if isinstance(node, ast.Attribute) and node.attr == "prctl":
            assert module == "outlast.system.prctl", f"line {node.lineno}"


def test_class_names_are_unique() -> None:
    """One name, one meaning: whoever searches for a class finds one."""
    places: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}


@pytest.mark.parametrize("path", [path for path in modules() if path.name == "__init__.py"], ids=name_of)
def test_every_package_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_only_workers_load_torch_and_nobody_unpickles(path: Path) -> None:
    module = name_of(path)
    trainer = module.startswith("outlast.checkpoint.trainer.") and path.stem not in WITHOUT_TORCH
    if room(module) not in ("worker", "data", "checks", "integrations") and not trainer:
        assert not {module.split(".")[0] for module in imported(path)} & UNPICKLES


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("outlast.run", ["torch", "numpy", "outlast.coordinator.server"]),
        ("outlast.cli.config", ["torch", "numpy", "outlast.agent"]),
        ("outlast.diagnosis.cause", ["torch", "asyncio", "yaml", "socket", "subprocess"]),
        ("outlast.coordinator.__main__", ["torch", "numpy", "yaml", "outlast.agent", "outlast.cli"]),
        ("outlast.cli.status", ["torch", "yaml", "difflib", "importlib.metadata", "outlast.core.job.state"]),
        ("outlast.cli.why", ["torch", "yaml", "difflib", "importlib.metadata", "outlast.core.job.state"]),
        ("outlast.data.batch", ["torch", "numpy"]),
        ("outlast.data.order", ["torch", "numpy", "random"]),
        ("outlast.data.position", ["torch", "numpy"]),
        ("outlast.data.seeds", ["torch", "numpy", "random"]),
        ("outlast.data.shards", ["torch", "numpy", "asyncio", "outlast.agent", "outlast.coordinator"]),
        (
            "outlast.core.job.job",
            ["torch", "asyncio", "socket", "threading", "subprocess", "random", "outlast.agent"],
        ),
        (
            "outlast.core.node.node",
            ["torch", "asyncio", "socket", "threading", "subprocess", "random", "outlast.agent"],
        ),
        ("outlast.k8s.reconcile", ["torch", "asyncio", "socket", "threading", "subprocess", "random", "lightkube"]),
        ("outlast", ["torch", "asyncio", "outlast.agent", "outlast.coordinator"]),
        ("outlast.checkpoint.trainer.background", ["torch", "numpy", "outlast.agent", "outlast.worker"]),
    ],
)
def test_what_is_loaded_in_the_end(module: str, never: list[str]) -> None:
    """Also by others on its behalf: asked of a fresh interpreter, and compared with one that loaded nothing."""
    code = f"import sys, msgspec\nbefore = set(sys.modules)\nimport {module}\nprint(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert not [name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in never)]


def test_no_two_test_files_share_a_name() -> None:
    """Pytest imports them by their bare names: the second of a pair is not collected when one run has both."""
    files = sorted(Path(__file__).parents[2].rglob("test_*.py"))
    twice = [path for path in files if sum(other.name == path.name for other in files) > 1]
    assert files
    assert not twice
