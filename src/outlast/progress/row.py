"""The last row of a terminal, kept for one line while others write above it. Pure: what to send to the terminal.

Workers, agent and coordinator write to the terminal by themselves, so nothing can be erased before they do. Instead
the terminal is told to scroll all rows but the last (as `apt` does), and the line is written there with the cursor
saved and restored. What others write looks as it would without it.
"""

from __future__ import annotations

import msgspec

FEWEST_ROWS, FEWEST_COLUMNS = 4, 20  # in less there is no line
SAVE, RESTORE = "\x1b7", "\x1b8"
DOWN, UP = "\x1bD", "\x1b[1A"  # in the same column
ALL_ROWS = "\x1b[r"
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class TerminalSize(msgspec.Struct, frozen=True):
    """Of a terminal, in characters."""

    rows: int
    columns: int

    @property
    def fits(self) -> bool:
        return self.rows >= FEWEST_ROWS and self.columns >= FEWEST_COLUMNS


class StatusRow:
    """What was sent so far. Each method returns what to send next, in one piece; "": nothing.

    >>> row = StatusRow(colour=False)
    >>> row.show("step 3", TerminalSize(24, 80))
    '\\x1bD\\x1b7\\x1b[1;23r\\x1b8\\x1b[1A\\x1b7\\x1b[24;1H\\x1b[2Kstep 3\\x1b8'
    >>> row.show("step 3", TerminalSize(24, 80))
    ''
    >>> row.release(TerminalSize(24, 80))
    '\\x1b7\\x1b[r\\x1b[24;1H\\x1b[2K\\x1b8'
    """

    def __init__(self, *, colour: bool) -> None:
        self._style = (DIM, PLAIN) if colour else ("", "")
        self._size: TerminalSize | None = None
        self._text = ""

    def show(self, text: str, size: TerminalSize) -> str:
        """Have this text in the last row."""
        if not size.fits:
            return self.release(size)
        if size == self._size and text == self._text:
            return ""
        begun = "" if size == self._size else self._begin(size)
        self._text = text
        before, after = self._style
        return f"{begun}{SAVE}\x1b[{size.rows};1H\x1b[2K{before}{text[: size.columns - 1]}{after}{RESTORE}"

    def release(self, size: TerminalSize) -> str:
        """Give the row back."""
        if self._size is None:
            return ""
        row, self._size = self._size.rows, None
        # A window that was made smaller has lost the row: what is in its last one now is not ours.
        erased = f"\x1b[{row};1H\x1b[2K" if row <= size.rows else ""
        return f"{SAVE}{ALL_ROWS}{erased}{RESTORE}"

    def _begin(self, size: TerminalSize) -> str:
        former = self.release(size)
        self._size = size
        # The cursor may be in the last row: scroll once, and go back to where the text was.
        return f"{former}{DOWN}{SAVE}\x1b[1;{size.rows - 1}r{RESTORE}{UP}"
