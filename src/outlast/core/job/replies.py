"""What nodes are told: answers to their reports, and again what they do not seem to have heard."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.core.job.phase import Phase
from outlast.core.job.state import JobState
from outlast.core.membership.member import Member
from outlast.protocol.fields import LONGEST_REASON
from outlast.protocol.generations import Start, Stop
from outlast.protocol.membership import (
    Ack,
    Notice,
    Over,
)
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.requests import DrainRequest
from outlast.protocol.succession import Charter


class Replies:
    """The coordinator's side of the conversation with each node."""

    def __init__(self, state: JobState) -> None:
        self._state = state

    def bind(self, now: float) -> None:
        """Once those who are here are enough, ask all of them for their promise."""
        s = self._state
        gathering = s.succession.gathering
        if gathering.bound or s.phase is not Phase.GATHERING or not s.authority.could_act(now):
            return
        gathering.bound = True
        for name, node in s.nodes.here():
            self.ack(name, node, now)

    def ack(self, name: str, node: Member, now: float) -> None:
        """Answer a node's newest report, with a lease if this coordinator may act, and not at all if it never could."""
        s = self._state
        leased = s.authority.acts(now)
        if leased or s.authority.could_act(now):
            node.acked(node.report.seq, now)
            s.out.send(name, Ack(node.report.seq, s.term.number, leased))

    def charter(self, name: str, now: float) -> Charter:
        s = self._state
        recovery = s.recovery
        return s.succession.charter(
            name,
            restarts=recovery.charged,
            excluded=s.admissions.excluded,
            ledger=lambda: recovery.tell(now),
            wanted=s.admissions.most,
        )

    def remind(self, name: str, node: Member, now: float) -> None:
        """Say again what the node does not seem to have heard."""
        s = self._state
        report = node.report
        member = s.phase is Phase.RUNNING and name in s.current.roster
        if s.outcome is not None:
            s.out.send(name, replace(s.outcome, term=s.term.number))
        elif not s.authority.acts(now) or s.phase is Phase.GATHERING:
            return
        elif not member and not node.clear:
            s.out.send(name, Stop(node.sent, s.term.number, graceful=node.leaving))
        elif node.leaving and node.clear:
            excluded = s.admissions.excluded.get(node.place)
            drained = f"node {node.name} is not used again: {excluded}" if excluded else f"node {node.name} was drained"
            s.out.send(name, Over(False, drained, left=True, term=s.term.number))
        elif node.drained_by and not node.leaving:
            s.out.send(name, DrainRequest(node.drained_by))  # its connection may have broken before it heard
        elif member and report.generation < s.generation and report.floor < s.generation:
            self.start(name, node, now)
        elif member and (halt := s.current.change.lacks(report.halted)) is not None:
            s.out.send(name, halt)
        elif report.known != s.authority.known:
            s.out.send(name, self.charter(name, now))
        elif member and (lacking := s.calibration.lacks(report)) is not None:
            s.out.send(name, lacking)
        elif (probe := s.admissions.gate.owed(name, s.nodes)) is not None:
            s.out.send(name, probe)

    def start(self, name: str, node: Member, now: float) -> None:
        s = self._state
        node.acked(node.report.seq, now)
        roster = s.current.roster
        keeping = s.snapshots.keeping(name, s.generation, roster, s.nodes)
        s.out.send(name, Start(roster[name], s.term.number, self.charter(name, now), node.report.seq, keeping))

    def tell_all(self, message: FromCoordinator) -> None:
        s = self._state
        for name, _ in s.nodes.here(s.current.roster):
            s.out.send(name, message)

    def tell_elsewhere(self, text: str) -> None:
        """Say it in the logs of nodes that do not have ours."""
        s = self._state
        for name, _ in s.nodes.here():
            if name != s.term.by:
                s.out.send(name, Notice(text[:LONGEST_REASON]))
