"""The clock that sessions and their sections read, set by a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.worker import sections, session


def set_session_clock(patch: pytest.MonkeyPatch, clock: Callable[[], int]) -> None:
    """Have sessions take the time from here, in nanoseconds."""
    for module in (session, sections):
        patch.setattr(module, "monotonic_ns", clock)
