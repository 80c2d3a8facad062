"""`outlast token`: a fresh secret for OUTLAST_TOKEN."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from outlast.transport.token import make


def main(argv: Sequence[str]) -> int:
    """Print a new token: export it as OUTLAST_TOKEN on every node of one job."""
    if argv:
        print(
            "outlast token: error: it takes no arguments; it prints a fresh secret for OUTLAST_TOKEN", file=sys.stderr
        )
        return 2
    print(make())
    return 0
