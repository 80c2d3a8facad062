"""`outlast token`: a fresh secret for OUTLAST_TOKEN."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from outlast.cli.flags import Parser
from outlast.transport.token import make
from outlast.transport.wire import chaos_token, observer_token


def main(argv: Sequence[str]) -> int:
    """Print a new token: export it as OUTLAST_TOKEN on every node of one job.

    With --observer, the one that may only read: made from the OUTLAST_TOKEN of a job.
    """
    parser = Parser(prog="outlast token", description="Prints a fresh secret for OUTLAST_TOKEN.")
    parser.add_argument(
        "--observer",
        action="store_true",
        help="Print the token that may only observe the job whose token OUTLAST_TOKEN is.",
    )
    parser.add_argument(
        "--chaos",
        action="store_true",
        help="Print the token by which `outlast chaos` may hurt that job, if it was started with --allow-chaos.",
    )
    args = parser.parse(argv)
    if not args.observer and not args.chaos:
        print(make())
        return 0
    token = os.environ.get("OUTLAST_TOKEN", "")
    if not token:
        print("outlast token: error: set OUTLAST_TOKEN to the token of the job", file=sys.stderr)
        return 1
    print(chaos_token(token) if args.chaos else observer_token(token))
    return 0
