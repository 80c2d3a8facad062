"""The catalogue of signatures: what a line of a log, an exception or an exit code tells about a failure.

Signatures are data (`signatures/*.yaml`, and the user's own). Thousands of lines are compared with all of them in the
few milliseconds between a failure and its decision. So lines that differ in nothing but numbers are looked at once,
and no pattern is tried on a line that lacks the plain text that the pattern cannot do without.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

import msgspec

LEAST_LITERAL = 4  # characters: shorter ones are in every log
DIGITS = str.maketrans("123456789", "000000000")


class Role(str, Enum):
    """What a match says: this is what is wrong; something hit this process; another one failed before."""

    ROOT = "root"
    CONFIRMATION = "confirmation"
    CASCADE = "cascade"


class Domain(str, Enum):
    USER_CODE = "user code"
    DATA = "data"
    FRAMEWORK = "framework"
    GPU = "gpu"
    MEMORY = "memory"
    NETWORK = "network"
    STORAGE = "storage"
    PLATFORM = "platform"


class Outlook(str, Enum):
    """What a retry of the same thing in the same place can do about it."""

    HELPS = "helps"
    MAY_HELP = "may help"
    CANNOT_HELP = "cannot help"
    UNKNOWN = "unknown"


class Proposal(str, Enum):
    """The strategy that a signature asks for, where its outlook alone does not say."""

    NORMAL = "normal"
    NODE = "node"
    GLOBAL = "global"
    ABORTION = "abortion"


AROUND = 512  # characters of a line, on each side of a literal, that are looked at
TRIES = 64  # lines in which a pattern is looked for, from the last one

Line = str


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a catalogue, as its file has it."""

    name: str
    title: str
    role: Role
    domain: Domain
    outlook: Outlook
    explain: str
    advice: str = ""
    patterns: tuple[str, ...] = ()  # regular expressions, upper and lower case alike, looked for in single lines
    exceptions: tuple[str, ...] = ()  # names of types, with or without their module
    exit_codes: tuple[int, ...] = ()
    signals: tuple[str, ...] = ()
    first_steps: bool = False  # counts only while no step was made
    strategy: Proposal | None = None
    matches: tuple[Line, ...] = ()  # lines that it must know, and
    spares: tuple[Line, ...] = ()  # lines that look alike, and are none of its business


class Match(msgspec.Struct, frozen=True):
    """A signature that knows a line."""

    signature: Signature
    line: int  # its index
    length: int  # of what matched: the longer one is the more specific


class Pattern(msgspec.Struct, frozen=True):
    """One pattern of a signature."""

    signature: Signature
    text: str
    needed: tuple[str, ...]  # one of these is in every line that it matches
    alike: tuple[str, ...]  # the same, whatever the numbers

    def matched(self, line: str) -> int:
        """How many characters of the line it matches."""
        found = re.search(self.text, line, re.IGNORECASE)  # compiled when it is needed, and kept, by re
        return found.end() - found.start() if found else 0


class Catalogue:
    """Signatures, ready to be looked up. The same name again replaces the one before it.

    Raises ValueError in one line for a signature that cannot be. That its patterns are regular expressions is seen
    by `check` alone, for that takes longer.

    >>> one = Signature(name="full", title="Disk full", role="root", domain="storage", outlook="may help",
    ...                 explain="…", patterns=("no space left on device",))
    >>> [m.signature.name for m in Catalogue([one]).search(["OSError: [Errno 28] No space left on device"])]
    ['full']
    """

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = {each.name: each for each in signatures}
        self._patterns: list[Pattern] = []
        self._exceptions: dict[str, Signature] = {}
        self._exits: dict[int, Signature] = {}
        for each in self.signatures.values():
            self._add(each)

    def _add(self, signature: Signature) -> None:
        for pattern in signature.patterns:
            needed = literals(pattern)
            if not all(len(each) >= LEAST_LITERAL for each in needed):
                raise ValueError(
                    f"{signature.name}: pattern {pattern!r} needs a plain text of {LEAST_LITERAL} characters or more "
                    "in each of its alternatives, outside groups and brackets"
                )
            self._patterns.append(Pattern(signature, pattern, needed, tuple(map(kind, needed))))
        for name in signature.exceptions:
            self._exceptions[name.lower()] = signature
        for code in signature.exit_codes:
            self._exits[code] = signature
        for name in signature.signals:
            if name not in signal.Signals.__members__:
                raise ValueError(f"{signature.name}: there is no signal {name!r}")
            self._exits[-signal.Signals[name]] = signature
        if not (signature.patterns or signature.exceptions or signature.exit_codes or signature.signals):
            raise ValueError(f"{signature.name}: needs patterns, exceptions, exit_codes or signals to be known by")

    def narrowed(self, lines: Iterable[Line]) -> Catalogue:
        """Without the patterns that none of these lines can match."""
        kinds = "\n".join({kind(line) for line in lines})
        narrow = Catalogue(())
        narrow.signatures, narrow._exceptions, narrow._exits = self.signatures, self._exceptions, self._exits
        narrow._patterns = [pattern for pattern in self._patterns if any(each in kinds for each in pattern.alike)]
        return narrow

    def search(self, lines: Sequence[Line]) -> list[Match]:
        """All signatures that know one of the lines; each pattern once, with the last line that it matches."""
        text = "\n".join(lines).lower()
        found = []
        for pattern in self._patterns:
            matches = [match for each in pattern.needed if (match := _last(pattern, each, text)) is not None]
            if matches:
                found.append(max(matches, key=lambda match: match.line))
        return found

    def of_exception(self, name: str) -> Signature | None:
        """The signature of an exception's type, by its whole name or the last part of it."""
        whole = name.lower()
        return self._exceptions.get(whole) or self._exceptions.get(whole.rpartition(".")[2])

    def of_exit(self, code: int) -> Signature | None:
        """The signature of an exit code, or (negative) of a signal."""
        return self._exits.get(code)


def check(signatures: Iterable[Signature]) -> None:
    """See that every pattern is one. Raises ValueError, in one line."""
    for signature in signatures:
        for pattern in signature.patterns:
            try:
                re.compile(pattern, re.IGNORECASE)
            except re.error as error:
                raise ValueError(
                    f"{signature.name}: pattern {pattern!r} is not a regular expression ({error})"
                ) from None


def kind(text: str) -> str:
    """A text as its like have it: in lower case, all digits the same.

    >>> kind("Step 17, loss 2.31")
    'step 00, loss 0.00'
    """
    return text.lower().translate(DIGITS)


def distinct(lines: Sequence[Line]) -> list[Line]:
    """Of lines that differ in nothing but their digits the last one."""
    kinds = kind("\n".join(lines)).split("\n") if lines else []
    return [lines[at] for at in sorted({each: at for at, each in enumerate(kinds)}.values())]


def _last(pattern: Pattern, literal: str, text: str) -> Match | None:
    """From the end: what stands nearest to the death counts."""
    at = text.rfind(literal)
    for _ in range(TRIES):
        if at < 0:
            return None
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        # Some patterns take the square of a line's length: of a long one, what is around the text that they look for.
        near = slice(max(start, at - AROUND), min(end if end >= 0 else len(text), at + len(literal) + AROUND))
        length = pattern.matched(text[near])
        if length:
            return Match(pattern.signature, text.count("\n", 0, start), length)
        at = text.rfind(literal, 0, start)
    return None


def literals(pattern: str) -> tuple[str, ...]:
    """For each alternative of a pattern the longest plain text that every match of it contains.

    >>> literals(r"CUDA out of memory\\. Tried|cudaErrorMemoryAllocation \\(\\d+\\)")
    ('cuda out of memory. tried', 'cudaerrormemoryallocation (')
    """
    return tuple(max(runs, key=len, default="") for runs in _alternatives(pattern))


def _alternatives(pattern: str) -> Iterator[list[str]]:
    """The runs of plain characters in each top-level alternative. What is not surely plain ends a run."""
    runs, run, depth, at = [], "", 0, 0

    def close() -> None:
        nonlocal run
        runs.append(run.lower())
        run = ""

    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
            if depth == 0 and not pattern[at].isalnum():
                run += pattern[at]
            else:
                close()
        elif char == "[":
            close()
            at = _end_of_class(pattern, at)
        elif char == "(":
            close()
            depth += 1
        elif char == ")":
            depth -= 1
        elif depth:
            pass
        elif char == "|":
            close()
            yield runs
            runs = []
        elif char in "?*{":
            run = run[:-1]  # it may not be there at all
            close()
            if char == "{":
                at = pattern.index("}", at)
        elif char in ".^$+":
            close()
        else:
            run += char
        at += 1
    close()
    yield runs


def _end_of_class(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1] == "^" else 1
    at += 1  # a bracket in the first place is a plain one
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
