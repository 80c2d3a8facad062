"""One screen about a job: from its view and its ledger to lines. Pure functions."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.events.phrases import amount, count, listed
from outlast.events.sentences import why
from outlast.ledger.summary import LedgerSummary
from outlast.observe.health import JobHealth, complaints, health_of
from outlast.observe.past import NO_END, JobRecord
from outlast.observe.words import duration, moment
from outlast.protocol.roles import TaskReport
from outlast.protocol.views import JobView


def status_lines(view: JobView, ledger: LedgerSummary | None) -> list[str]:
    """The first line says it all; the others say more."""
    health = health_of(view)
    lines = [f"job {view.job}: {_headline(view, health)}"]
    rows = [("problem", text) for text in complaints(view)] if health is JobHealth.DEGRADED else []
    rows += [("generation", _generation(view)), ("nodes", _nodes(view))]
    if view.changes:
        rows.append(("planned", "; ".join(why(change) for change in view.changes)))
    rows.append(("restarts", f"{view.restarts} of {view.allowed}"))
    rows += [("task", _task(task)) for task in view.tasks]
    rows += [("excluded", _excluded(place, text, left)) for place, text, left in _exclusions(view)]
    if view.last_fault is not None:
        rows.append(("last fault", why(view.last_fault)))
    if view.snapshot is not None:
        age = duration(max(0.0, view.time - view.snapshot.saved_at))
        rows.append(("snapshot", f"step {view.snapshot.step:,}, {age} ago, in the memory of the nodes"))
    if ledger is not None and ledger.time.get("productive"):
        rows.append(("goodput", _goodput(ledger)))
    return lines + _rows(rows)


def status_fields(view: JobView, ledger: LedgerSummary | None) -> dict[str, Any]:
    """The same for programs."""
    health = health_of(view)
    return {
        "health": health.value,
        "problems": complaints(view) if health is JobHealth.DEGRADED else [],
        "view": msgspec.to_builtins(view),
        "ledger": msgspec.to_builtins(ledger),
    }


def past_lines(record: JobRecord) -> list[str]:
    """The same for a job that is over, by its record."""
    told = record.ledger
    step = f"; step {told.step:,}" if told.step is not None else ""
    if told.over:
        headline = f"over ({told.ending}){step}"
        rows = [("ended", f"{moment(told.until)}: {told.reason or told.ending}")]
    else:
        headline = f"not known{step}"
        rows = [("problem", NO_END), ("last event", moment(told.until))]
    rows += [("generation", str(told.generation or "none")), ("restarts", str(told.restarts))]
    if faults := [each.fault for each in told.faults if not each.fault.planned]:
        rows.append(("last fault", faults[-1].text))
    if told.time.get("productive"):
        rows.append(("goodput", _goodput(told)))
    rows += [("record", note) for note in record.notes]
    return [f"job {record.job}: {headline}", *_rows(rows)]


def past_fields(record: JobRecord) -> dict[str, Any]:
    """The same for programs."""
    return {
        "health": JobHealth.OVER.value if record.ledger.over else "unknown",
        "problems": list(record.notes),
        "view": None,
        "ledger": msgspec.to_builtins(record.ledger),
    }


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:11} {text}" for name, text in rows]


def _headline(view: JobView, health: JobHealth) -> str:
    if health is JobHealth.OVER:
        return f"over ({view.outcome.value if view.outcome is not None else 'ended'})"
    does = {"running": "training" if view.progress is not None else "running"}.get(view.phase, view.phase)
    told = f"{does}, {health.value}"
    if view.progress is None:
        return told
    return f"{told}; step {view.progress.last:,}, {pace(view.progress.step)}"


def pace(seconds: float) -> str:
    """How long a step takes, or how many there are in a second.

    >>> pace(2.5), pace(0.05)
    ('2.50 s/step', '20.0 steps/s')
    """
    return f"{seconds:.2f} s/step" if seconds >= 0.5 else f"{1 / max(seconds, 1e-6):.1f} steps/s"


def _generation(view: JobView) -> str:
    if not view.generation:
        return "none yet"
    return f"{view.generation}: {count(view.members, 'node')}, {count(view.ranks, 'rank')}; term {view.term}"


def _nodes(view: JobView) -> str:
    bounds = f"{view.least}" if view.least == view.most else f"{view.least} to {view.most}"
    wanted = f", {view.wanted} wanted" if view.wanted != view.most else ""
    spares = f", {count(view.spares, 'spare')}" if view.spares else ""
    hosted = f"; the coordinator is on {view.hosted_by}" if view.hosted_by and view.most > 1 else ""
    gone = [node.name for node in view.nodes if node.member and not node.connected]
    return f"{view.here} here of {bounds}{wanted}{spares}{hosted}" + (f"; missing: {listed(gone)}" if gone else "")


def _task(task: TaskReport) -> str:
    memory = f", {amount(task.memory)} of memory" if task.memory else ""
    return f"{task.name}: {task.state}, life {task.life}{memory}"


def _exclusions(view: JobView) -> list[tuple[str, str, float | None]]:
    return [(place, each.why, each.seconds) for place, each in view.excluded.items()]


def _excluded(place: str, text: str, left: float | None) -> str:
    return f"{place} for {'the rest of the job' if left is None else duration(left)}: {text}"


def _goodput(ledger: LedgerSummary) -> str:
    lost = {state: seconds for state, seconds in ledger.time.items() if state != "productive" and seconds >= 0.05}
    worst = sorted(lost, key=lambda state: -lost[state])[:3]
    told = ", ".join(f"{state} {duration(lost[state])}" for state in worst)
    away = ledger.time.get("queued", 0.0) + ledger.time.get("suspended", 0.0)
    ettr = f", {100 * ledger.ettr:.1f} % of its time on nodes" if away >= 1 else ""
    return f"{100 * ledger.goodput:.1f} % of {duration(ledger.wall)}{ettr}" + (f"; {told}" if told else "")
