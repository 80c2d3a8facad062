"""Spans of time, and amounts that were moved between states later. Entries are appended, never edited."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator

import msgspec
from msgspec.structs import replace

from outlast.ledger.states import NODE_ONLY, LedgerState

StateTotals = dict[LedgerState, int]


class Span(msgspec.Struct, frozen=True):
    """A stretch of the job's time in one state. Spans touch and never overlap. Times: ns since 1970."""

    begin: int
    end: int
    state: LedgerState
    fault: int = 0  # that it is due to; 0: none
    nodes: int = 0  # that were in this state
    spares: int = 0  # that were here and had no part in it
    missing: int = 0  # to the wanted size

    @property
    def length(self) -> int:
        return self.end - self.begin


class Move(msgspec.Struct, frozen=True):
    """So much of one span belongs to another state, as was learned later. `begin` to `end`: where in the span."""

    span: int  # its place in the book
    begin: int
    end: int
    amount: int  # ns; less than the stretch, if it is scattered over it
    source: LedgerState
    state: LedgerState
    source_fault: int = 0
    fault: int = 0
    whole: bool = False  # the whole stretch, less what had been moved away from it before


class _Piece(msgspec.Struct, eq=False):
    """What can be moved: a span, or what was moved into another state of it."""

    begin: int
    end: int
    state: LedgerState
    fault: int
    left: int


class Book:
    """The entries of one job, in the order in which they were made.

    >>> book = Book()
    >>> book.add(Span(0, 100, LedgerState.PRODUCTIVE, nodes=2))
    >>> book.move(90, 100, LedgerState.DETECTING, fault=1, source={LedgerState.PRODUCTIVE})
    10
    >>> {state.value: ns for state, ns in book.time().items()}
    {'productive': 90, 'detecting': 10}
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.moves: list[Move] = []
        self._begins: list[int] = []
        self._pieces: list[list[_Piece]] = []

    def add(self, span: Span) -> None:
        """The next stretch; it begins where the one before ended."""
        if span.length <= 0:
            return
        assert not self.spans or self.spans[-1].end == span.begin, (self.spans[-1:], span)
        assert span.state not in NODE_ONLY
        self.spans.append(span)
        self._begins.append(span.begin)
        self._pieces.append([_Piece(span.begin, span.end, span.state, span.fault, span.length)])

    def move(
        self,
        begin: int,
        end: int,
        state: LedgerState,
        *,
        source: Collection[LedgerState],
        fault: int,
        amount: int | None = None,
    ) -> int:
        """Move time between these two into another state; of `amount` scattered ns, as much as there is.

        Returns how much was moved.
        """
        moved = 0
        index = bisect_left(self._begins, end) - 1
        while index >= 0 and self.spans[index].end > begin and (amount is None or moved < amount):
            for piece in list(self._pieces[index]):
                if piece.state in source and piece.state is not state:
                    most = None if amount is None else amount - moved
                    moved += self._take(index, piece, (begin, end), most, state, fault)
            index -= 1
        return moved

    def _take(
        self, index: int, piece: _Piece, within: tuple[int, int], most: int | None, state: LedgerState, fault: int
    ) -> int:
        low, high = max(piece.begin, within[0]), min(piece.end, within[1])
        if low >= high:
            return 0
        if most is None:  # what was scattered over the piece before stays, by its share
            taken = piece.left * (high - low) // (piece.end - piece.begin)
            self._cut(index, piece, low, high, piece.left - taken)
        else:
            taken = min(high - low, piece.left, most)
            piece.left -= taken
        if taken:
            self.moves.append(Move(index, low, high, taken, piece.state, state, piece.fault, fault, most is None))
            self._pieces[index].append(_Piece(low, high, state, fault, taken))
        return taken

    def _cut(self, index: int, piece: _Piece, low: int, high: int, left: int) -> None:
        """Of a piece only what lies around this stretch is left."""
        before, after = low - piece.begin, piece.end - high
        share = left * before // (before + after) if before + after else 0
        rest = [
            _Piece(piece.begin, low, piece.state, piece.fault, share),
            _Piece(high, piece.end, piece.state, piece.fault, left - share),
        ]
        pieces = self._pieces[index]
        pieces.remove(piece)
        pieces += [each for each in rest if each.left]

    def time(self) -> StateTotals:
        """Nanoseconds of the job in each state. Their sum is the job's life."""
        return self._sum(lambda _: 1)

    def node_time(self) -> StateTotals:
        """Node-nanoseconds in each state, with spares and missing nodes."""
        totals = self._sum(lambda span: span.nodes)
        for span in self.spans:
            for state, count in ((LedgerState.SPARE, span.spares), (LedgerState.REDUCED, span.missing)):
                totals[state] = totals.get(state, 0) + count * span.length
        return _positive(totals)

    def by_fault(self, *, nodes: bool = False) -> dict[int, StateTotals]:
        """Nanoseconds, or node-nanoseconds, that each fault cost, by state."""
        found: dict[int, StateTotals] = {}

        def count(fault: int, state: LedgerState, amount: int) -> None:
            each = found.setdefault(fault, {})
            each[state] = each.get(state, 0) + amount

        for span in self.spans:
            count(span.fault, span.state, span.length * (span.nodes if nodes else 1))
        for move in self.moves:
            amount = move.amount * (self.spans[move.span].nodes if nodes else 1)
            count(move.source_fault, move.source, -amount)
            count(move.fault, move.state, amount)
        return {fault: _positive(each) for fault, each in found.items() if fault}

    def window(self, begin: int, end: int) -> StateTotals:
        """Nanoseconds of the job in each state between these two. Scattered amounts count by their share."""
        totals: StateTotals = {}
        for span in self.spans[max(0, bisect_left(self._begins, begin) - 1) :]:
            totals[span.state] = totals.get(span.state, 0) + _overlap(span, begin, end)
        for move in self.moves:
            if inside := _overlap(move, begin, end):
                amount = move.amount * inside // (move.end - move.begin)
                totals[move.source] = totals.get(move.source, 0) - amount
                totals[move.state] = totals.get(move.state, 0) + amount
        return _positive(totals)

    def timeline(self) -> Iterator[Span]:
        """The spans, with what was moved as a whole in its place; scattered amounts stay where they were."""
        painted: dict[int, list[Move]] = {}
        for move in self.moves:
            if move.whole:
                painted.setdefault(move.span, []).append(move)
        last: Span | None = None
        for index, span in enumerate(self.spans):
            parts = [span]
            for move in painted.get(index, ()):
                parts = [piece for part in parts for piece in _paint(part, move)]
            for part in parts:
                if last is not None and replace(last, end=part.end) == replace(part, begin=last.begin):
                    last = replace(last, end=part.end)
                    continue
                if last is not None:
                    yield last
                last = part
        if last is not None:
            yield last

    def _sum(self, weight: Callable[[Span], int]) -> StateTotals:
        totals: StateTotals = {}
        for span in self.spans:
            totals[span.state] = totals.get(span.state, 0) + weight(span) * span.length
        for move in self.moves:
            amount = weight(self.spans[move.span]) * move.amount
            totals[move.source] = totals.get(move.source, 0) - amount
            totals[move.state] = totals.get(move.state, 0) + amount
        return _positive(totals)


def _paint(span: Span, move: Move) -> Iterator[Span]:
    """A span with a part of it in another state."""
    if span.state is not move.source or _overlap(span, move.begin, move.end) == 0:
        yield span
        return
    low, high = max(span.begin, move.begin), min(span.end, move.end)
    if span.begin < low:
        yield replace(span, end=low)
    yield replace(span, begin=low, end=high, state=move.state, fault=move.fault)
    if high < span.end:
        yield replace(span, begin=high)


def _overlap(stretch: Span | Move, begin: int, end: int) -> int:
    return max(0, min(stretch.end, end) - max(stretch.begin, begin))


def _positive(totals: StateTotals) -> StateTotals:
    """In the order of the states, without those that have none."""
    return {state: totals[state] for state in LedgerState if totals.get(state)}
