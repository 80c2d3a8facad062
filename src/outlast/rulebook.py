"""The user's rules about failures, read from their file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from outlast.core.recovery.strategy import Rule, check
from outlast.signatures import read_yaml


def read(path: str) -> tuple[Rule, ...]:
    """The rules of a file, of which "" has none. Raises ValueError, in one line that says what to change."""
    if not path:
        return ()
    rules = []
    for number, entry in enumerate(read_yaml(Path(path), "a list of rules, as `- when: …`, `then: …`"), 1):
        try:
            rules.append(msgspec.convert(entry, Rule))
        except msgspec.ValidationError as error:
            raise ValueError(f"{path}: rule {number}: {error}") from None
    try:
        check(rules)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return tuple(rules)
