"""Tracebacks made shorter, without the frames that a person looks for: those of their own code."""

from __future__ import annotations

import re

_FRAME = re.compile(r'\s*File "(.*?)", line \d+')
_INDENTED = re.compile(r"\s{4,}|\s*\[Previous line repeated")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<")


def condensed(text: str, most: int) -> str:
    """The same traceback in about this many lines.

    Where it is longer, frames of libraries go, except the last one before an error. Frames of the user's own code stay,
    unless there are more of them than lines: then those in the middle go.
    """
    lines = text.rstrip("\n").split("\n")
    if len(lines) <= most:
        return text
    kept: list[str] = []
    skipped: list[list[str]] = []  # frames, since the last one that is kept
    for block in _blocks(lines):
        if _is_library(block):
            skipped.append(block)
            continue
        if skipped:
            left_out, last = len(skipped) - 1, skipped.pop()
            kept += [f"  … {left_out} frames of libraries …"] if left_out else []
            kept += last
            skipped.clear()
        kept += block
    if len(kept) > 4 * most:
        half = 2 * most
        kept = [*kept[:half], f"  … {len(kept) - 2 * half} lines …", *kept[-half:]]
    return "\n".join(kept) + "\n"


def _blocks(lines: list[str]) -> list[list[str]]:
    """Frames, each with the lines below it, and all other lines one by one."""
    blocks: list[list[str]] = []
    for line in lines:
        below = blocks and _FRAME.match(blocks[-1][0]) and _INDENTED.match(line) and not _FRAME.match(line)
        if below:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _is_library(block: list[str]) -> bool:
    frame = _FRAME.match(block[0])
    return frame is not None and _LIBRARY.search(frame[1]) is not None
