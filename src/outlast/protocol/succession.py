"""Terms, votes and the charter: what lets a job outlive its coordinator."""

from __future__ import annotations

from typing import Annotated

import msgspec

from outlast.protocol.failures import Ledger
from outlast.protocol.fields import Address, Count, Name, Port, Reason
from outlast.protocol.rules import Rules


class Term(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One life of a coordinator. The higher one is the newer; no two are equal.

    >>> Term(2, "b") > Term(1, "c")
    True
    """

    number: Count = 0
    by: Name = ""  # the life of an agent that started it: of one `by`, no two live at the same time


class Ballot(msgspec.Struct, frozen=True, array_like=True):
    """A node's votes among the members of a generation: a coordinator needs more than half of the total."""

    generation: Count
    formed: Count  # the number of the term that it was formed in
    affirmed: Count  # and of the last one that took it over
    total: Count
    votes: Count  # of the node that this is told to

    @property
    def age(self) -> tuple[int, int]:
        """What makes one newer than another."""
        return (self.affirmed, self.generation)


class Successor(msgspec.Struct, frozen=True, array_like=True):
    """A node that may host the coordinator when its host is lost, and where it would listen."""

    node: Name
    name: Name
    addr: Address
    port: Port
    key: Name = ""


class Charter(msgspec.Struct, frozen=True, array_like=True, tag="charter"):
    """What a node has to know so that the job outlives its coordinator."""

    run: Name  # unique to one run of the job: what is left of an earlier one is no part of it
    rules: Rules
    ballots: Annotated[tuple[Ballot, ...], msgspec.Meta(max_length=2)] = ()  # the newest first
    successors: Annotated[tuple[Successor, ...], msgspec.Meta(max_length=64)] = ()
    restarts: Count = 0  # that failures had cost when the newest generation was formed
    excluded: dict[Name, Reason] = {}  # places that are not used again, and why
    members: tuple[Name, ...] = ()  # all of the newest generation's, for a successor: it must count them all
    ledger: Ledger | None = None  # for a successor; its times count from when it was told
    before: Annotated[tuple[Successor, ...], msgspec.Meta(max_length=64)] = ()  # of the second ballot's generation
    wanted: Count = 0  # nodes, if somebody said how many; 0: MAX

    @property
    def turns(self) -> tuple[Successor, ...]:
        """Who may host the coordinator, one after the other.

        While the generation before has a say, its members are among them: perhaps nobody of the newest has heard of it.
        """
        newest = {successor.node for successor in self.successors}
        return (*self.successors, *(successor for successor in self.before if successor.node not in newest))

    @property
    def known(self) -> tuple[int, int, int]:
        """What a node repeats in its reports, so that the coordinator sees whether it has this one."""
        return (*self.ballots[0].age, len(self.ballots)) if self.ballots else (0, 0, 0)


class Resign(msgspec.Struct, frozen=True, array_like=True, tag="resign"):
    """A coordinator's last word: it never acts again, so its nodes need not wait before they join another."""

    term: Count


class Standing(msgspec.Struct, frozen=True, array_like=True, tag="standing"):
    """A coordinator's first word, before anybody has joined it: who it is, and whether it may act."""

    term: Term
    acting: bool
    job: Name = ""
