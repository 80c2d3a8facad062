"""What several unit tests need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from outlast.checkpoint.trainer.checkpointer import Checkpointer


@pytest.fixture
def checkpointer(tmp_path: Path) -> Iterator[Callable[..., Checkpointer]]:
    """Makes Checkpointers of one directory, and closes them."""
    from outlast.checkpoint.trainer.checkpointer import Checkpointer

    made = []

    def make(**options: Any) -> Checkpointer:
        made.append(Checkpointer(tmp_path / "ck", **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
