"""What ranks print, made safe to show as text: no terminal codes, nothing invisible that changes how it reads."""

from __future__ import annotations

import re

# Colours and cursor moves (CSI), titles and links (OSC and its like), and other two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
# Control characters but newline and tab; and those that reorder or hide text.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def shown(text: str) -> str:
    r"""The text as a reader may see it.

    >>> shown("\x1b[31mloss\x1b[0m <b>\x00 \u202egnp.exe")
    'loss <b>� �gnp.exe'
    >>> shown("\x1b]0;title\x07left")
    'left'
    """
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", text))
