"""`outlast top`: ranks by step time, once a second."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence

from outlast.cli import observing
from outlast.core.job.phase import Phase
from outlast.observe import FoundJob
from outlast.observe.ranks import top_lines
from outlast.observe.screen import Screen
from outlast.protocol.observers import Detail

PERIOD = 1.0
PLAIN_ROWS = 40  # where there is no terminal


def main(argv: Sequence[str]) -> int:
    """Show it until Ctrl-C or the job's end; once, if standard output is no terminal."""
    parser = observing.parser(
        "top", "Shows the ranks of a job, slowest first, updated every second. In a pipe, prints them once."
    )
    parser.add_argument("--rows", type=int, default=0, metavar="N", help="Show N ranks instead of as many as fit.")
    args = parser.parse(argv)

    async def show(job: FoundJob) -> int:
        screen = Screen()
        async with job.observer() as observer:
            while True:
                view = await observer.view(Detail.RANKS)
                fits = shutil.get_terminal_size().lines - 4 if screen.live else PLAIN_ROWS
                screen.clear()
                for number, line in enumerate(top_lines(view, args.rows or max(fits, 1))):
                    screen.line(line, "bold" if number == 0 else "yellow" if line.startswith("!") else "")
                if not screen.live or view.phase == Phase.OVER.value:
                    return 0
                await asyncio.sleep(PERIOD)

    try:
        return observing.run("top", args, show)
    except KeyboardInterrupt:
        return observing.INTERRUPTED
