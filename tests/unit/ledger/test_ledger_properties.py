"""Whatever happens, the ledger adds up: sums are exact, states closed, spans touch, more events only add entries."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgers import At
from outlast.events import events, reasons
from outlast.ledger.accountant import Accountant
from outlast.ledger.book import Book, Span
from outlast.ledger.states import NODE_ONLY, SECOND, LedgerState
from outlast.ledger.summary import ledger, summarize

NODES = ("a", "b", "c", "d")
seconds = st.floats(0, 1e4, allow_nan=False)
names = st.sampled_from(NODES)
numbers = st.integers(0, 50)
end_reasons = st.one_of(
    st.builds(reasons.FailedRank, names, numbers, st.integers(-15, 3), hung=st.sampled_from(["", "hung"])),
    st.builds(reasons.LostNode, names, st.just("gone")),
    st.builds(reasons.DepartedNode, names),
    st.builds(reasons.JoinedNodes, st.tuples(names)),
    st.builds(reasons.MissingNodes, numbers, numbers, st.tuples(names)),
    st.just(reasons.PlannedEnd((reasons.DrainingNode("b"),), reasons.Saved.ALL, 7)),
)


def built(type_: type, /, **fields: st.SearchStrategy) -> st.SearchStrategy:  # type: ignore[type-arg]
    return st.builds(type_, generation=st.integers(0, 4), **fields)


any_event = st.one_of(
    built(events.JobBegan, least=numbers, most=numbers, ago=seconds),
    built(events.NodeJoined, node=names, workers=numbers),
    built(events.NodeLost, node=names, how=st.just("gone")),
    built(events.NodeLeft, node=names),
    built(events.WaitingForNodes, least=numbers, unit=st.just(1), ready=st.just(())),
    built(events.CheckBegan, nodes=st.just(NODES)),
    built(events.CheckDone, nodes=st.just(())),
    built(
        events.GenerationFormed,
        nodes=st.lists(names, unique=True).map(tuple),
        ranks=numbers,
        spares=numbers,
        restarts=numbers,
    ),
    built(events.TrainingBegan, step=st.none() | numbers, ago=seconds, restore=seconds),
    built(events.TrainingProgress, step=numbers, ago=seconds, checkpoint=seconds, data=seconds),
    built(events.WorkersGone, step=st.none() | numbers, ago=seconds, checkpoint=seconds, data=seconds),
    built(events.GenerationEnding, reason=end_reasons, also=st.booleans(), ago=seconds),
    built(events.PlannedChange, changes=st.just((reasons.DrainingNode("b"),))),
    built(events.CoordinatorTookOver, term=numbers, nodes=numbers),
    built(
        events.HangNamed,
        ranks=st.just((1,)),
        nodes=st.just(("b",)),
        kind=st.just("data loader"),
        where=st.just(""),
        sentence=st.just("rank 1 hangs"),
        ago=seconds,
    ),
    built(
        events.StragglerChanged,
        node=names,
        ranks=st.just((1,)),
        section=st.just("forward"),
        factor=seconds,
        since=numbers,
        over=st.none() | numbers,
        sentence=st.just("rank 1 is slow"),
        excess=seconds,
    ),
    built(events.WorkerFailed, failure=st.builds(reasons.FailedRank, names, numbers, numbers), followers=numbers),
    built(
        events.JobOver,
        success=st.booleans(),
        ending=st.sampled_from(events.Ending),
        reason=st.just(""),
        seconds=seconds,
        generations=numbers,
        restarts=numbers,
    ),
)
# Half of the time a clock that goes on, half of the time one that jumps about.
histories = st.lists(st.tuples(st.floats(-5, 300, allow_nan=False), any_event), max_size=40).map(
    lambda steps: [
        At(1.8e9 + sum(each for each, _ in steps[: index + 1]), event) for index, (_, event) in enumerate(steps)
    ]
)


@given(histories)
@settings(max_examples=300, deadline=None)
def test_every_nanosecond_stands_in_exactly_one_state(history: list[At]) -> None:
    books = ledger(history)
    time = books.book.time()
    life = books.now - (books.began or 0) if books.began is not None else 0
    assert sum(time.values()) == life
    assert all(amount > 0 for amount in time.values())
    assert not set(time) & NODE_ONLY


@given(histories)
@settings(max_examples=300, deadline=None)
def test_every_node_nanosecond_stands_in_exactly_one_state(history: list[At]) -> None:
    books = ledger(history)
    node_time = books.book.node_time()
    paid_or_missing = sum((each.nodes + each.spares + each.missing) * each.length for each in books.book.spans)
    assert sum(node_time.values()) == paid_or_missing
    assert all(amount > 0 for amount in node_time.values())


@given(histories)
@settings(max_examples=200, deadline=None)
def test_spans_touch_and_never_overlap(history: list[At]) -> None:
    books = ledger(history)
    for spans in (books.book.spans, list(books.book.timeline())):
        assert all(before.end == after.begin for before, after in itertools.pairwise(spans))
        assert all(each.length > 0 for each in spans)


@given(histories, st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_more_events_add_entries_and_edit_none(history: list[At], cut: int) -> None:
    before, after = ledger(history[:cut]), ledger(history)
    assert after.book.spans[: len(before.book.spans)] == before.book.spans
    assert after.book.moves[: len(before.book.moves)] == before.book.moves
    assert len(after.faults) >= len(before.faults)


@given(histories)
@settings(max_examples=200, deadline=None)
def test_it_makes_no_difference_whether_events_come_one_by_one(history: list[At]) -> None:
    books = Accountant()
    for each in history:
        books.until(each.time)  # whoever follows a job keeps the book up to now in between
        books.read(each)
    assert books.book.time() == ledger(history).book.time()
    assert summarize(books, price=2.0) == summarize(ledger(history), price=2.0)


@given(histories, st.floats(0, 1e4), st.floats(0, 1e4))
@settings(max_examples=100, deadline=None)
def test_a_window_adds_up_to_its_length(history: list[At], back: float, length: float) -> None:
    books = ledger(history)
    if books.began is None:
        return
    begin = max(books.began, books.now - round(back * SECOND))
    end = min(books.now, begin + round(length * SECOND))
    totals = books.book.window(begin, end)
    assert sum(totals.values()) == end - begin


@given(histories)
@settings(max_examples=100, deadline=None)
def test_what_faults_cost_is_part_of_the_whole(history: list[At]) -> None:
    books = ledger(history)
    time = books.book.time()
    for state in LedgerState:
        blamed = sum(each.get(state, 0) for each in books.book.by_fault().values())
        assert 0 <= blamed <= time.get(state, 0)


def test_an_amount_that_is_not_there_is_not_moved() -> None:
    book = Book()
    book.add(Span(0, 10, LedgerState.PRODUCTIVE))
    trained = {LedgerState.PRODUCTIVE}
    assert book.move(0, 10, LedgerState.CHECKPOINT, amount=7, source=trained, fault=0) == 7
    assert book.move(0, 10, LedgerState.DATA_WAIT, amount=7, source=trained, fault=0) == 3
    assert book.time() == {LedgerState.DATA_WAIT: 3, LedgerState.CHECKPOINT: 7}
