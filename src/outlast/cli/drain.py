"""`outlast drain`: a node leaves the job, which goes on without it."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.cli import asking, observing


def main(argv: Sequence[str]) -> int:
    """Ask for it; the node saves with the others, if its script can, and its agent ends."""
    parser = observing.parser(
        "drain", "Takes a node out of a job, as SIGTERM to its agent does. The others continue without it."
    )
    parser.add_argument("node", help="Name of the node, as in `outlast status --json`.")
    args = parser.parse(argv)
    return asking.run("drain", args, lambda observer: observer.drain(args.node))
