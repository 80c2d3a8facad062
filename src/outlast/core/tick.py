"""The one input that job and node share: time passes."""

from __future__ import annotations

import msgspec


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Time has passed: a deadline may be due."""
