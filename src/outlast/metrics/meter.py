"""Events in, series out. Counters come from the ledger, so they go on when another coordinator takes over."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlast.events import events
from outlast.ledger.accountant import Accountant
from outlast.ledger.reading import RecordedEvent
from outlast.ledger.states import PHASES, SECOND, LedgerState
from outlast.ledger.summary import JOB_STATES, summarize

MOST_SERIES = 60
PHASES_OF_A_JOB = ("waiting", "starting", "training", "recovering", "succeeded", "failed")
_WAITING = frozenset({LedgerState.QUEUED, LedgerState.PROVISIONING, LedgerState.SUSPENDED})


class Sample(msgspec.Struct, frozen=True):
    """One series: its labels, besides those that all have, and its value."""

    value: float
    labels: dict[str, str] = {}


class Family(msgspec.Struct, frozen=True):
    """A metric. Counters end in `_total`."""

    name: str
    help: str
    kind: str  # "gauge", "counter" or "info"
    samples: tuple[Sample, ...]


class Meter:
    """The newest run that events were read of.

    >>> meter = Meter()
    >>> meter.read([RecordedEvent(5.0, events.JobBegan(generation=0, least=1, most=2), job="j", run="r")])
    >>> [each.name for each in meter.families(now=6.0)][:2]
    ['outlast_job_info', 'outlast_job_state']
    """

    def __init__(self) -> None:
        self.job = self.run = ""
        self._books = Accountant()
        self._term = self._ranks = 0
        self._excluded: set[str] = set()
        self._last = 0.0

    @property
    def over(self) -> bool:
        return self._books.over is not None

    def read(self, recorded: Iterable[RecordedEvent]) -> None:
        """The next events. Those of a newer run begin anew; those of an older one do not count."""
        for each in recorded:
            if (each.job, each.run) != (self.job, self.run):
                if each.time < self._last:
                    continue
                self._books, self._excluded, self._ranks = Accountant(), set(), 0
                self.job, self.run = each.job, each.run
            self._term, self._last = each.term, max(self._last, each.time)
            self._books.read(each)
            self._note(each.event)

    def _note(self, event: events.JobEvent) -> None:
        if isinstance(event, events.GenerationFormed):
            self._ranks = event.ranks
            self._excluded -= set(event.nodes)
        elif isinstance(event, events.NodeExcluded):
            self._excluded.add(event.node)
        elif isinstance(event, events.NodeLetBack):
            self._excluded.discard(event.node)

    def families(self, now: float) -> list[Family]:
        """All metrics at this time."""
        if not self.run and not self.job and self._books.began is None:
            return []
        self._books.until(now)
        return [*self._state(), *self._progress(), *self._time(), *self._faults()]

    def _state(self) -> list[Family]:
        books = self._books
        phase = self._phase()
        nodes = {
            "active": books.active,
            "spare": books.here - books.active,
            "excluded": len(self._excluded),
            "wanted": books.wanted,
        }
        return [
            Family(
                "outlast_job_info", "The job and its run.", "info", (Sample(1, {"job": self.job, "run": self.run}),)
            ),
            _labelled(
                "outlast_job_state",
                "1 for what the job is at, 0 for the others.",
                "gauge",
                "state",
                {each: float(each == phase) for each in PHASES_OF_A_JOB},
            ),
            _labelled("outlast_nodes", "Nodes by what they are for.", "gauge", "state", nodes),
            _one("outlast_world_size", "Ranks of the newest generation.", "gauge", self._ranks),
            _one("outlast_generation", "The newest generation.", "gauge", books.generation),
            _one("outlast_term", "The coordinator's term: grows when another takes over.", "gauge", self._term),
            _one("outlast_last_event_timestamp_seconds", "When the newest event happened.", "gauge", self._last),
        ]

    def _phase(self) -> str:
        books = self._books
        if books.over is not None:
            return "succeeded" if books.over.success else "failed"
        if books.state in _WAITING:
            return "waiting"
        if books.state in (LedgerState.PRODUCTIVE, LedgerState.DRAINING):
            return "training"
        recovering = books.generations > 1 or books.state in (LedgerState.STOPPING, LedgerState.HUNG)
        return "recovering" if recovering else "starting"

    def _progress(self) -> list[Family]:
        books = self._books
        found = []
        if books.step is not None:
            found.append(_one("outlast_step", "The last step that counts.", "gauge", books.step))
        if (slow := books.slow) is not None:
            ranks = ",".join(map(str, slow.ranks[:8]))
            sample = Sample(1, {"node": slow.node, "ranks": ranks, "section": slow.section})
            found.append(Family("outlast_slowest_rank_info", "While there is a straggler.", "info", (sample,)))
        return found

    def _time(self) -> list[Family]:
        time, node_time = self._books.book.time(), self._books.book.node_time()
        wall = sum(time.values())
        return [
            _labelled(
                "outlast_time_seconds",
                "Seconds of the job in each state of its ledger. They add up to its life.",
                "gauge",  # a rollback takes productive seconds back, and a counter may not fall
                "state",
                {state.value: time.get(state, 0) / SECOND for state in JOB_STATES},
            ),
            _labelled(
                "outlast_node_seconds",
                "Node-seconds in each state. Nobody pays for those that are reduced.",
                "gauge",
                "state",
                {state.value: node_time.get(state, 0) / SECOND for state in LedgerState},
            ),
            _one(
                "outlast_goodput_ratio",
                "Productive seconds of all seconds so far.",
                "gauge",
                time.get(LedgerState.PRODUCTIVE, 0) / wall if wall else 0.0,
            ),
        ]

    def _faults(self) -> list[Family]:
        told = summarize(self._books)
        costs = [each for each in told.faults if each.fault.kind != "straggler"]
        recovered = [each for each in costs if each.fault.recovered]
        phases = {phase.value for phase in PHASES}
        spent = sum(seconds for each in recovered for state, seconds in each.states.items() if state in phases)
        counts = {"failure": told.failures, "planned": len(costs) - told.failures}
        return [
            _labelled("outlast_interruptions_total", "Generations that ended early.", "counter", "kind", counts),
            _one("outlast_restarts_total", "Restarts that count against --max-restarts.", "counter", told.restarts),
            _one("outlast_steps_lost_total", "Steps that rollbacks made void.", "counter", told.steps_lost),
            _one(
                "outlast_recoveries_total", "Interruptions after which training continued.", "counter", len(recovered)
            ),
            _one("outlast_recovery_seconds_total", "Seconds that they took, without lost steps.", "counter", spent),
        ]


def _one(name: str, about: str, kind: str, value: float) -> Family:
    return Family(name, about, kind, (Sample(float(value)),))


def _labelled(name: str, about: str, kind: str, label: str, values: dict[str, float] | dict[str, int]) -> Family:
    return Family(name, about, kind, tuple(Sample(float(value), {label: key}) for key, value in values.items()))
