"""Planned changes: before the line-up changes and nobody has failed, all ranks save at the same step, and stop there.

A node that joins or drains, and a restart that a person asked for, can wait for a moment. The ranks of a generation
count the boundaries between their steps (calls of `Checkpointer.save`), all alike. It goes in two rounds:

1. All members are told that a change is planned. From then on each of their ranks stops at the next boundary that it
   comes to, and its node says which ones they have gone past.
2. When all have said so, none can be further than the boundary after the furthest: that one is named. Who stands before
   it goes on to it; there every rank saves, says so, and waits for its end.

So ranks need not be in step with each other, and no collective decides. It is over when all have saved, when a member
has ranks that come to no boundary (a script that saves otherwise), or when it has taken too long. A failure ends the
generation at once, as ever. Constant work per answer, but for the naming.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outlast.core.membership.member import Member
from outlast.events.reasons import ChangeReason, PlannedEnd, Saved
from outlast.protocol.generations import Halt, Halted
from outlast.protocol.rules import Rules


def belongs_on_disk(rules: Rules, members: Iterable[Member]) -> bool:
    """Whether that save has to be on disk. Else it is read from the memory of these members, who are still there then.

    The memory of one that leaves goes with it, and its copy on another node may be late; and not all can be reached.
    (A job of one node has nobody to read it for; when it leaves, what is in memory is written to disk in any case.)

    >>> belongs_on_disk(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=1), [])
    False
    """
    return rules.max_nodes > 1 and any(member.leaving or not member.join.keeper for member in members)


class Change:
    """The planned changes of one generation; several at once are one. Nothing is remembered: nodes repeat it.

    >>> from outlast.events.reasons import JoinedNodes
    >>> change = Change(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2, planned_change_timeout=20.0), 1)
    >>> change.plan(JoinedNodes(("b",)), {"a"}, durable=False, now=5.0)
    Halt(generation=1, at=0, durable=False)
    >>> change.hear("a", Halted(at=0, able=True, passed=6))
    Halt(generation=1, at=7, durable=False)
    >>> change.hear("a", Halted(at=7, able=True, passed=6, sealed=7, step=70)), change.outcome(now=5.1)
    (None, PlannedEnd(changes=(JoinedNodes(nodes=('b',)),), saved=<Saved.ALL: 'all'>, step=70, seconds=20.0))
    """

    def __init__(self, rules: Rules, generation: int = 0) -> None:
        self._rules = rules
        self._generation = generation
        self._why: list[ChangeReason] = []
        self._until: float | None = None
        self._members: set[str] = set()
        self._silent: set[str] = set()  # members that have not said where their ranks are
        self._said: dict[str, Halted] = {}  # what the others said last
        self._unable = self._short = False  # some come to no boundary; some have come to the end instead
        self._least = 1  # the first boundary that no rank has gone past
        self._at = 0  # the one that was named
        self._durable = False
        self._sealed: dict[str, int | None] = {}  # who has saved there, and which step

    @property
    def named(self) -> bool:
        """Whether it is known where the ranks halt."""
        return self._at > 0

    @property
    def able(self) -> bool:
        """Whether all ranks that were heard of come to boundaries, and so can save."""
        return not self._unable

    @property
    def planned(self) -> bool:
        return self._until is not None

    @property
    def why(self) -> tuple[ChangeReason, ...]:
        return tuple(self._why)

    def deadline(self) -> float | None:
        """When it is over at the latest."""
        return self._until

    def plan(self, why: ChangeReason, members: Collection[str], *, durable: bool, now: float) -> Halt | None:
        """A change, for this reason. What all members are to be told now, if anything."""
        if why not in self._why:
            self._why.append(why)
        more, self._durable = durable and not self._durable, self._durable or durable
        if not self.planned:
            self._until = now + self._rules.planned_change_timeout
            self._members, self._silent = set(members), set(members)
        elif not more:
            return None
        elif self._at:
            # Some may have saved there already, in memory alone: all go on to the next one.
            self._at += 1
            self._least, self._sealed = self._at, {}
        return self._halt()

    def hear(self, node: str, halted: Halted) -> Halt | None:
        """A member says where its ranks are. What all are to be told now, if anything."""
        if node not in self._members:
            return None
        self._silent.discard(node)
        self._said[node] = halted
        self._unable = self._unable or not halted.able
        # A coordinator before this one may have named a boundary: some stand there already, and some do not know it.
        self._least = max(self._least, halted.passed + 1, halted.at)
        if halted.sealed and halted.sealed == self._at:
            self._sealed[node] = halted.step
        if self._silent or self._least <= self._at:
            return None
        self._at = self._least
        self._sealed = {each: said.step for each, said in self._said.items() if said.sealed == self._at}
        return self._halt()

    def finished(self, node: str) -> None:
        """The ranks of a member have all come to the end of the script: they save no more, and others soon will not."""
        self._short = True
        self._members.discard(node)
        self._silent.discard(node)

    def lacks(self, halted: Halted | None) -> Halt | None:
        """What a member has to be told again, going by what it says."""
        return self._halt() if self.planned and (halted is None or halted.at < self._at) else None

    def outcome(self, now: float) -> PlannedEnd | None:
        """How the change went, as soon as the generation may end; until then None."""
        if not self.planned or self._until is None:
            return None
        if self._unable:
            return self._end(Saved.NONE)
        if self._at and self._members and self._members <= self._sealed.keys():
            steps = set(self._sealed.values())
            saved = len(steps) == 1 and None not in steps and not self._short
            return self._end(Saved.ALL, steps.pop()) if saved else self._end(Saved.SOME)
        return self._end(Saved.LATE) if now >= self._until else None

    def _end(self, saved: Saved, step: int | None = None) -> PlannedEnd:
        return PlannedEnd(self.why, saved, step, self._rules.planned_change_timeout)

    def _halt(self) -> Halt:
        return Halt(self._generation, self._at, self._durable)
