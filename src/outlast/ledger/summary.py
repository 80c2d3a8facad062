"""The ledger in figures, as plain data: for reports, metrics, `outlast status` and the page."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlast.ledger.accountant import Accountant, TimedEvent
from outlast.ledger.book import Span, StateTotals
from outlast.ledger.faults import STARTED, Fault
from outlast.ledger.states import NODE_ONLY, PHASES, SECOND, LedgerState

HOUR = 3600
WINDOWS = {"1h": HOUR, "24h": 24 * HOUR}
# Google's ml-goodput names, for whoever compares.
BADPUT = {
    LedgerState.QUEUED: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    LedgerState.PROVISIONING: "TPU_INITIALIZATION",
    LedgerState.STARTING: "PROGRAM_STARTUP",
    LedgerState.CHECKING: "TRAINING_PREP",
    LedgerState.REDONE: "WASTED_PROGRESS_FROM_DISRUPTION",
    LedgerState.DATA_WAIT: "DATA_LOADING_SYNC",
    LedgerState.CHECKPOINT: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    LedgerState.RESTORING: "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
}

_OWN_CAUSES = {
    LedgerState.QUEUED: "queue",
    LedgerState.SUSPENDED: "suspended",
    LedgerState.CHECKPOINT: "training script",
    LedgerState.DATA_WAIT: "training script",
}


class FaultCost(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, and what it cost."""

    fault: Fault
    seconds: float  # of the job
    node_seconds: float
    states: dict[str, float]  # seconds of the job in each state
    cost: float | None = None  # money


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """The recoveries from one cause: how many, how long on average, and in which phase."""

    count: int
    mean_seconds: float
    phases: dict[str, float]  # seconds on average


class LedgerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of a job at one time. Seconds are exact to the nanosecond before they become floats."""

    began: float  # seconds since 1970
    until: float
    over: bool
    ending: str = ""
    success: bool = False
    reason: str = ""
    state: str  # what the job is in, or was in at its end
    generation: int
    generations: int
    restarts: int
    step: int | None
    nodes: int
    active_nodes: int
    wanted_nodes: int
    wall: float
    time: dict[str, float]  # by state
    node_time: dict[str, float]
    goodput: float  # productive / wall
    ettr: float  # productive / (wall - queued - suspended)
    windows: dict[str, float]  # goodput of the last hour and day
    known: float  # the share of time that stands in a state other than unknown
    failures: int  # faults that nobody planned, without stragglers
    mtbf: float | None  # seconds of the job's life for each failure
    mttr: dict[str, Repairs]  # by cause
    phases: dict[str, float]  # seconds that all recoveries spent in each phase
    steps_lost: int
    faults: tuple[FaultCost, ...]
    price: float | None = None  # of a node-hour
    cost: float | None = None
    wasted: float | None = None  # what all that was not productive cost


def ledger(events: Iterable[TimedEvent], *, until: float | None = None) -> Accountant:
    """The book of these events; `until`: nothing else has happened up to this time."""
    accountant = Accountant().read_all(events)
    if until is not None:
        accountant.until(until)
    return accountant


def summarize(accountant: Accountant, *, price: float | None = None) -> LedgerSummary:
    """Its figures. `price`: of a node-hour."""
    book, over = accountant.book, accountant.over
    time, node_time = book.time(), book.node_time()
    wall = sum(time.values())
    productive = time.get(LedgerState.PRODUCTIVE, 0)
    away = time.get(LedgerState.QUEUED, 0) + time.get(LedgerState.SUSPENDED, 0)
    faults = _costs(accountant, price)
    failures = sum(not each.fault.planned and each.fault.kind != "straggler" for each in faults)
    paid = sum(ns for state, ns in node_time.items() if state is not LedgerState.REDUCED)
    return LedgerSummary(
        began=(accountant.began or 0) / SECOND,
        until=accountant.now / SECOND,
        over=over is not None,
        ending=over.ending.value if over is not None else "",
        success=over is not None and over.success,
        reason=over.reason if over is not None else "",
        state=accountant.state.value,
        generation=accountant.generation,
        generations=accountant.generations,
        restarts=accountant.restarts,
        step=accountant.step,
        nodes=accountant.here,
        active_nodes=accountant.active,
        wanted_nodes=accountant.wanted,
        wall=wall / SECOND,
        time=_seconds(time),
        node_time=_seconds(node_time),
        goodput=_share(productive, wall),
        ettr=_share(productive, wall - away),
        windows={name: _goodput(accountant, seconds) for name, seconds in WINDOWS.items()},
        known=_share(wall - time.get(LedgerState.UNKNOWN, 0), wall),
        failures=failures,
        mtbf=wall / SECOND / failures if failures else None,
        mttr=_repairs(faults),
        phases=_phases(faults),
        steps_lost=sum(each.fault.steps_lost for each in faults),
        faults=faults,
        price=price,
        cost=_money(paid, price),
        wasted=_money(paid - node_time.get(LedgerState.PRODUCTIVE, 0), price),
    )


def cause_of(span: Span, faults: list[Fault]) -> tuple[str, str]:
    """Why time stands in this state, and where: the fault's cause and place, or what the state says itself."""
    if span.fault:
        return faults[span.fault - 1].cause, faults[span.fault - 1].place
    if span.state in (LedgerState.PRODUCTIVE, LedgerState.UNKNOWN):
        return "", ""
    return _OWN_CAUSES.get(span.state, STARTED), ""


def _costs(accountant: Accountant, price: float | None) -> tuple[FaultCost, ...]:
    times, node_times = accountant.book.by_fault(), accountant.book.by_fault(nodes=True)
    found = []
    for fault in accountant.faults:
        states = times.get(fault.number, {})
        node_ns = sum(node_times.get(fault.number, {}).values())
        found.append(
            FaultCost(
                fault=fault,
                seconds=sum(states.values()) / SECOND,
                node_seconds=node_ns / SECOND,
                states=_seconds(states),
                cost=_money(node_ns, price),
            )
        )
    return tuple(found)


def _repairs(faults: tuple[FaultCost, ...]) -> dict[str, Repairs]:
    by_cause: dict[str, list[FaultCost]] = {}
    for each in faults:
        if each.fault.recovered and each.fault.kind != "straggler":
            by_cause.setdefault(each.fault.cause, []).append(each)
    found = {}
    for cause, several in sorted(by_cause.items()):
        phases = {phase: seconds / len(several) for phase, seconds in _phases(tuple(several)).items()}
        found[cause] = Repairs(count=len(several), mean_seconds=sum(phases.values()), phases=phases)
    return found


def _phases(faults: tuple[FaultCost, ...]) -> dict[str, float]:
    sums = {phase.value: sum(each.states.get(phase.value, 0.0) for each in faults) for phase in PHASES}
    return {phase: seconds for phase, seconds in sums.items() if seconds}


def _goodput(accountant: Accountant, seconds: int) -> float:
    totals = accountant.book.window(accountant.now - seconds * SECOND, accountant.now)
    return _share(totals.get(LedgerState.PRODUCTIVE, 0), sum(totals.values()))


def _seconds(totals: StateTotals) -> dict[str, float]:
    return {state.value: ns / SECOND for state, ns in totals.items()}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _money(node_ns: int, price: float | None) -> float | None:
    return None if price is None else node_ns / SECOND / HOUR * price


JOB_STATES = tuple(state for state in LedgerState if state not in NODE_ONLY)
