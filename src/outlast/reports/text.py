"""A run in plain text."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.ledger.summary import LedgerSummary
from outlast.reports.figures import duration, moment, money, percent

BAR = 40  # characters


def text_report(told: LedgerSummary, *, job: str) -> str:
    """The ledger and the faults, for a terminal or a ticket."""
    return "\n".join([*_head(told, job), "", *_ledger(told), "", *_faults(told), *_repairs(told)]) + "\n"


def outcome(told: LedgerSummary) -> str:
    """How the run ended, or that it has not.

    >>> from outlast.ledger.accountant import Accountant
    >>> from outlast.ledger.summary import summarize
    >>> outcome(summarize(Accountant()))
    'not over: provisioning'
    """
    if not told.over:
        return f"not over: {told.state}"
    return f"{'succeeded' if told.success else 'failed'}: {told.reason or told.ending}"


def facts(told: LedgerSummary) -> list[tuple[str, str]]:
    """What the summary says, by name."""
    rows = [
        ("outcome", outcome(told)),
        ("time", f"{moment(told.began)} to {moment(told.until)}, {duration(told.wall)}"),
        ("goodput", f"{percent(told.goodput)} productive; ETTR {percent(told.ettr)}"),
        ("step", "unknown" if told.step is None else str(told.step)),
        ("generations", f"{told.generations}, {told.restarts} restarts, {told.failures} failures"),
    ]
    if told.mtbf is not None:
        rows.append(("MTBF", duration(told.mtbf)))
    if told.steps_lost:
        rows.append(("steps lost", str(told.steps_lost)))
    if told.cost is not None:
        rows.append(("cost", f"{money(told.cost)}, of which {money(told.wasted)} unproductive"))
    return rows


def _head(told: LedgerSummary, job: str) -> Iterator[str]:
    yield f"job {job}"
    for name, value in facts(told):
        yield f"  {name:12} {value}"


def _ledger(told: LedgerSummary) -> Iterator[str]:
    yield f"{'state':14} {'job':>14} {'share':>9} {'node-time':>14}"
    states = dict.fromkeys([*told.time, *told.node_time])
    for state in states:
        seconds = told.time.get(state, 0.0)
        share = seconds / told.wall if told.wall else 0.0
        bar = "#" * round(BAR * share)
        node = duration(told.node_time.get(state, 0.0))
        yield f"{state:14} {duration(seconds):>14} {percent(share):>9} {node:>14}  {bar}".rstrip()
    yield f"{'sum':14} {duration(told.wall):>14}"


def _faults(told: LedgerSummary) -> Iterator[str]:
    if not told.faults:
        yield "no fault"
    for each in told.faults:
        fault = each.fault
        end = "planned" if fault.planned else "recovered" if fault.recovered else "not recovered"
        cost = f", cost {money(each.cost)}" if each.cost is not None else ""
        lost = f", {fault.steps_lost} steps lost" if fault.steps_lost else ""
        yield f"fault {fault.number}: {moment(fault.at / 1e9)}, {fault.kind}, {fault.cause}, {fault.place or 'nowhere'}"
        yield f"  {fault.text}"
        spent = ", ".join(f"{state} {duration(seconds)}" for state, seconds in each.states.items())
        yield f"  {end}; {duration(each.seconds)} ({spent or 'nothing'}){lost}{cost}"


def _repairs(told: LedgerSummary) -> Iterator[str]:
    if told.mttr:
        yield ""
        yield "mean time to repair"
    for cause, each in told.mttr.items():
        phases = ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in each.phases.items())
        yield f"  {cause}: {duration(each.mean_seconds)} over {each.count} ({phases})"
