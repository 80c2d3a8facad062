"""`outlast run`: torchrun's command line, for a job that outlasts its failures."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import outlast.run
from outlast.errors import JobFailed


def main(argv: Sequence[str]) -> int:
    """Run this node of the job; torchrun's exit codes: 0 for success, 1 for a failed job or a bad request."""
    try:
        outlast.run.main(argv)
    except JobFailed as failed:
        if failed.failures:
            print(failed, file=sys.stderr)
        print(f"outlast run: error: {failed.reason}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"outlast run: error: {error}", file=sys.stderr)
        return 1
    return 0
