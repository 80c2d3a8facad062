"""The worker's side of the board: heartbeats, sections and steps, at the price of a few stores into memory.

    with outlast.section("forward"):
        loss = model(batch)
    outlast.step()

No system call, no socket, no lock while training goes on. Without Outlast all of it goes into memory of the process's
own: the same code at the same price, read by nobody.

**Threads.** Heartbeats, steps and sections belong to the process, whichever thread they come from; a worker is outside
any section while none of its threads is in one. A section is told from others by its object, so that threads,
generators and coroutines may be in sections of one name at the same time; the one thing to avoid is one object
(`forward = outlast.section("forward")`) entered by several threads at once. Lists are changed by single calls, which
the interpreter makes whole. A count that two threads write at the same moment may be behind by one until the next.

**Forks.** A child that the worker forks is not the worker: from then on it writes into memory of its own. So do
processes that it starts, as long as the worker lives. A zygote has no board; its forks find theirs when they first
write.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from time import monotonic_ns
from typing import Protocol

from outlast.board.layout import (
    BEAT_AT,
    BEAT_LONGEST,
    BEATS,
    BORN_AT,
    CALIBRATIONS,
    ENTRIES,
    FIRST_STEP,
    FIRST_STEP_AT,
    LOADING,
    LONGEST,
    NAME_BITS,
    NAME_SIZE,
    NUMBERED,
    OTHER,
    OUTSIDE_LONGEST,
    PAUSES,
    RESTORING,
    RESUMED_AT,
    SAVING,
    STARTUP_LONGEST,
    STEP,
    STEP_AT,
    VARIABLE,
    WAITED,
)
from outlast.board.readings import Action
from outlast.board.slot import BoardSlot, cut
from outlast.worker.calibration import Calibration
from outlast.worker.sections import Pause, Section, SectionName

log = logging.getLogger("outlast")

EVERY = 16  # steps of optimizers
A_WHILE = 1_000_000  # ns: more than it takes to call an optimizer

WAITS = {"save": SAVING, "restore": RESTORING, "data": LOADING}  # what training waits for
SECTION = "section:"  # before a name, among the longest times


class Words(Protocol):
    """Where the numbers go."""

    def __setitem__(self, word: int, value: int, /) -> None: ...


class Session:
    """What this process tells its agent. There is one per process (`session`); more are for tests."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.RLock()  # of what is rare; a signal handler may come in between
        self._words: Words = _FirstStore(self)
        self._slot = BoardSlot()
        self._attached = False
        self._beats = count(1)
        self._step = 0
        self._own_steps = False  # of the script, which then knows better than the optimizer
        self._numbered = False  # numbers of steps go on from one process to the next
        self._stepped = False  # the first step has been told
        self._names: dict[str, SectionName] = {}
        self._last: SectionName | None = None  # of the section that was closed last
        self._updates = count()  # of optimizers
        self._updated_at = 0
        self._free = [*reversed(ENTRIES)]
        self._started: dict[str, list[Section]] = {}
        self._pauses = 0
        self._resumed_at = 0
        # The longest of each kind so far, and when the present one began: 0, if it did not.
        self._gap = self._beat_at = 0
        self._outside = self._closed_at = 0
        self.calibration = Calibration(self)

    @property
    def attached(self) -> bool:
        """Whether an agent reads what is written here."""
        self._attach()
        return self._attached

    @property
    def slot(self) -> BoardSlot:
        """This process's part of the board."""
        self._attach()
        return self._slot

    def heartbeat(self) -> None:
        """Say that this rank is alive and getting on. Under a microsecond: call it as often as you like."""
        now = monotonic_ns()
        words = self._words
        words[BEAT_AT] = now
        words[BEATS] = next(self._beats)
        if now - self._beat_at > self._gap:
            self._measure_gap(now)
        self._beat_at = now

    def step(self, number: int | None = None) -> None:
        """Say that a training step is done: the one of this number, or the next one. It is a heartbeat, too."""
        self._own_steps = True
        if number is not None:
            self._numbered = True
        self._count(number)

    def go_on_after(self, step: int) -> None:
        """What was restored is the state after this step: the next one that is counted here has the number after it.

        Else each life would count anew, and one that got further than all before it would seem not to.
        """
        self._step = step
        self._numbered = True

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Training waits meanwhile, for one of `WAITS`: the ledger counts it."""
        began = monotonic_ns()
        try:
            yield
        finally:
            words, word = self.slot.words, WAITS[what]
            words[word] = words[word] + monotonic_ns() - began

    @contextmanager
    def no_training(self) -> Iterator[None]:
        """Steps of optimizers in here are no progress: torch makes one to give an optimizer its state."""
        before, self._own_steps = self._own_steps, True
        try:
            yield
        finally:
            self._own_steps = before

    def optimizer_steps(self) -> None:
        """An optimizer is about to make a step: ranks have just exchanged gradients, in the section that was last.

        That is the one that was closed last, or one that was opened since, if that has gone on for a while. It hardly
        ever changes, so it is looked at now and then.
        """
        if self._last is None or next(self._updates) % EVERY:
            return
        now, number = monotonic_ns(), self._last.number
        before, self._updated_at = self._updated_at, now
        opened = max(self._slot.words[ENTRIES.start : ENTRIES.stop])
        if opened > self._closed_at and now - opened > min(A_WHILE, (now - before) // EVERY // 10):
            number = opened & NAME_BITS
        self._words[WAITED] = number + 1

    def optimizer_stepped(self) -> None:
        """An optimizer has made a step: as good as `step()`, until the script says so itself."""
        if self._own_steps:
            self.heartbeat()
        else:
            self._count(None)

    def section(self, name: str) -> Section:
        """A named part of the work with a timeout of its own, as a `with` block or a decorator. They may be nested.

        >>> with session.section("forward"), session.section("attention"):
        ...     pass
        """
        known = self._names.get(name)
        return Section(self, self._intern(cut(name, NAME_SIZE)) if known is None else known)

    def start_section(self, name: str) -> None:
        """Open a section that `end_section` closes; the two may be called from different threads."""
        section = self.section(name)
        section.__enter__()
        self._started.setdefault(name, []).append(section)

    def end_section(self, name: str) -> None:
        """Close the section of this name that was started last; nothing happens if there is none."""
        try:
            section = self._started[name].pop()
        except (KeyError, IndexError):
            return
        section.__exit__(None, None, None)

    def end_all_sections(self) -> None:
        """Close all sections that were started and not ended. Those of `with` blocks close themselves."""
        for name, sections in list(self._started.items()):
            while sections:
                self.end_section(name)

    def pause_monitoring(self) -> Pause:
        """Let nobody take this rank for hung until `resume_monitoring`, as for a debugger. May be nested.

        >>> with session.pause_monitoring():
        ...     pass  # breakpoint()
        """
        with self._lock:
            self._pauses += 1
            self._words[PAUSES] = self._pauses
        return Pause(self)

    def resume_monitoring(self) -> None:
        """The end of a pause. All timeouts start anew."""
        with self._lock:
            if self._pauses == 0:
                return
            self._pauses -= 1
            self._resumed_at = monotonic_ns()
            self._words[RESUMED_AT] = self._resumed_at
            self._words[PAUSES] = self._pauses

    def control(self, action: str, reason: str) -> bool:
        """Ask the launcher for something, at once: "stop", "exclude_node", "restart" or "drain".

        `stop` ends the job with this reason, and no restart; `exclude_node` goes on without this node, for good;
        `restart` starts all ranks again; `drain` lets this node go. It is written down before this returns, so a
        rank may die right after. The scheduler's allocation is not touched. False: no agent is there to read it.

        >>> session.control("stop", "the loss is NaN")
        False
        """
        names = [each.name.lower() for each in Action]
        if action not in names:
            raise ValueError(f"control: there is no action {action!r}; give one of {', '.join(names)}")
        with self._lock:
            self._attach()
            self._slot.ask(Action[action.upper()], reason)
        return self._attached

    def calibrate(self) -> None:
        """Ask for timeouts made from what all ranks have measured so far.

        Call it on any rank, when everything that happens in your training has happened once: a checkpoint, an
        evaluation.
        """
        now = monotonic_ns()
        with self._lock:
            self._attach()
            if self._closed_at and len(self._free) == len(ENTRIES):
                self._measure_outside(now)
            if self._beat_at:
                self._measure_gap(now)
            self._words[CALIBRATIONS] = self._slot.words[CALIBRATIONS] + 1
            self._slot.ring()

    def ring(self) -> None:
        """Have the agent look: there is a snapshot of this rank that it should know of."""
        with self._lock:
            self._attach()
            self._slot.ring()

    def ending(self) -> None:
        """The script is done, and its process on its way out: that takes its time, too, with all clocks from now on."""
        if self._attached:
            self._resumed_at = monotonic_ns()
            self._words[RESUMED_AT] = self._resumed_at

    def forked(self) -> None:
        """This process is a new one, a fork of the one that made the session."""
        self._lock = threading.RLock()
        if VARIABLE in self._environ:
            self._use(BoardSlot(), attached=False)
        else:
            self._words = _FirstStore(self)  # a zygote's fork is about to be told where its board is

    def end_generation(self) -> None:
        """Nobody reads what is written from now on: this process leaves its generation, and is to go on in another."""
        with self._lock:
            self.end_all_sections()
            self._use(BoardSlot(), attached=False)
            self._free = [*reversed(ENTRIES)]
            self._pauses = self._resumed_at = self._step = 0
            self._own_steps, self._last = False, None

    def begin_generation(self) -> None:
        """The environment says where the board of the new generation is."""
        with self._lock:
            self._words = _FirstStore(self)

    def _count(self, number: int | None) -> None:
        now = monotonic_ns()
        self._step = number = self._step + 1 if number is None else number
        words = self._words
        words[STEP] = number
        words[STEP_AT] = now
        words[BEAT_AT] = now
        words[BEATS] = next(self._beats)
        if now - self._beat_at > self._gap:
            self._measure_gap(now)
        self._beat_at = now
        if not self._stepped:
            self._first_step(number, now)

    def _first_step(self, number: int, now: int) -> None:
        """The agent is told at once: from here on the job trains."""
        self._stepped = True
        slot = self.slot
        slot.words[FIRST_STEP], slot.words[NUMBERED] = number, self._numbered
        slot.words[FIRST_STEP_AT] = now
        slot.ring()

    def _attach(self) -> Words:
        """Find the board, if this was not done before."""
        with self._lock:
            if isinstance(self._words, _FirstStore):
                address = self._environ.get(VARIABLE)
                slot = _claimed(address) if address else None
                self._use(slot or BoardSlot(), attached=slot is not None)
            return self._words

    def _use(self, slot: BoardSlot, *, attached: bool) -> None:
        self._slot, self._attached = slot, attached
        self._gap = self._beat_at = self._outside = self._closed_at = 0
        self._stepped = False
        if not self._names:
            self._names = {text: SectionName(number, text) for number, text in enumerate(slot.reserved())}
        for name in self._names.values():
            name.longest = name.spent = 0
            slot.add_name(name.number, name.text)
        self._words = slot.words

    def _intern(self, name: str) -> SectionName:
        with self._lock:
            self._attach()
            if name in self._names:
                return self._names[name]
            new = SectionName(min(len(self._names), OTHER), name)
            if len(self._names) == OTHER:
                log.warning("outlast: more than %d section names; from %r on they are watched as one", OTHER, name)
            if len(self._names) <= OTHER:
                self._slot.add_name(new.number, new.text)
            self._names[name] = new  # ready, for it is read without the lock
            return new

    def _measure_gap(self, now: int) -> None:
        """A longer wait for a heartbeat than any before: to be remembered, if nobody was asked to look away."""
        if self._beat_at == 0:
            born = self._slot.words[BORN_AT]
            if born and self._counts(born, now, 0):
                # More than that may have been loaded from a checkpoint before.
                self._words[STARTUP_LONGEST] = max(now - born, self._slot.words[STARTUP_LONGEST])
        elif self._counts(self._beat_at, now, self._gap):
            self._gap = now - self._beat_at
            self._words[BEAT_LONGEST] = self._gap

    def _was_outside(self, now: int) -> None:
        if len(self._free) == len(ENTRIES) - 1:  # the section that was just opened is the only one
            self._measure_outside(now)

    def _measure_outside(self, now: int) -> None:
        if self._closed_at and self._counts(self._closed_at, now, self._outside):
            self._outside = now - self._closed_at
            self._words[OUTSIDE_LONGEST] = self._outside

    def _measure_section(self, name: SectionName, since: int, now: int) -> None:
        if self._counts(since, now, name.longest):
            name.longest = now - since
            self._words[LONGEST[name.number]] = name.longest

    def _remember(self, longest: Mapping[str, float]) -> None:
        """Take what another life of this rank, or another rank, has measured for measured here."""
        with self._lock:
            self._attach()
            for what, seconds in longest.items():
                time = round(seconds * 1e9)
                if what == "startup":
                    self._words[STARTUP_LONGEST] = max(time, self._slot.words[STARTUP_LONGEST])
                elif what == "heartbeat":
                    self._words[BEAT_LONGEST] = self._gap = max(time, self._gap)
                elif what == "outside":
                    self._words[OUTSIDE_LONGEST] = self._outside = max(time, self._outside)
                elif what.startswith(SECTION):
                    name = self.section(what[len(SECTION) :])._name
                    name.longest = max(time, name.longest)
                    self._words[LONGEST[name.number]] = name.longest

    def _counts(self, since: int, now: int, longest: int) -> bool:
        return now - since > longest and not self._pauses and since >= self._resumed_at


class _FirstStore:
    """Stands where the words will be, until something is written: only then is it known whose process this is."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __setitem__(self, word: int, value: int) -> None:
        self._session._attach()[word] = value


def _claimed(address: str) -> BoardSlot | None:
    try:
        slot = BoardSlot.at(address)
    except (OSError, ValueError) as error:
        log.warning("outlast: hangs of this rank will not be noticed, for its board cannot be reached: %s", error)
        return None
    return slot if slot.claim() else None


session = Session()
os.register_at_fork(after_in_child=session.forked)
atexit.register(session.ending)

heartbeat = session.heartbeat
step = session.step
section = session.section
start_section = session.start_section
end_section = session.end_section
end_all_sections = session.end_all_sections
pause_monitoring = session.pause_monitoring
resume_monitoring = session.resume_monitoring
control = session.control
calibrate = session.calibrate
calibration = session.calibration
