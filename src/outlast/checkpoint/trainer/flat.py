"""Nested states as flat dictionaries with DCP's names, and back again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from outlast.checkpoint.trainer.collector import paused

Path = tuple[str | int, ...]
Nested = dict[str, Any]
KEYS = "(keys)"  # beside what is in a dictionary whose keys are not texts: what they are


@paused()
def flatten(nested: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """Leaves by full name, as DCP names them, and the way to each.

    Lists are followed if there are tensors or dictionaries in them, as DCP does. A dictionary whose keys are not all
    texts is one object, so that they stay what they are, unless there are tensors in it: then its keys are beside them.

    >>> flatten({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 5}]})[0]
    {'a.b': 1, 'a.c': [1, 2], 'd.0.e': 5}
    """
    flat: dict[str, Any] = {}
    paths: dict[str, Path] = {}

    def visit(name: str, path: Path, value: Any) -> None:
        mapping, sequence = _contains(value.__class__)
        if mapping and value and (_texts(value) or _has_tensors(value)):
            if KEYS in value:
                raise ValueError(f"{name} has a key {KEYS!r}, which means something else in a checkpoint: rename it")
            for key, inner in value.items():
                visit(f"{name}.{key}", (*path, str(key)), inner)
            if not _texts(value):
                visit(f"{name}.{KEYS}", (*path, KEYS), list(value))
        elif sequence and any(isinstance(each, Mapping) or _has_tensors(each) for each in value):
            for index, inner in enumerate(value):
                visit(f"{name}.{index}", (*path, index), inner)
        else:
            if name in flat:
                raise ValueError(f"two things in the state are called {name}: rename one")
            flat[name], paths[name] = value, path

    for key, value in nested.items():
        visit(str(key), (str(key),), value)
    return flat, paths


def nest(flat: Mapping[str, Any], paths: Mapping[str, Path]) -> Nested:
    """The inverse of `flatten`.

    >>> nest({"a.b": 1, "d.0.e": 5}, {"a.b": ("a", "b"), "d.0.e": ("d", 0, "e")})
    {'a': {'b': 1}, 'd': [{'e': 5}]}
    """
    root: Any = {}
    for name, value in flat.items():
        path, at = paths[name], root
        for key, following in pairwise(path):
            at = _enter(at, key, [] if isinstance(following, int) else {})
        _enter(at, path[-1], value)
    result: Nested = _with_own_keys(root)
    return result


def _with_own_keys(value: Any) -> Any:
    if type(value) is list:
        return [_with_own_keys(each) for each in value]
    if type(value) is not dict:  # what was saved as one object stays of its kind: a Counter
        return value
    keys = {str(key): key for key in value.get(KEYS, ())}
    return {keys.get(name, name): _with_own_keys(inner) for name, inner in value.items() if name != KEYS}


def _enter(container: Any, key: str | int, value: Any) -> Any:
    if isinstance(key, int):
        while len(container) <= key:
            container.append(None)
        if container[key] is None:
            container[key] = value
        return container[key]
    return container.setdefault(key, value)


@lru_cache(maxsize=1024)
def _contains(kind: type) -> tuple[bool, bool]:
    """Whether it is a mapping, or a list. Asked thousands of times per save, and isinstance is slow here."""
    return issubclass(kind, Mapping), issubclass(kind, list)


def _texts(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in value)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    inner: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return any(map(_has_tensors, inner))
