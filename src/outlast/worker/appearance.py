"""What other processes see of this one in /proc: its command line and its environment.

The kernel shows the memory in which it laid both down when the process began. A zygote borrows it for a name of its
own; its forks write into it what theirs would have been, as far as it fits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outlast.system import proc


@dataclass(frozen=True)
class Appearance:
    """Where the kernel reads the arguments and the environment of this process, and what it found there."""

    arguments_at: int
    arguments: bytes
    environment_at: int
    environment: bytes

    @classmethod
    def own(cls) -> Appearance | None:
        """That of this process; None where the kernel does not say."""
        stat = proc.stat(proc.SELF)
        if stat is None or len(stat.areas) < 4:
            return None
        start, end, env_start, env_end = stat.areas
        if not 0 < start <= end <= env_start <= env_end:
            return None
        return cls(
            start, ctypes.string_at(start, end - start), env_start, ctypes.string_at(env_start, env_end - env_start)
        )

    def call_it(self, title: str) -> None:
        """Show this in place of the arguments."""
        _write(self.arguments_at, len(self.arguments), [title])

    def show(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Show this command line, and this environment."""
        _write(self.arguments_at, len(self.arguments), command)
        # What was there stays where it was: a library may have kept a pointer to it.
        variables = [f"{name}={value}" for name, value in environment.items()]
        there = [os.fsdecode(word) for word in self.environment.split(b"\0")]
        stay = [word for word in there if word in set(variables)]
        _write(self.environment_at, len(self.environment), [*stay, *(v for v in variables if v not in set(stay))])


def _write(at: int, room: int, words: Sequence[str]) -> None:
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    if len(text) > room:
        text = text[: text[:room].rfind(b"\0") + 1] or text[: room - 1]  # whole words, the first one at least in part
    ctypes.memmove(at, text.ljust(room, b"\0"), room)
