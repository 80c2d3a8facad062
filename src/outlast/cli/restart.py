"""`outlast restart`: the whole job starts anew, on the same nodes, with the code that is on disk now."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.cli import asking, observing


def main(argv: Sequence[str]) -> int:
    """Ask for it; all ranks save first, if the script can."""
    args = observing.parser(
        "restart", "Restarts the workers of a running job, with the code that is on disk now."
    ).parse(argv)
    return asking.run("restart", args, lambda observer: observer.restart())
