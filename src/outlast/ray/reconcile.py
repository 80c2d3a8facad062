"""The overseer's decisions: from what was seen of a job and its agents to what to do about them. Pure.

Agents are counted, never repaired: one that ends is removed with its placement group, and another is asked for. Where
the job itself can decide (who trains, who is excluded, when it is over), its coordinator does, and this only follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

import msgspec

LEAVE_BEFORE = 20.0  # seconds before a node's deadline at which its agent leaves, replacement or not
PATIENCE = 60.0  # seconds to wait for a replacement where a draining node has no deadline
DEATHS = 5  # of agents, within WINDOW seconds, after which the job is given up
WINDOW = 60.0


class Stage(Enum):
    """How far an agent has come."""

    ASKED = "asked"  # its placement group or its actor waits for a node
    HERE = "here"  # its actor is there, its process is not
    RUNNING = "running"
    LEAVING = "leaving"  # told to leave
    ENDED = "ended"  # its process or its actor


class RayAgent(msgspec.Struct, frozen=True, kw_only=True):
    """One agent, as far as the overseer knows."""

    number: int
    stage: Stage
    name: str = ""  # in the job, once it is HERE
    node: str = ""  # the Ray node
    place: str = ""  # host:port where it would host the coordinator
    avoids: frozenset[str] = frozenset()  # Ray nodes that it may not be on, while it is ASKED


class RayObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One job, and everything that was seen of it."""

    least: int
    wanted: int  # nodes that train, as the job has it now
    spares: int
    agents: tuple[RayAgent, ...] = ()
    members: frozenset[str] = frozenset()  # names of agents in the newest generation
    waiting: frozenset[str] = frozenset()  # names of agents that are ready and have no part in it
    blamed: frozenset[str] = frozenset()  # names of agents that the job wants replaced and cannot do without
    draining: Mapping[str, float] = {}  # Ray nodes that are about to go, and when
    avoid: frozenset[str] = frozenset()  # Ray nodes that are not to be used
    places: tuple[str, ...] = ()  # where the coordinator was last
    share_nodes: bool = False
    deaths: tuple[float, ...] = ()  # of agents that nobody expected
    over: bool = False


class AskForNode(msgspec.Struct, frozen=True):
    """Ask Ray for one more placement group with an actor in it."""

    avoid: frozenset[str]


class StartAgent(msgspec.Struct, frozen=True):
    """Start the process of this agent."""

    number: int
    places: tuple[str, ...]
    host: bool  # whether it hosts the coordinator, if it finds none


class DrainAgent(msgspec.Struct, frozen=True):
    """Tell this agent to leave the job."""

    number: int
    why: str


class RemoveAgent(msgspec.Struct, frozen=True):
    """Give its placement group back, and with it what is left of the agent."""

    number: int
    why: str


class GiveUp(msgspec.Struct, frozen=True):
    """The job cannot go on."""

    why: str


RayAction = AskForNode | StartAgent | DrainAgent | RemoveAgent | GiveUp


def reconcile(seen: RayObservation, now: float) -> tuple[RayAction, ...]:
    """What to do now."""
    return tuple(_Decision(seen, now).actions())


class _Decision:
    def __init__(self, seen: RayObservation, now: float) -> None:
        self.seen = seen
        self.now = now
        self.removed = {agent.number: why for agent in seen.agents if (why := self._useless(agent))}
        self.agents = [agent for agent in seen.agents if agent.number not in self.removed]

    def actions(self) -> Iterator[RayAction]:
        seen = self.seen
        for number, why in self.removed.items():
            yield RemoveAgent(number, why)
        if seen.over:
            return
        if sum(self.now - death < WINDOW for death in seen.deaths) >= DEATHS:
            yield GiveUp(f"agents have died {DEATHS} times within {WINDOW:.0f} s")
            return
        leaving = dict(self._leaving())
        for number, why in leaving.items():
            yield DrainAgent(number, why)
        yield from self._numbers(set(leaving))
        yield from self._starts()

    def _useless(self, agent: RayAgent) -> str:
        """Why an agent is removed; nothing, if it is not."""
        if agent.stage is Stage.ENDED:
            return "it has ended"
        if self.seen.over:
            return "the job is over" if agent.stage in (Stage.ASKED, Stage.HERE) else ""
        if agent.stage is Stage.ASKED and agent.avoids - self._avoided():
            return "it avoids nodes that can be used again"
        if agent.stage is Stage.HERE and agent.node in self.seen.draining:
            return "its node is about to go"
        if agent.stage is Stage.HERE and agent.node in self.seen.avoid:
            return "its node is not to be used"
        if agent.stage is Stage.HERE and not self.seen.share_nodes and self._has_older(agent):
            return "another agent of the job is on that node"
        return ""

    def _has_older(self, agent: RayAgent) -> bool:
        """Whether an agent that came first is on the same Ray node. One that leaves makes room soon."""
        there = [each for each in self.seen.agents if each.node == agent.node and each.number != agent.number]
        return any(each.stage in (Stage.RUNNING, Stage.LEAVING) or self._first(each, agent) for each in there)

    @staticmethod
    def _first(one: RayAgent, other: RayAgent) -> bool:
        return one.stage is Stage.HERE and one.number < other.number

    def _leaving(self) -> Iterator[tuple[int, str]]:
        """Agents that leave the job now, and why."""
        seen = self.seen
        running = [agent for agent in self.agents if agent.stage is Stage.RUNNING]
        replacements = len(seen.waiting - seen.blamed)
        able = len(seen.members)  # how many would be left to train, spares aside
        for agent in running:
            if agent.node in seen.avoid and agent.name not in seen.members:
                yield agent.number, "the job has excluded it"
            elif agent.node in seen.draining:
                if agent.name not in seen.members or replacements or able > seen.least or self._late(agent):
                    used = agent.name in seen.members and replacements
                    replacements -= bool(used)
                    able -= agent.name in seen.members and not used
                    yield agent.number, "Ray drains its node"
            elif agent.name in seen.blamed and replacements:
                replacements -= 1
                yield agent.number, "the job wants another node in its place, and one is here"

    def _late(self, agent: RayAgent) -> bool:
        return self.now >= self.seen.draining[agent.node] - LEAVE_BEFORE

    def _numbers(self, leaving: set[int]) -> Iterator[RayAction]:
        """Ask for what is missing, give back what is too much."""
        seen = self.seen
        going = {agent.number for agent in self.agents if self._goes(agent)} | leaving
        staying = [agent for agent in self.agents if agent.number not in going]
        surplus = len(staying) - seen.wanted - seen.spares
        for _ in range(-surplus):
            yield AskForNode(self._avoided())
        dispensable = {Stage.ASKED: 0, Stage.HERE: 1, Stage.RUNNING: 2}
        for agent in sorted(staying, key=lambda agent: (dispensable[agent.stage], -agent.number)):
            if surplus <= 0:
                return
            if agent.stage is not Stage.RUNNING:
                yield RemoveAgent(agent.number, "fewer nodes are wanted")
            elif agent.name in seen.waiting:
                yield DrainAgent(agent.number, "fewer nodes are wanted")
            else:
                continue  # it trains: the job itself decides who does not
            surplus -= 1

    def _goes(self, agent: RayAgent) -> bool:
        """Whether a replacement is wanted for an agent that is still there."""
        seen = self.seen
        return agent.stage is Stage.LEAVING or agent.node in (*seen.draining, *seen.avoid) or agent.name in seen.blamed

    def _avoided(self) -> frozenset[str]:
        """Ray nodes that a new agent is not to be on."""
        taken = {agent.node for agent in self.seen.agents if agent.node and agent.stage is not Stage.ENDED}
        return self.seen.avoid | set(self.seen.draining) | (set() if self.seen.share_nodes else taken)

    def _starts(self) -> Iterator[RayAction]:
        """Start the agents whose actors are there. The first of all hosts the coordinator."""
        running = [agent for agent in self.agents if agent.stage is Stage.RUNNING]
        here = [agent for agent in self.agents if agent.stage is Stage.HERE]
        known = [*self.seen.places, *(agent.place for agent in running)]
        for index, agent in enumerate(here):
            host = not running and index == 0
            own = [agent.place] if host else [here[0].place] if not running else []
            yield StartAgent(agent.number, tuple(dict.fromkeys([*own, *known])), host)
