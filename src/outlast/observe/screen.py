"""Lines for a terminal: in colour by `rich`, where that is installed and somebody looks; else plain."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from outlast.log import one_line


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._console: Any = None
        if sys.stdout.isatty() and find_spec("rich") is not None:
            from rich.console import Console

            self._console = Console(highlight=False, soft_wrap=True)

    @property
    def live(self) -> bool:
        """Whether somebody looks at it."""
        return sys.stdout.isatty()

    def line(self, text: str, style: str = "") -> None:
        """One line. What others have written into it cannot speak to the terminal."""
        if self._console is None:
            print(one_line(text), flush=True)
        else:
            self._console.print(one_line(text), style=style or None, markup=False, emoji=False)

    def clear(self) -> None:
        """Begin the screen anew."""
        if self.live:
            print("\x1b[H\x1b[2J", end="")
