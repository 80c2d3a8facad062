"""One worker's part of the board, as both sides use it."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress

from outlast.board.layout import (
    AGREED_FROM,
    AGREED_SIZE,
    ATTACHED_AT,
    BEAT_AT,
    BEAT_LONGEST,
    BEATS,
    BELL_AT,
    BORN_AT,
    BOUNDARIES,
    CALIBRATIONS,
    CLOCK_BITS,
    CLOSED_AT,
    END,
    ENTRIES,
    FIRST_STEP,
    FIRST_STEP_AT,
    HALT,
    KEY_AT,
    LOADING,
    LONGEST,
    MAGIC,
    MAGIC_AT,
    MOST_NAMES,
    NAME_BITS,
    NAME_SIZE,
    NAMES,
    NAMES_FROM,
    NUMBERED,
    OTHER,
    OUTSIDE_LONGEST,
    PARTED,
    PAUSES,
    PID,
    REASON_FROM,
    REASON_SIZE,
    REQUEST,
    RESERVED,
    RESTORING,
    RESUMED_AT,
    SAVED,
    SAVING,
    SIZE,
    SLOTS_AT,
    SPENT,
    STARTUP_LONGEST,
    STEP,
    STEP_AT,
    VERSION,
    VERSION_AT,
    WAITED,
    WORDS_FROM,
    WORDS_SIZE,
)
from outlast.board.readings import (
    Action,
    BoundaryProgress,
    LastWords,
    OpenSection,
    Reading,
    Request,
    Spent,
    Totals,
    seconds,
)

PASSES = 8
HIGHEST = 1 << 53  # that a count can be, in messages as well
LATEST = 1e11  # seconds since 1970, likewise


class BoardSlot:
    """One worker's part of a board; or, for a worker without Outlast, as much memory of its own."""

    def __init__(self, memory: memoryview | None = None, bell: str = "") -> None:
        self.memory = memoryview(bytearray(SIZE)) if memory is None else memory
        self.words = self.memory.cast("q")
        self._bell = bell

    @classmethod
    def at(cls, address: str) -> BoardSlot:
        """The slot that an agent gave this address. Raises OSError or ValueError in one line."""
        path, number, key = address.rsplit(":", 2)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapping = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        memory = memoryview(mapping)  # which keeps the mapping
        if len(memory) < SIZE:
            raise ValueError(f"{path} is not a board")
        header = memory[:SIZE].cast("q")
        if header[MAGIC_AT] != MAGIC or f"{header[KEY_AT]:x}" != key:
            raise ValueError(f"{path} is not the board of this worker's agent")
        if header[VERSION_AT] != VERSION:
            raise ValueError(
                f"the agent's board has version {header[VERSION_AT]}, this Outlast knows {VERSION}: install the same"
            )
        if not 0 <= int(number) < header[SLOTS_AT]:
            raise ValueError(f"{path} has {header[SLOTS_AT]} slots, and none has number {number}")
        return cls(slot_memory(memory, int(number)), f"{path.rpartition('/')[0]}/{header[BELL_AT]}")

    def claim(self) -> bool:
        """Make it this process's, unless another one has it and is alive: a worker's child is not the worker."""
        holder = self.words[PID]
        if holder not in (0, os.getpid()) and _alive(holder):
            return False
        self._clean()  # of the program that this process was before an exec
        self.words[ATTACHED_AT] = time.monotonic_ns()
        self.words[PID] = os.getpid()
        return True

    def renew(self) -> None:
        """Of the agent: nobody has it."""
        self._clean()
        self.words[PID] = self.words[ATTACHED_AT] = 0
        self.words[BORN_AT] = time.monotonic_ns()

    def _clean(self) -> None:
        for word in (BEATS, BEAT_AT, STEP, STEP_AT, *range(BOUNDARIES, RESERVED), *range(ENTRIES.start, END)):
            self.words[word] = 0
        self.words[NAMES] = self.words[RESERVED]
        self.memory[WORDS_FROM] = 0

    def name(self, number: int) -> str:
        """The section name of this number."""
        known = 0 <= number < min(self.words[NAMES], MOST_NAMES)
        return self._text(NAMES_FROM + number * NAME_SIZE, NAME_SIZE) if known else "?"

    def add_name(self, number: int, name: str) -> None:
        """Give this number, the next one, a name."""
        self._write(NAMES_FROM + number * NAME_SIZE, NAME_SIZE, name)
        self.words[NAMES] = number + 1

    def reserve(self, names: Sequence[str]) -> None:
        """Of the agent: give these names a number, however many others the worker has before it comes to them."""
        for number, name in enumerate(names[:OTHER]):
            self.add_name(number, name)
            self.words[RESERVED] = number + 1

    def reserved(self) -> list[str]:
        """The names that have a number beforehand."""
        return [self.name(number) for number in range(self.words[RESERVED])]

    def ask(self, action: Action, reason: str) -> None:
        """Write a request down, and only then wake the agent."""
        number = ((self.words[REQUEST] >> 8) + 1) | 1  # odd
        self.words[REQUEST] = number << 8
        self._write(REASON_FROM, REASON_SIZE, reason)
        self.words[REQUEST] = (number + 1) << 8 | action
        self.ring()

    def request(self) -> Request | None:
        """The newest one; None if there is none, or it is just being written."""
        word = self.words[REQUEST]
        reason = self._text(REASON_FROM, REASON_SIZE)
        number, action = word >> 8, word & 0xFF
        if number <= 0 or number % 2 or self.words[REQUEST] != word or action not in set(Action):
            return None
        return Request(number // 2, Action(action), reason)

    def agree(self, text: str) -> None:
        """Of the agent: what all ranks agreed on, for the worker to keep in its checkpoints."""
        if len(text.encode()) < AGREED_SIZE:  # half of it would be worse than the one before
            self._write(AGREED_FROM, AGREED_SIZE, text)

    def agreed(self) -> str:
        return self._text(AGREED_FROM, AGREED_SIZE)

    def halt(self, at: int, durable: bool) -> None:
        """Of the agent: have the worker halt at this boundary; at the next one for now, if it is not named (0)."""
        self.words[HALT] = at << 2 | durable << 1 | 1

    def halting(self) -> tuple[int, bool] | None:
        """Of the worker: where it is to halt, and whether to have its save written to disk; None: nowhere."""
        word = self.words[HALT]
        return (word >> 2, bool(word & 2)) if word else None

    def progress(self) -> BoundaryProgress:
        """Of the agent: how far the worker has come."""
        words = self.words[BOUNDARIES : SAVED + 1].tolist()  # upwards, as it writes them
        boundaries, held, sealed, saved = map(_count, words)
        passed = max(boundaries - 1, 0)
        return BoundaryProgress(
            able=boundaries > 0,
            passed=passed - 1 if passed and held == passed else passed,
            sealed=sealed,
            step=saved - 1 if saved else None,
        )

    def leave(self, words: LastWords) -> None:
        """Of a worker that ends with an exception. Of the traceback the end is kept: there it says where."""
        message = words.message.replace("\0", "\\x00").replace(PARTED, "\\x1e")
        head = PARTED.join([str(words.at), words.exception[:255], cut(message, WORDS_SIZE // 4)]) + PARTED
        room = WORDS_SIZE - len(head.encode(errors="replace")) - 1
        tail = words.traceback.replace("\0", "\\x00").encode(errors="replace")[-room:].decode(errors="ignore")
        self._write(WORDS_FROM, WORDS_SIZE, head + tail)

    def last_words(self) -> LastWords | None:
        """What the worker left; None: nothing."""
        at, *said = self._text(WORDS_FROM, WORDS_SIZE).split(PARTED, 3)
        try:
            raised_at = float(at)
        except ValueError:
            return None
        return LastWords(raised_at, *said) if len(said) == 3 and 0.0 <= raised_at <= LATEST else None

    def ring(self) -> None:
        """Have the agent look at the board now."""
        if not self._bell:
            return
        with suppress(OSError):  # an agent that cannot hear will look by itself
            descriptor = os.open(self._bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(descriptor, b"!")
            finally:
                os.close(descriptor)

    def read(self) -> Reading:
        """What it says now."""
        now = time.monotonic_ns()
        words = collect(self.words)
        sections = [OpenSection(self.name(word & NAME_BITS), seconds(word & CLOCK_BITS)) for word in _used(words)]
        return Reading(
            read_at=seconds(now),
            born_at=seconds(words[BORN_AT]),
            pid=_count(words[PID]) or None,
            attached_at=_time(words[ATTACHED_AT]),
            beats=_count(words[BEATS]),
            beat_at=_time(words[BEAT_AT]),
            step=_count(words[STEP]) if words[STEP_AT] else None,
            step_at=_time(words[STEP_AT]),
            paused=words[PAUSES] > 0,
            resumed_at=_time(words[RESUMED_AT]),
            sections=tuple(sorted(sections, key=lambda section: section.since)),
            closed_at=_time(words[CLOSED_AT]),
            longest=self._longest(words),
            calibrations=_count(words[CALIBRATIONS]),
            request=self.request(),
        )

    def totals(self) -> Totals | None:
        """How far it has come; None: no step has been made."""
        now = time.monotonic_ns()
        words = collect(self.words)
        if not words[STEP_AT]:
            return None
        return Totals(
            read_at=seconds(now),
            pid=_count(words[PID]),
            step=_count(words[STEP]),
            step_at=seconds(words[STEP_AT]),
            spent={self.name(n): Spent(words[SPENT[n]]) for n in _numbers(words) if words[SPENT[n]]},
            waited=self.name(words[WAITED] - 1) if words[WAITED] else "",
            first=_count(words[FIRST_STEP]),
            first_at=seconds(words[FIRST_STEP_AT]),
            numbered=words[NUMBERED] == 1,
            saving=seconds(words[SAVING]),
            restoring=seconds(words[RESTORING]),
            loading=seconds(words[LOADING]),
        )

    def release(self) -> None:
        """Let go of the memory."""
        self.words.release()
        self.memory.release()

    def _longest(self, words: Sequence[int]) -> dict[str, float]:
        named = {"startup": STARTUP_LONGEST, "heartbeat": BEAT_LONGEST, "outside": OUTSIDE_LONGEST}
        named |= {f"section:{self.name(number)}": LONGEST[number] for number in _numbers(words)}
        return {name: seconds(words[word]) for name, word in named.items() if words[word] > 0}

    def _text(self, start: int, size: int) -> str:
        return bytes(self.memory[start : start + size]).partition(b"\0")[0].decode(errors="replace")

    def _write(self, start: int, size: int, text: str) -> None:
        self.memory[start : start + size] = cut(text, size).encode().ljust(size, b"\0")


def collect(words: memoryview) -> list[int]:
    """All words of a slot as they were at one moment; if they never stand still, upwards, each as it was at its own."""
    part = words[:END]
    before = part.tolist()  # single loads, upwards
    for _ in range(PASSES):
        again = part.tolist()
        if again == before:
            break
        before = again
    return before


def cut(text: str, size: int) -> str:
    """As much of a text as fits, with a byte to spare, without half a character at its end."""
    return text.encode(errors="replace")[: size - 1].decode(errors="ignore")


def slot_memory(memory: memoryview, number: int) -> memoryview:
    """The part of a board's memory that is this slot's."""
    return memory[SIZE * (1 + number) : SIZE * (2 + number)]


def _used(words: Sequence[int]) -> list[int]:
    return [words[entry] for entry in ENTRIES if words[entry]]


def _numbers(words: Sequence[int]) -> range:
    """Of the section names that there are."""
    return range(min(max(words[NAMES], 0), MOST_NAMES))


# A worker can write anything to its slot, on purpose or by a stray pointer. What is read of it is always a number that
# can be calculated with and sent.


def _count(word: int) -> int:
    return min(max(word, 0), HIGHEST)


def _time(word: int) -> float | None:
    return seconds(word) if word > 0 else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
