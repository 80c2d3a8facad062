"""What the commands that ask something of a job have in common: `outlast drain`, `scale` and `stop`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable

from outlast.cli import observing
from outlast.observe import FoundJob, Observer
from outlast.protocol.requests import Answer


def run(
    name: str,
    args: argparse.Namespace,
    ask: Callable[[Observer], Awaitable[Answer]],
    *,
    then: Callable[[Observer], Awaitable[None]] | None = None,
) -> int:
    """0, and what happens now; or 1, and why nothing does. `then`: what is left to do if the job agrees."""

    async def asked(job: FoundJob) -> int:
        async with job.observer() as observer:
            answer = await ask(observer)
            if not answer.done:
                print(f"outlast {name}: error: {answer.text}", file=sys.stderr)
                return observing.FAILED
            print(answer.text)
            if then is not None:
                await then(observer)
        return 0

    return observing.run(name, args, asked)
