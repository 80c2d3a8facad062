"""Gathering: what a coordinator that comes to a running job knows of the members that have not come to it yet."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.events.phrases import NAMES_SHOWN
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import Join
from outlast.protocol.rules import Rules


class Gathering:
    """The members that are not here, as far as anybody has told of them.

    >>> gathering = Gathering(names={"a-1": "a"})
    >>> gathering.close()
    ('a',)
    """

    def __init__(self, places: Mapping[str, Assignment] | None = None, names: Mapping[str, str] | None = None) -> None:
        self.places = dict(places or {})
        self.names = dict(names or {})
        self.bound = False  # those who are here have been asked for their promise
        self.took_over = False  # this coordinator has begun to act in its term

    def renew(self) -> None:
        """A new term begins."""
        self.bound = self.took_over = False

    def misses(self, node: str, name: str, place: Assignment) -> None:
        """A member is not here, and may come back."""
        self.places[node], self.names[node] = place, name

    def take_back(self, join: Join, generation: int) -> Assignment | None:
        """A node has come. Returns its place in this generation, if it has one: it says so itself, or it was known."""
        self.names.pop(join.node, None)
        known, told = self.places.get(join.node), join.assignment
        place = told if told is not None and told.generation == generation else known
        if place is not None:
            self.places.pop(join.node, None)
        return place

    def close(self) -> tuple[str, ...]:
        """Nobody is waited for any more. Returns the names of those who did not come, where known."""
        absent = tuple(self.names.values())[:NAMES_SHOWN]
        self.places, self.names = {}, {}
        return absent


class Powerless:
    """For how long a coordinator has not been allowed to act: it says so after a while, and gives up at last.

    >>> powerless = Powerless(Rules(job="j", entrypoint="e", min_nodes=1, max_nodes=2, node_timeout=3.0))
    >>> powerless.wait(now=1.0), powerless.deadline(), powerless.wait(now=4.0), powerless.deadline()
    ('', 4.0, 'say', 601.0)
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._since: float | None = None
        self._said = False

    def __bool__(self) -> bool:
        return self._since is not None

    def begin(self, now: float) -> None:
        """Count from now on."""
        self._since, self._said = now, False

    def end(self) -> None:
        """It may act again."""
        self._since = None

    def wait(self, now: float) -> str:
        """It may not act now. What to do about that: "say" so, "give up", or nothing yet."""
        if self._since is None:
            self.begin(now)
        elif not self._said and now >= self._since + self._rules.node_timeout:
            self._said = True
            return "say"
        elif now >= self._since + self._rules.pend_timeout:
            return "give up"
        return ""

    def deadline(self) -> float | None:
        patience = self._rules.pend_timeout if self._said else self._rules.node_timeout
        return self._since + patience if self._since is not None else None
