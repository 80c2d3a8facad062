"""What messages are made of: what comes off the wire is no larger than what makes sense."""

from __future__ import annotations

from typing import Annotated

import msgspec

# What decoding raises for bytes that are no message: text that is no UTF-8, and deep nesting, have errors of their own.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Some = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
Address = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[0-9A-Za-z.:%_-]*$")]
LONGEST_REASON = 1024
LONGEST_PATH = 4096
Reason = Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]  # JSON, and so the journal, has no other numbers
Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


def sendable(text: str) -> str:
    r"""The same without halves of surrogate pairs, which Python makes of bytes that are no text (in a path, say).

    >>> sendable("data/\udcff.png")
    'data/?.png'
    """
    return text.encode(errors="replace").decode()


def sendable_path(path: str) -> str:
    """A path as it can be sent: it may have any bytes, and any length; the end says most."""
    return sendable(path)[-LONGEST_PATH:]
