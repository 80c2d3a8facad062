"""`outlast scale`: the job goes on with another number of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.cli import asking, observing


def main(argv: Sequence[str]) -> int:
    """Ask for it; nodes that are not used stay as spares."""
    parser = observing.parser("scale", "Sets how many nodes of --nnodes=MIN:MAX a job uses; the others stay as spares.")
    parser.add_argument("nodes", type=int, help="From MIN to MAX.")
    args = parser.parse(argv)
    return asking.run("scale", args, lambda observer: observer.scale(args.nodes))
