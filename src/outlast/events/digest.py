"""A short name for decisions: the same for the same decisions, however they are put into words."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Annotated, Any, get_args, get_origin

import msgspec


def facts(value: object) -> Any:
    """A value without its prose, as plain lists.

    >>> from outlast.events.reasons import LostNode
    >>> facts(LostNode("b", "its connection closed"))
    ['node lost', 'b']
    """
    if isinstance(value, msgspec.Struct):
        kind = type(value)
        tag = kind.__struct_config__.tag
        return [tag or kind.__name__, *(_kept(getattr(value, name), keys) for name, keys in _fields(kind))]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return [[key, facts(each)] for key, each in sorted(value.items())]
    if isinstance(value, list | tuple):
        return [facts(each) for each in value]
    return value


def digest(decisions: Sequence[object]) -> str:
    """A short name for what was decided; empty for nothing.

    >>> digest(["a"]) == digest(["a"]) != digest(["b"])
    True
    """
    return blake2b(msgspec.msgpack.encode(facts(decisions)), digest_size=8).hexdigest() if decisions else ""


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, bool]]:
    """The fields that count; of those with prose as values, only the keys do."""
    found = []
    for field in msgspec.structs.fields(kind):
        values = get_args(field.type)[1:] if get_origin(field.type) is dict else ()
        if not _is_prose(field.type):
            found.append((field.name, any(_is_prose(each) for each in values)))
    return found


def _is_prose(kind: Any) -> bool:
    metas = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return any(isinstance(meta, msgspec.Meta) and (meta.extra or {}).get("prose") for meta in metas)


def _kept(value: Any, keys_only: bool) -> Any:
    return sorted(value) if keys_only else facts(value)
