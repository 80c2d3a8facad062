"""`outlast stop`: the job ends, on all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.cli import asking, observing


def main(argv: Sequence[str]) -> int:
    """Ask for it."""
    args = observing.parser("stop", "Stops a job on all of its nodes. Its agents exit with code 1.").parse(argv)
    return asking.run("stop", args, lambda observer: observer.stop())
