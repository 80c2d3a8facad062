"""The process in which a user's extension runs: asked over a socket, one JSON line for each question.

Nothing that happens here can hold the agent up: it waits as long as it wants, and then ends this process.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import socket
import sys
import traceback
from typing import Any

import msgspec

from outlast.failover import FailoverExtension, FailoverStrategy, FailureInfo


def main(descriptor: int, reference: str, beside: str) -> None:
    """Load the extension, say so, and answer until the agent is gone."""
    link = socket.socket(fileno=descriptor)
    os.dup2(2, 1)  # what it prints is for people, and not among what the workers print
    sys.path[:0] = [each for each in ("", beside) if each not in sys.path]
    lines = link.makefile("rb")
    try:
        extension = load(reference)
    except Exception as error:  # noqa: BLE001  (whatever a user's module raises)
        say(link, {"refused": f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)})
        return
    say(link, {"ready": True})
    for line in lines:
        say(link, answer(extension, line))


def load(reference: str) -> FailoverExtension:
    """The user's extension. Raises ValueError, or whatever its module raises."""
    module, _, name = reference.partition("::")
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        raise ValueError(f"module {module} has no {name}")
    if not (isinstance(found, type) and issubclass(found, FailoverExtension)):
        raise ValueError(f"{name} is not a subclass of outlast.FailoverExtension")
    check_strategies(found)
    made: FailoverExtension = found()
    return made


def check_strategies(extension: type) -> None:
    """Raises ValueError for a strategy in its module that does not exist: better now than at the first failure."""
    module = sys.modules[extension.__module__]
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return  # there is no source to look at
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or _last_name(node.value) != FailoverStrategy.__name__:
            continue
        known = getattr(module, FailoverStrategy.__name__, FailoverStrategy)
        if not hasattr(known, node.attr):
            names = [name for name, value in vars(known).items() if isinstance(value, FailoverStrategy)]
            there = f"there are: {', '.join(names)}"
            raise ValueError(f"line {node.lineno}: there is no FailoverStrategy.{node.attr}; {there}")


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def answer(extension: FailoverExtension, line: bytes) -> dict[str, Any]:
    """Ask it."""
    try:
        said = extension.decide(msgspec.json.decode(line, type=FailureInfo))
    except Exception as error:  # noqa: BLE001  (of the user)
        traceback.print_exc()
        return {"failed": f"raised {type(error).__name__}: {error}"}
    if said is None:
        return {"strategy": None}
    if not isinstance(said, FailoverStrategy):
        return {"failed": f"returned {said!r}, which is not a FailoverStrategy"}
    return {"strategy": said.value}


def say(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


def run() -> None:
    """The process, as the agent starts it."""
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
