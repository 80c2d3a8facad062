"""Where everything is on the board: words and texts of a slot, by number and offset."""

from __future__ import annotations

VARIABLE = "OUTLAST_BOARD"
VERSION = 5
MAGIC = int.from_bytes(b"OUTLAST\0", "little")
WORD = 8

# The first SIZE bytes of the board are its header, the slots follow. Words of the header:
MAGIC_AT, VERSION_AT, SLOTS_AT, KEY_AT, BELL_AT = range(5)

# Words of a slot. The order matters, see the package's docstring: an agent reads upwards.
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
