"""All that a job knows: what its events change, and its decisions are made from."""

from __future__ import annotations

from outlast.core.data_shards.dealer import Dealer
from outlast.core.hangs.calibration import CalibrationRounds
from outlast.core.job.generation import Generation
from outlast.core.job.outbox import Outbox
from outlast.core.job.phase import Phase
from outlast.core.job.snapshots import Snapshots
from outlast.core.membership.admissions import Admissions
from outlast.core.membership.attendance import Attendance
from outlast.core.recovery.recovery import Recovery
from outlast.core.succession.authority import Authority, Memory
from outlast.core.succession.succession import Succession
from outlast.events.events import Ending
from outlast.events.reasons import FailedRank
from outlast.protocol.membership import (
    Over,
)
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Term

FIRST_NODE = 30.0  # seconds in which the first node has to come


class JobState:
    """The parts of one job. Each owns its rules; here is what they have in common."""

    def __init__(self, rules: Rules, now: float, *, term: Term, run: str) -> None:
        self.rules = rules
        self.phase = Phase.FORMING
        self.outcome: Over | None = None
        self.ending: Ending | None = None
        self.last_fault: FailedRank | None = None
        self.resigned = False  # this coordinator has given the job to its successors
        self.idle = False  # the last event changed nothing that decisions depend on
        self.began = now
        self.formed = 0  # how many generations there were
        self.empty: float | None = now + max(rules.empty_timeout, FIRST_NODE)  # until then somebody has to come
        self.nodes = Attendance()
        self.out = Outbox(self.nodes)
        self.current = Generation(rules)
        self.succession = Succession(rules, now, term=term, run=run)
        self.recovery = Recovery(rules)
        self.admissions = Admissions(rules, self.nodes, self.recovery.evictions, self.out)
        self.calibration = CalibrationRounds(rules.safety_factor)
        self.dealer = Dealer()  # of shards, to whoever asks for them
        self.snapshots = Snapshots()  # in the memory of the nodes

    @property
    def authority(self) -> Authority:
        return self.succession.authority

    @property
    def term(self) -> Term:
        return self.succession.term

    @property
    def run(self) -> str:
        return self.succession.run

    @property
    def generation(self) -> int:
        """The number of the newest generation; 0: there was none."""
        return self.current.number

    def recall(self, memory: Memory, now: float) -> None:
        """Go on where a coordinator was killed. Whoever is connected will say so."""
        self.formed, self.outcome = memory.formed, memory.outcome
        self.succession.recall(memory, now)
        self.recovery.recall(memory, now)
        self.admissions.excluded = dict(memory.excluded)
        self.admissions.most = memory.wanted or self.rules.max_nodes
        current = self.current
        current.closed, current.hearsay = memory.closed, memory.hearsay
        current.failures, current.reasons = list(memory.failures), list(memory.departed)
        if memory.electorates:
            current.number = memory.electorates[0].generation
            self.phase = Phase.GATHERING
        if memory.outcome is not None:
            self.phase = Phase.OVER

    def memory(self) -> Memory:
        """What this coordinator would need if it were killed now."""
        current, succession, gathering = self.current, self.succession, self.succession.gathering
        return Memory(
            run=succession.run,
            term=succession.term.number,
            restarts=self.recovery.restarts,
            charged=self.recovery.charged,
            formed=self.formed,
            closed=current.closed,
            roster={**gathering.places, **current.roster},
            names={**gathering.names, **{name: self.nodes[name].name for name in current.roster}},
            electorates=tuple(self.authority.electorates),
            successors=succession.successors,
            before=succession.before,
            failures=tuple(current.failures),
            departed=tuple(current.reasons),
            hearsay=current.hearsay if self.phase is Phase.GATHERING else self.phase is Phase.RUNNING,
            outcome=self.outcome,
            excluded=dict(self.admissions.excluded),
            ledger=self.recovery.ledger(),
            wanted=self.admissions.most,
        )
