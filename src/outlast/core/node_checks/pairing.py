"""Who is tried with whom, and what that says: bad nodes and bad links from collectives that passed or did not.

A collective of two either works, and then both are good, or it does not, and then nobody knows whose fault it is. So
neighbours are tried first, and whoever failed is tried again with one that is proven good. A node is named when it has
failed with two different good ones (its neighbour counts, once that is proven), or twice by itself. So a healthy node
with one bad link is never blamed: the link is, when both of its ends are proven and it fails once more.

One bad node among good ones takes two rounds. More rounds are needed where two bad ones were neighbours, where fewer
are good than suspect, and where three are all there are; the number of rounds does not grow with that of the nodes.
What cannot be told apart, as which of two nodes is at fault when there is no third, stays open, and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Group = tuple[str, ...]

STRIKES = 2  # failures with different good partners, or by itself, that name a node
MOST_ROUNDS = 10
MOST_BLIND = 5  # rounds in which nobody was proven good


class Pairing:
    """The rounds of one check. `partners` are proven already, and may be asked to help.

    >>> pairing = Pairing(["a", "b", "c", "d"])
    >>> pairing.next()
    [('a', 'b'), ('c', 'd')]
    >>> pairing.judge(("a", "b"), False); pairing.judge(("c", "d"), True)
    >>> pairing.next()
    [('a', 'c'), ('b', 'd')]
    >>> pairing.judge(("a", "c"), False); pairing.judge(("b", "d"), True)
    >>> pairing.next(), list(pairing.bad)
    ([], ['a'])
    """

    def __init__(self, nodes: Sequence[str], partners: Iterable[str] = ()) -> None:
        self.good: dict[str, None] = dict.fromkeys(partners)
        self.suspects: dict[str, None] = dict.fromkeys(node for node in nodes if node not in self.good)
        self.bad: dict[str, str] = {}  # and why, where they fail by themselves
        self.witnesses: dict[str, Group] = {}  # good ones that bad ones failed with
        self.rounds = 0
        self._blind = 0
        self._ended = False
        self._failed_with: dict[str, dict[str, None]] = {}
        self._alone: dict[str, int] = {}  # how often a node failed by itself
        self._links: dict[tuple[str, str], int] = {}  # how often two have failed together

    @property
    def links(self) -> list[tuple[str, str]]:
        """Pairs of good nodes that do not work together."""
        return [link for link, times in self._links.items() if times >= STRIKES and self._are_good(link)]

    @property
    def open(self) -> list[str]:
        """Those of which it cannot be said whether they are good; known when there is no next round."""
        return list(self.suspects)

    def next(self) -> list[Group]:
        """The groups of the next round; none when nothing more can be learned."""
        self._name()
        if self._ended or self.rounds >= MOST_ROUNDS:
            return []
        self._blind = 0 if self.good else self._blind + 1
        groups = self._first() if self.rounds == 0 else self._again()
        if not groups:
            self._ended = True
            return []
        self.rounds += 1
        return groups

    def judge(self, group: Group, passed: bool) -> None:
        """How a group of this round did. Of those that were lost meanwhile nothing is said."""
        if passed:
            for node in group:
                if node in self.suspects:
                    del self.suspects[node]
                    self.good[node] = None
            if len(group) == 2:
                self._links.pop(_link(*group), None)
        elif len(group) == 2:
            one, other = group
            self._failed_with.setdefault(one, {})[other] = None
            self._failed_with.setdefault(other, {})[one] = None
            self._links[_link(one, other)] = self._links.get(_link(one, other), 0) + 1

    def fails_alone(self, node: str, why: str, *, certain: bool) -> None:
        """A node failed by itself: named at once where that is certain, else when it does so again."""
        self._alone[node] = self._alone.get(node, 0) + 1
        if certain or self._alone[node] >= STRIKES:
            self.suspects.pop(node, None)
            self.good.pop(node, None)
            self.bad[node] = why

    def lose(self, node: str) -> None:
        """A node has gone: it is neither good nor bad, and those who failed with it are no worse for that."""
        self.suspects.pop(node, None)
        self.good.pop(node, None)

    # -- rounds

    def _first(self) -> list[Group]:
        nodes = list(self.suspects)
        groups: list[Group] = list(zip(nodes[::2], nodes[1::2], strict=False))
        if len(nodes) % 2 == 0:
            return groups
        if self.good:
            return [*groups, (nodes[-1], next(iter(self.good)))]
        return [*groups[:-1], (*groups[-1], nodes[-1])] if groups else [(nodes[-1],)]

    def _again(self) -> list[Group]:
        groups = self._with_good() if self.good else self._among_suspects()
        taken = {node for group in groups for node in group}
        for link, times in self._links.items():
            if times < STRIKES and self._are_good(link) and not taken & set(link):
                groups.append(link)
                taken |= set(link)
        return groups

    def _with_good(self) -> list[Group]:
        """Suspects with good ones that they have not failed with, as far as those reach."""
        free = list(reversed(self.good))
        groups: list[Group] = []
        for node in self.suspects:
            known = self._failed_with.get(node, {})
            passed_over = []
            while free and free[-1] in known:
                passed_over.append(free.pop())
            if free:
                groups.append((node, free.pop()))
            free += reversed(passed_over)
        if groups:
            return groups
        # Whoever is left has failed with every good one there is. If that is a single one, it gets a second try.
        for node in self.suspects:
            for other in self._failed_with.get(node, {}):
                if other in self.good and self._links.get(_link(node, other), 0) < STRIKES:
                    return [(node, other)]
        return []

    def _among_suspects(self) -> list[Group]:
        """Nobody is proven good yet: others together, and who failed by itself, by itself again."""
        if self._blind > MOST_BLIND:
            return []
        groups: list[Group] = [(node,) for node in self.suspects if self._alone.get(node)]
        waiting = [node for node in self.suspects if not self._alone.get(node)]
        pairs = self._matched(waiting)
        if not pairs and len(waiting) == 2 and self._links.get(_link(*waiting), 0) < STRIKES:
            pairs = [(waiting[0], waiting[1])]
        if len(waiting) == 1:
            pairs = [(waiting[0],)]  # nobody is left to try it with
        return [*groups, *pairs]

    def _matched(self, nodes: list[str]) -> list[Group]:
        """Pairs that have not failed together, each node in one of them at most."""
        pairs: list[Group] = []
        waiting: list[str] = []  # each has failed with all who wait beside it, so there are never many
        for node in nodes:
            known = self._failed_with.get(node, {})
            partner = next((other for other in waiting if other not in known), None)
            if partner is None:
                waiting.append(node)
            else:
                waiting.remove(partner)
                pairs.append((partner, node))
        return pairs

    # -- what follows

    def _name(self) -> None:
        """Those who have failed with enough good ones are bad."""
        for node in list(self.suspects):
            with_good = tuple(other for other in self._failed_with.get(node, {}) if other in self.good)
            if len(with_good) >= STRIKES:
                del self.suspects[node]
                self.bad[node] = ""
                self.witnesses[node] = with_good[:STRIKES]

    def _are_good(self, link: tuple[str, str]) -> bool:
        return link[0] in self.good and link[1] in self.good


def set_aside(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A few nodes without which none of these links is left, each with one that it does not work with.

    >>> set_aside([("a", "b"), ("b", "c"), ("b", "d")])
    {'b': 'a'}
    """
    remaining = list(links)
    aside: dict[str, str] = {}
    while remaining:
        degree: dict[str, int] = {}
        for node in (end for link in remaining for end in link):
            degree[node] = degree.get(node, 0) + 1
        worst = max(degree, key=lambda node: (degree[node], node))
        one, other = next(link for link in remaining if worst in link)
        aside[worst] = other if worst == one else one
        remaining = [link for link in remaining if worst not in link]
    return aside


def _link(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)
