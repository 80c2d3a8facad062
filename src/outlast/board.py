"""The board: shared memory of one node, in which its workers write how they are, and which its agent reads.

    agent:   board = Board(slots=8); environment["OUTLAST_BOARD"] = board.address(3); board.read(3)
    worker:  slot = Slot.at(os.environ["OUTLAST_BOARD"]); slot.words[BEAT_AT] = time.monotonic_ns()

**Nothing can leak.** It is a memfd: no name in /dev/shm, no limit of a container's /dev/shm, and gone with the last
process that has it, however that ends. Workers reach it as /proc/AGENT/fd/N. Nothing has to be inherited for that, so
forked workers, started ones and those behind a shell script are alike, and other users are kept out by the kernel.
A new board for every generation: what is left of an old one cannot write into the new.

**Nothing can be torn.** All that is written while training goes on is words of eight bytes, and one aligned store each:
an open section is one word, its time with its name's number in the lowest byte (so to 256 ns). A reading is made of
many words. They are laid out so that whoever looks at the clock first, and then reads upwards while the worker goes on,
never finds a worker late that is not: what ends a wait stands above what began it, and is written first. Where the
processor keeps no such order (ARM), reading until two passes agree makes up for it. A request spans many words; its
number is odd while it is being written. Names never change once they are counted.

Times are CLOCK_MONOTONIC's, which stands still while a machine is suspended: nobody hangs in his sleep.

Loaded by workers, among the script's own modules: no torch, no msgspec, and nothing of the standard library whose name
a script's own file may well have.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from outlast.system import proc

VARIABLE = "OUTLAST_BOARD"
VERSION = 5
MAGIC = int.from_bytes(b"OUTLAST\0", "little")
WORD = 8

# The first SIZE bytes of the board are its header, the slots follow. Words of the header:
MAGIC_AT, VERSION_AT, SLOTS_AT, KEY_AT, BELL_AT = range(5)

# Words of a slot. The order matters, see above: an agent reads upwards.
BORN_AT = 0  # the agent's: when the board was made, just before its workers
PID, ATTACHED_AT, BEATS, BEAT_AT, STEP, STEP_AT = range(1, 7)
CALIBRATIONS = 7  # how often it was asked for
REQUEST = 8  # number * 256 + action
NAMES = 9  # how many there are
HALT = 10  # the agent's, too: a change is planned; see `BoardSlot.halt`
BOUNDARIES = 11  # between steps, that it has come to, plus one; 0: it comes to none
HELD = 12  # the one where it waits to hear whether to go on; 0: it does not
SEALED, SAVED = 13, 14  # the one where it has saved, and the step plus one; 0: that could not be done
RESERVED = 15  # the agent's: how many names have a number beforehand
ENTRIES = range(16, 32)  # open sections, in no order; 0: none
CLOSED_AT = 32  # when a section was closed last: above the entries
PAUSES, RESUMED_AT = 33, 34  # above all that a pause stops
STARTUP_LONGEST, BEAT_LONGEST, OUTSIDE_LONGEST = 35, 36, 37
LONGEST = range(38, 70)  # by number of the name
SPENT = range(70, 102)  # likewise: all time in sections of the name, in ns, plus ONE_MORE for each of them
WAITED = 102  # the number, plus one, of the section that optimizers' steps come after
FIRST_STEP_AT, FIRST_STEP = 103, 104  # when the first step was made, and its number
NUMBERED = 105  # 1: numbers go on from what was restored, or are the script's; 0: they count from 1 in each process
SAVING, RESTORING, LOADING = 106, 107, 108  # ns that training has waited for its checkpoints and its data
END = 109
SPARE = END  # for an entry that has no room; nobody reads it

# Bytes of a slot: texts.
MOST_NAMES, NAME_SIZE, NAMES_FROM = len(LONGEST), 48, 1024
REASON_FROM, REASON_SIZE = NAMES_FROM + MOST_NAMES * NAME_SIZE, 512
AGREED_FROM, AGREED_SIZE = REASON_FROM + REASON_SIZE, 4096
WORDS_FROM, SIZE = 8192, 16384  # the last words of a worker fill the rest
WORDS_SIZE = SIZE - WORDS_FROM
PARTED = "\x1e"  # between the parts of a worker's last words

ONE_MORE = 1 << 46  # 19 hours: of two looks at the board, the time in between is less
SPENT_BITS = (1 << 63) - 1
NAME_BITS = 0xFF
CLOCK_BITS = (1 << 63) - 1 - NAME_BITS
OTHER = MOST_NAMES - 1  # the number that all names share for which there is no room
PASSES = 8
HIGHEST = 1 << 53  # that a count can be, in messages as well
LATEST = 1e11  # seconds since 1970, likewise

_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4  # the fcntl of some Pythons lacks them


class Action(IntEnum):
    """What a rank may ask the launcher for."""

    STOP = 1  # end the job, with this reason
    EXCLUDE_NODE = 2  # go on without this node, and never use it again
    RESTART = 3
    DRAIN = 4  # let this node go; the job goes on


@dataclass(frozen=True)
class Request:
    """What a rank asked for. Its number grows with every request of one worker."""

    number: int
    action: Action
    reason: str


@dataclass(frozen=True)
class OpenSection:
    """A section that a worker is in."""

    name: str
    since: float


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the board says of one worker. Times are seconds of `time.monotonic()`; None: it has not happened."""

    read_at: float  # before it was read: the time to judge it by
    born_at: float
    pid: int | None = None  # as the worker sees it; None: it has not come to the board yet
    attached_at: float | None = None
    beats: int = 0  # steps among them
    beat_at: float | None = None
    step: int | None = None
    step_at: float | None = None
    paused: bool = False
    resumed_at: float | None = None
    sections: tuple[OpenSection, ...] = ()  # the outermost first
    closed_at: float | None = None  # when a section was closed last
    longest: Mapping[str, float]  # seconds: "startup", "heartbeat", "outside" and "section:NAME", as far as measured
    calibrations: int = 0
    request: Request | None = None


@dataclass(frozen=True)
class Spent:
    """All sections of one name so far, in one word. It begins anew in time: only what lies between two tells something.

    >>> Spent(2 * ONE_MORE + 3_000_000_000).after(Spent(0))
    (2, 3.0)
    """

    word: int

    def after(self, before: Spent | None) -> tuple[int, float]:
        """How many there were since, and the seconds in them."""
        grown = self.word - before.word if before is not None else self.word
        count, nanoseconds = divmod(grown & SPENT_BITS, ONE_MORE)
        return count, _seconds(nanoseconds)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """How far a worker has come, and what its time went into: running totals, of which differences tell."""

    read_at: float  # seconds, as in a reading
    pid: int
    step: int
    step_at: float
    spent: Mapping[str, Spent]  # by name of the section
    waited: str = ""  # the section that optimizers' steps come after: there ranks wait for each other
    first: int = 0  # the first step of this process
    first_at: float = 0.0
    numbered: bool = False  # steps have numbers that go on from one process to the next
    saving: float = 0.0  # seconds that it has waited for saves
    restoring: float = 0.0
    loading: float = 0.0  # for data


@dataclass(frozen=True)
class BoundaryProgress:
    """How far a worker has come, in boundaries between its steps."""

    able: bool  # it comes to boundaries at all
    passed: int  # the last one that it has gone past
    sealed: int  # the one where it has saved and waits; 0: none
    step: int | None  # that it saved there; None: it could not


@dataclass(frozen=True)
class LastWords:
    """The exception that a worker ended with."""

    at: float  # wall-clock
    exception: str  # its type
    message: str
    traceback: str


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
            raise ValueError(f"{path} is no board")
        header = memory[:SIZE].cast("q")
        if header[MAGIC_AT] != MAGIC or f"{header[KEY_AT]:x}" != key:
            raise ValueError(f"{path} is not the board of this worker's agent")
        if header[VERSION_AT] != VERSION:
            raise ValueError(
                f"the agent's board has version {header[VERSION_AT]}, this Outlast knows {VERSION}: install the same"
            )
        if not 0 <= int(number) < header[SLOTS_AT]:
            raise ValueError(f"{path} has {header[SLOTS_AT]} slots, and none has number {number}")
        return cls(_part(memory, int(number)), f"{path.rpartition('/')[0]}/{header[BELL_AT]}")

    def claim(self) -> bool:
        """Make it this process's, unless another one has it and is alive: a worker's child is not the worker."""
        holder = self.words[PID]
        if holder not in (0, os.getpid()) and _alive(holder):
            return False
        for word in (BEATS, BEAT_AT, STEP, STEP_AT, *range(BOUNDARIES, RESERVED), *range(ENTRIES.start, END)):
            self.words[word] = 0  # of the program that this process was before an exec
        self.words[NAMES] = self.words[RESERVED]
        self.memory[WORDS_FROM] = 0
        self.words[ATTACHED_AT] = time.monotonic_ns()
        self.words[PID] = os.getpid()
        return True

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
        sections = [OpenSection(self.name(word & NAME_BITS), _seconds(word & CLOCK_BITS)) for word in _used(words)]
        return Reading(
            read_at=_seconds(now),
            born_at=_seconds(words[BORN_AT]),
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
            read_at=_seconds(now),
            pid=_count(words[PID]),
            step=_count(words[STEP]),
            step_at=_seconds(words[STEP_AT]),
            spent={self.name(n): Spent(words[SPENT[n]]) for n in _numbers(words) if words[SPENT[n]]},
            waited=self.name(words[WAITED] - 1) if words[WAITED] else "",
            first=_count(words[FIRST_STEP]),
            first_at=_seconds(words[FIRST_STEP_AT]),
            numbered=words[NUMBERED] == 1,
            saving=_seconds(words[SAVING]),
            restoring=_seconds(words[RESTORING]),
            loading=_seconds(words[LOADING]),
        )

    def release(self) -> None:
        """Let go of the memory."""
        self.words.release()
        self.memory.release()

    def _longest(self, words: Sequence[int]) -> dict[str, float]:
        named = {"startup": STARTUP_LONGEST, "heartbeat": BEAT_LONGEST, "outside": OUTSIDE_LONGEST}
        named |= {f"section:{self.name(number)}": LONGEST[number] for number in _numbers(words)}
        return {name: _seconds(words[word]) for name, word in named.items() if words[word] > 0}

    def _text(self, start: int, size: int) -> str:
        return bytes(self.memory[start : start + size]).partition(b"\0")[0].decode(errors="replace")

    def _write(self, start: int, size: int, text: str) -> None:
        self.memory[start : start + size] = cut(text, size).encode().ljust(size, b"\0")


class Board:
    """A node's board, of its agent. One per generation; `close` it when the workers are gone."""

    def __init__(self, slots: int, names: Sequence[str] = ()) -> None:
        """Make it: just before the workers, because their start-up counts from now. `names` have numbers already."""
        self._memory = os.memfd_create("outlast-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        size = SIZE * (1 + slots)
        os.ftruncate(self._memory, size)
        # A worker that made it smaller would kill whoever reads it.
        fcntl.fcntl(self._memory, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
        self._mapping = mmap.mmap(self._memory, size)
        self._whole = memoryview(self._mapping)
        # Workers open the reading end for writing, by its path; it never closes, because we have both.
        self.bell, self._rope = os.pipe()
        os.set_blocking(self.bell, False)
        self._key = int.from_bytes(os.urandom(7), "little")
        self._slots = [BoardSlot(_part(self._whole, number)) for number in range(slots)]
        for slot in self._slots:
            slot.words[BORN_AT] = time.monotonic_ns()
            slot.reserve(names)
        with self._whole[:SIZE].cast("q") as header:
            header[VERSION_AT], header[SLOTS_AT] = VERSION, slots
            header[KEY_AT], header[BELL_AT] = self._key, self.bell
            header[MAGIC_AT] = MAGIC

    def address(self, slot: int) -> str:
        """What a worker finds in its environment. The key tells it that it has found the right board."""
        return f"{proc.descriptor_path(self._memory, os.getpid())}:{slot}:{self._key:x}"

    def read(self, slot: int) -> Reading:
        """What the board says of a worker, also after its end: what a dying one wrote last is still there."""
        return self._slots[slot].read()

    def totals(self, slot: int) -> Totals | None:
        """How far a worker has come; None: it has made no step yet."""
        return self._slots[slot].totals()

    def last_words(self, slot: int) -> LastWords | None:
        """The exception that a worker has ended with, or is about to."""
        return self._slots[slot].last_words()

    def agree(self, text: str) -> None:
        """Let every worker know what the ranks agreed on."""
        for slot in self._slots:
            slot.agree(text)

    def halt(self, at: int, durable: bool) -> None:
        """Have every worker halt at this boundary; 0: at the next one that it comes to, until it is named."""
        for slot in self._slots:
            slot.halt(at, durable)

    def progress(self) -> list[BoundaryProgress]:
        """How far the workers have come."""
        return [slot.progress() for slot in self._slots]

    def hush(self) -> None:
        """Stop the bell, which is readable when a worker wants something at once: then read every slot."""
        with suppress(BlockingIOError):
            while len(os.read(self.bell, 4096)) == 4096:
                pass

    def close(self) -> None:
        for slot in self._slots:
            slot.release()
        self._whole.release()
        self._mapping.close()
        for descriptor in (self._memory, self.bell, self._rope):
            os.close(descriptor)


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


def _part(memory: memoryview, number: int) -> memoryview:
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


def _seconds(nanoseconds: int) -> float:
    return max(nanoseconds, 0) / 1e9


def _time(word: int) -> float | None:
    return _seconds(word) if word > 0 else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
