"""What a training script holds while it is in a section or a pause; the session does the bookkeeping."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.board.layout import CLOCK_BITS, CLOSED_AT, ONE_MORE, OTHER, SPARE, SPENT, SPENT_BITS

if TYPE_CHECKING:
    from outlast.worker.session import Session

Function = TypeVar("Function", bound=Callable[..., Any])


class Section:
    """One use of a section's name. Entered again within itself, it is open twice."""

    __slots__ = ("_name", "_open", "_session")

    def __init__(self, session: Session, name: SectionName) -> None:
        self._session = session
        self._name = name
        self._open: tuple[Any, ...] | None = None  # (entry, since, the one around it)

    def __enter__(self) -> Section:
        session = self._session
        now = monotonic_ns()
        try:
            entry = session._free.pop()
        except IndexError:
            entry = SPARE  # too many at once: those around it are watched, this one is not
        self._open = (entry, now, self._open)
        session._words[entry] = now & CLOCK_BITS | self._name.number
        if now - session._closed_at > session._outside:
            session._was_outside(now)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is None:
            return
        entry, since, self._open = self._open
        session, name, now = self._session, self._name, monotonic_ns()
        words = session._words
        words[CLOSED_AT] = session._closed_at = now  # before the entry, see the board
        words[entry] = 0
        took = now - since
        try:  # which is free, while cutting off bits every time is not
            words[name.word] = name.spent = name.spent + took + ONE_MORE
        except ValueError:
            words[name.word] = name.spent = name.spent + took + ONE_MORE & SPENT_BITS
        session._last = name
        if entry != SPARE:
            session._free.append(entry)
        if took > name.longest:
            session._measure_section(name, since, now)

    def __call__(self, function: Function) -> Function:
        """As a decorator: every call is a section of its own."""
        import inspect

        session, name = self._session, self._name
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **options: Any) -> Any:
                with Section(session, name):
                    return await function(*args, **options)

            return awaited  # type: ignore[return-value]

        @wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            with Section(session, name):
                return function(*args, **options)

        return called  # type: ignore[return-value]


class Pause:
    """A pause of monitoring, which the end of a `with` block ends."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Pause:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.resume_monitoring()


class SectionName:
    """What is known of the sections of one name."""

    __slots__ = ("longest", "number", "spent", "text", "word")

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = "other" if number == OTHER else text
        self.word = SPENT[number]
        self.longest = self.spent = 0
