"""Who takes part in the next generation: nodes that are ready, fit, not excluded, and enough of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from outlast.core.job.outbox import Outbox
from outlast.core.membership.admission import refusal
from outlast.core.membership.attendance import Attendance
from outlast.core.membership.member import Member
from outlast.core.membership.roster import world_of
from outlast.core.node_checks.checks import Result
from outlast.core.node_checks.gate import Gate
from outlast.core.recovery.evictions import Evictions
from outlast.events.events import CheckBegan, CheckDone, CheckedNode, NodeExcluded, NodeKept, WaitingForNodes
from outlast.events.phrases import NAMES_SHOWN
from outlast.protocol.membership import Join
from outlast.protocol.rules import Rules


class Admissions:
    """The door of one job."""

    def __init__(self, rules: Rules, nodes: Attendance, evictions: Evictions, out: Outbox) -> None:
        self._rules = rules
        self._nodes = nodes
        self._evictions = evictions
        self._out = out
        self.gate = Gate(rules)
        self.excluded: dict[str, str] = {}  # places that are not used again, and why
        self.last_call: float | None = None  # until then more nodes are waited for
        self.pend: float | None = None  # until then MIN nodes are waited for
        self.most = rules.max_nodes  # that are wanted: fewer than MAX, if somebody said so
        self.held_back: set[str] = set()  # nodes whose processes died, while MIN others have all of theirs
        self._holds_back = rules.restart_policy == "min-healthy"  # but while too few are healthy

    def refusal(self, join: Join, run: str | None) -> str:
        """Why this agent cannot be part of the job; nothing, if it can."""
        excluded = "" if join.node in self._nodes else self.excluded.get(join.place, "")
        namesake = self._nodes.of_the_same_rank(join) if self._rules.use_infra_group_rank else ""
        return refusal(self._rules, join, run=run, excluded=excluded, namesake=namesake)

    def place(self, name: str) -> None:
        """Keep the sets true: whether a node is ready, and whether its workers may be alive."""
        node = self._nodes[name]
        usable = not self._evictions.is_out(node.place) and not self.gate.is_aside(name)
        held = usable and self._holds_back and node.is_here and node.impaired
        (self.held_back.add if held else self.held_back.discard)(name)
        self._nodes.place(name, usable=usable and not held)

    def muster(self, *, planned: bool) -> None:
        """The next generation is about to be formed: use those that are held back, if too few are healthy.

        A node that has not run yet counts as healthy, but only beside one that has: if no process at all is left,
        everybody starts again. After a `planned` change nobody is held back: else processes that cannot leave in time
        would be replaced, join, and make others leave, without end.
        """
        self._hold_back(not planned)
        ready = self._nodes.ready
        if self.held_back and not (self.world(len(ready)) and any(node.whole for node in ready.values())):
            self._hold_back(False)

    def formed(self) -> None:
        """A generation was formed: whoever else is impaired is held back from it."""
        self._hold_back(True)

    def _hold_back(self, on: bool) -> None:
        if self._rules.restart_policy == "min-healthy" and on is not self._holds_back:
            self._holds_back = on
            for name in [*self._nodes.ready, *self.held_back]:
                self.place(name)

    @property
    def available(self) -> Collection[str]:
        """All that the next generation could use, if need be."""
        return self._nodes.ready.keys() | self.held_back

    def world(self, available: int) -> int:
        """How many nodes a generation has when so many are available; 0 when they are too few."""
        r = self._rules
        return world_of(available, least=r.min_nodes, most=self.most, unit=r.node_unit)

    @property
    def is_full(self) -> bool:
        """Whether as many nodes are ready as can ever be used."""
        return self.world(len(self._nodes.ready)) == self.world(self.most)

    def is_due(self, now: float) -> bool:
        """Whether the last call is over; the first question starts it."""
        if self.last_call is None:
            self.last_call = now + self._rules.last_call
        return now >= self.last_call

    def settle(self, now: float) -> None:
        """Time has passed: workers that could not be asked are dead by now."""
        for name in self._nodes.laid(now):
            self.place(name)

    def lift(self) -> None:
        """There are too few others: use those that were set aside."""
        for name in self.gate.lift():
            self.place(name)

    def lose(self, name: str, now: float) -> None:
        """A node's connection is gone."""
        self.place(name)
        for other in self.gate.lose(name, now):
            self.place(other)

    def waiting(self, generation: int) -> WaitingForNodes:
        """What is waited for, and who is here."""
        r, out = self._rules, self._evictions
        here = [node for _, node in self._nodes.here() if not node.leaving and out.is_out(node.place)]
        return WaitingForNodes(
            generation=generation,
            least=r.min_nodes,
            unit=r.node_unit,
            ready=tuple(node.name for node in self._nodes.ready.values()),
            excluded={node.name: out.bans[node.place].reason for node in here[:NAMES_SHOWN]},
        )

    # -- checks

    def admitted(self, roster: Collection[str]) -> Mapping[str, Member]:
        """Those of the ready nodes that may be let in, as far as checks say."""
        return self.gate.admitted(self._nodes.ready, roster)

    def begin_check(self, admitted: Mapping[str, Member], generation: int, term: int, *, beside: bool) -> bool:
        """Check those of the ready nodes that are not admitted, unless a check is under way; whether one has begun.

        `beside`: others train meanwhile.
        """
        new = [name for name in self._nodes.ready if name not in admitted]
        if not new or self.gate.busy:
            return False
        names = tuple(self._nodes[name].name for name in new)
        self._out.publish(CheckBegan(generation=generation, nodes=names))
        self.gate.begin(new, self._nodes, list(admitted), term, beside=beside)
        return True

    def probe(self, now: float) -> None:
        """Go on with the check that is under way."""
        for name, probe in self.gate.advance(self._nodes, now):
            self._out.send(name, probe)

    def conclude(self, generation: int, now: float) -> Result | None:
        """What the check has come to, once it is over; those who did not pass are excluded, if that can be."""
        result = self.gate.conclude(now)
        if result is None:
            return None
        rows = tuple(CheckedNode(row.node, row.standing.value, row.why) for row in result.rows.values())
        shown = "" if self._rules.check_only else self.gate.table
        self._out.publish(CheckDone(generation=generation, nodes=rows, table=shown))
        for sentence in self.gate.judge(result, self._nodes, self._nodes.ready, self._evictions, now):
            name, why = self._nodes[sentence.node].name, sentence.why
            if sentence.stays:
                kept = NodeKept(generation=generation, node=name, because=sentence.stays, why=why)
                self._out.publish(kept)
                continue
            if sentence.seconds is not None:
                self._out.release(NodeExcluded(generation=generation, node=name, why=why, seconds=sentence.seconds))
            self.place(sentence.node)
        self.last_call = now  # it took long enough
        return result
