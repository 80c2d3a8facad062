"""The overseer: keeps as many agents on Ray as a job wants, and listens to its coordinator as any observer does.

It holds nothing that the job needs. While it is gone, training goes on, and only nobody asks Ray for nodes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

import msgspec
from ray.exceptions import RayError

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.cli.endpoints import endpoint_of
from outlast.events.events import JobOver, NodeExcluded, NodeKept, Restarting
from outlast.events.numbered import NumberedEvent
from outlast.observe import Observer, ObserverRefused
from outlast.protocol.requests import Answer
from outlast.protocol.views import JobView
from outlast.ray import cluster
from outlast.ray.agent_actor import AgentEnd, AgentOrder, Introduction
from outlast.ray.reconcile import (
    PATIENCE,
    AskForNode,
    DrainAgent,
    GiveUp,
    RayAction,
    RayAgent,
    RayObservation,
    RemoveAgent,
    Stage,
    StartAgent,
    reconcile,
)
from outlast.ray.request import RayRequest, meeting_flags
from outlast.verdict import Verdict

log = logging.getLogger("overseer")

LOOK = 1.0  # seconds between two looks at what nobody tells: Ray's nodes, the job's view
LONGEST_WAIT = 4.0  # seconds between two attempts to reach a coordinator that does not answer
ASK_AGAIN = 60.0  # seconds for another node to host the coordinator
LAST_WORDS = 60.0  # seconds for agents to end by themselves when the job is over: they know the verdict
AVOIDED_AT_MOST = 8  # Ray nodes at a time
FINAL = 93  # the exit code of a job that would fail again
EXCLUDED = 1800.0  # seconds that the Ray node of a replaced agent is not used: as long as `exclude_for`


class RayOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a job has ended."""

    success: bool
    reason: str
    final: bool = False  # it would fail again
    seconds: float = 0.0
    generations: int = 0
    restarts: int = 0
    verdict: Verdict | None = None


class KeptAgent:
    """One agent, and all that belongs to it."""

    def __init__(self, number: int, handle: cluster.ActorHandle, avoids: frozenset[str]) -> None:
        self.number = number
        self.handle = handle
        self.avoids = avoids
        self.stage = Stage.ASKED
        self.at: Introduction | None = None
        self.running: asyncio.Task[None] | None = None  # while its agent runs; None: Ray has not given it a node yet

    @property
    def name(self) -> str:
        """In the job."""
        return f"{self.at.host}.{self.number}" if self.at is not None else ""

    def place(self, port: int) -> str:
        """Where it would host the coordinator; `port`: the job's, 0 if it has none yet."""
        if self.at is None:
            return ""
        host = f"[{self.at.address}]" if ":" in self.at.address else self.at.address
        return f"{host}:{port or self.at.port}"

    def facts(self, port: int) -> RayAgent:
        node = self.at.node if self.at is not None else ""
        return RayAgent(
            number=self.number,
            stage=self.stage,
            name=self.name,
            node=node,
            place=self.place(port),
            avoids=self.avoids,
        )


class Overseer:
    """Of one job. `tell` hears every event of the job once."""

    def __init__(self, request: RayRequest, token: str, tell: Callable[[NumberedEvent], None]) -> None:
        self.view: JobView | None = None
        self._request = request
        self._token = token
        self._tell = tell
        self._agents: dict[int, KeptAgent] = {}
        self._next = 0
        self._port = 0
        self._places: tuple[str, ...] = ()
        self._joined: set[str] = set()
        self._avoid: dict[str, float] = {}  # Ray nodes, and until when
        self._blamed: set[str] = set()
        self._drains: dict[str, float] = {}  # Ray nodes that have no deadline, and when that was first seen
        self._deaths: list[float] = []
        self._over: JobOver | None = None
        self._ends: list[AgentEnd] = []
        self._last_end: AgentEnd | None = None  # None: the last one was lost
        self._outcome: RayOutcome | None = None
        self._changed = asyncio.Event()
        self._heard = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.time()

    async def run(self) -> RayOutcome:
        """Oversee the job until it is over; then nothing of it is left on Ray."""
        watching = [asyncio.create_task(self._follow()), asyncio.create_task(self._look())]
        try:
            while self._outcome is None:
                self._changed.clear()
                self._outcome = self._ended()
                actions = reconcile(self._observe(), time.time()) if self._outcome is None else ()
                for action in actions:
                    self._carry_out(action)
                if self._outcome is None:
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), LOOK)
            return await self._last_words(self._outcome)
        finally:
            for task in (*watching, *self._tasks):
                task.cancel()
            for agent in self._agents.values():
                agent.handle.remove()

    async def adopt(self) -> None:
        """Go on where an overseer of this job has died: find its agents."""
        for number, handle in cluster.living_actors(self._request):
            agent = KeptAgent(number, handle, frozenset())
            try:
                agent.at, order = await handle.introduce(), await handle.order()
            except RayError as error:
                log.warning("agent %d is lost: %s", number, _first_line(error))
                handle.remove()
                continue
            self._agents[number] = agent
            self._next = max(self._next, number + 1)
            agent.stage = Stage.HERE
            if order is not None:
                self._token, self._places = order.token, order.places
                self._port = endpoint_of("a node's address", order.places[0]).port
                agent.stage = Stage.RUNNING
                agent.running = self._begin(self._ran(agent, order))
        if not self._places:
            self.give_up("its overseer was restarted and found no agent: nobody knows whether the job is over")

    async def ask(self, what: str, subject: str = "") -> Answer:
        """What the driver wants of the job: scale, drain, restart, stop. Waits while no coordinator can do it."""
        deadline = time.time() + ASK_AGAIN
        while (answer := await self._asked(what, subject)) is None:
            if time.time() > deadline or not self._heard.is_set():
                if what != "stop":
                    return Answer(False, "the job has no coordinator that can be reached; has it begun?")
                self.give_up("it was stopped while it had no coordinator")
                return Answer(True, "the job is ended")
            await asyncio.sleep(LOOK)
        return answer

    async def _asked(self, what: str, subject: str) -> Answer | None:
        try:
            async with self._observer() as observer:
                asks = {
                    "scale": lambda: observer.scale(int(subject)),
                    "drain": lambda: observer.drain(subject),
                    "restart": observer.restart,
                    "stop": observer.stop,
                }
                answer = await asks[what]()
                return None if answer.later else answer
        except (CoordinatorUnreachable, ValueError) as error:
            log.debug("the job cannot be asked: %s", error)
            return None
        except ObserverRefused as error:
            return Answer(False, str(error))

    def give_up(self, why: str) -> None:
        """End the job, whatever it does."""
        self._outcome = self._outcome or RayOutcome(success=False, reason=why, seconds=time.time() - self._began)
        self._changed.set()

    # -- what is seen

    def _observe(self) -> RayObservation:
        view, now = self.view, time.time()
        nodes = view.nodes if view is not None else ()
        self._joined |= {node.name for node in nodes if node.connected}
        self._avoid = {node: until for node, until in self._avoid.items() if until > now}
        members = frozenset(node.name for node in nodes if node.member and node.connected)
        ready = {node.name for node in nodes if node.connected and node.ready and not node.leaving}
        return RayObservation(
            least=self._request.least,
            wanted=(view.wanted if view is not None else 0) or self._request.most,
            spares=self._request.spares,
            agents=tuple(agent.facts(self._port) for agent in self._agents.values()),
            members=members,
            waiting=frozenset(ready - members),
            blamed=frozenset(self._blamed),
            draining=self._draining(now),
            avoid=frozenset(self._avoid),
            places=self._places,
            share_nodes=self._request.share_nodes,
            deaths=tuple(self._deaths),
            over=self._over is not None,
        )

    def _draining(self, now: float) -> dict[str, float]:
        told = cluster.draining_nodes()
        self._drains = {node: self._drains.get(node, now) for node in told}
        return {node: at or self._drains[node] + PATIENCE for node, at in told.items()}

    async def _look(self) -> None:
        """Keep the view of the job, from when its coordinator has been heard."""
        await self._heard.wait()
        while True:
            try:
                async with self._observer() as observer:
                    while True:
                        before, self.view = self.view, await observer.view("nodes")
                        if before is None or before.nodes != self.view.nodes:
                            self._changed.set()
                        await asyncio.sleep(LOOK)
            except (CoordinatorUnreachable, ObserverRefused, ValueError):
                await asyncio.sleep(LOOK)

    async def _follow(self) -> None:
        """Hear the events of the job, wherever its coordinator is."""
        after, run, wait = 0, "", LOOK
        while self._over is None:
            try:
                async with self._observer() as observer:
                    async for told in observer.events(after, run=run):
                        if isinstance(told, NumberedEvent):
                            after, run, wait = told.number, observer.run, LOOK
                            self._hear(told)
            except (CoordinatorUnreachable, ObserverRefused, ValueError):
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)

    def _hear(self, told: NumberedEvent) -> None:
        event = told.event
        self._heard.set()
        excluded = event.excluded if isinstance(event, Restarting) else event
        kept = event.kept if isinstance(event, Restarting) else event
        if isinstance(excluded, NodeExcluded):
            self._avoid_node_of(excluded.node, excluded.seconds)
        elif isinstance(kept, NodeKept) and len(self._avoid) < AVOIDED_AT_MOST:
            self._blamed.add(kept.node)
        elif isinstance(event, JobOver):
            self._over = event
        self._tell(told)
        self._changed.set()

    def _avoid_node_of(self, name: str, seconds: float | None) -> None:
        for agent in self._agents.values():
            if agent.name == name and agent.at is not None and len(self._avoid) < AVOIDED_AT_MOST:
                self._avoid[agent.at.node] = time.time() + seconds if seconds is not None else float("inf")

    def _observer(self) -> Observer:
        if not self._places:
            raise ValueError("the job has not begun")
        running = [agent.place(self._port) for agent in self._agents.values() if agent.stage is Stage.RUNNING]
        places = [endpoint_of("a node's address", place) for place in dict.fromkeys([*self._places, *running])]
        return Observer(places, self._token, job=self._request.job, patience=LOOK)

    # -- what is done

    def _carry_out(self, action: RayAction) -> None:
        match action:
            case AskForNode(avoid):
                self._ask_for_node(avoid)
            case StartAgent(number, places, host):
                self._start(self._agents[number], places, host)
            case DrainAgent(number, why):
                self._drain(self._agents[number], why)
            case RemoveAgent(number, why):
                agent = self._agents.pop(number)
                log.info("node %s is given back to Ray: %s", agent.name or number, why)
                agent.handle.remove()
            case GiveUp(why):
                said = [end.said for end in self._ends if end.said]
                self.give_up(f"{why}; the last one said: {said[-1]}" if said else why)

    def _ask_for_node(self, avoid: frozenset[str]) -> None:
        agent = KeptAgent(self._next, cluster.ask_for_actor(self._request, self._next, avoid), avoid)
        self._agents[agent.number] = agent
        self._next += 1
        self._begin(self._introduced(agent))

    async def _introduced(self, agent: KeptAgent) -> None:
        try:
            agent.at = await agent.handle.introduce()
            agent.stage = Stage.HERE
            log.info("Ray gives node %s (%s)", agent.name, agent.at.address)
        except RayError as error:
            agent.stage = Stage.ENDED
            if agent.number in self._agents:  # else it was given back before it had come
                self._deaths.append(time.time())
                log.warning("an actor did not come to be: %s", _first_line(error))
        self._changed.set()

    def _start(self, agent: KeptAgent, places: tuple[str, ...], host: bool) -> None:
        assert agent.at is not None
        if host:
            self._port = self._port or agent.at.port
            self._places = tuple(dict.fromkeys([agent.place(self._port), *self._places]))
        flags = meeting_flags(self._request.job, places, agent.at.address, agent.name, host=host)
        order = AgentOrder(
            agent.name,
            self._request.command(*flags),
            self._request.directory,
            {"OUTLAST_SHM_RESERVE": str(agent.at.object_store), **self._request.env},
            self._token,
            self._places,
            self._request.detached,
        )
        agent.stage = Stage.RUNNING
        agent.running = self._begin(self._ran(agent, order))

    async def _ran(self, agent: KeptAgent, order: AgentOrder) -> None:
        try:
            self._last_end = await agent.handle.run(order)
            self._ends.append(self._last_end)
        except RayError as error:
            self._last_end = None
            log.warning("node %s is lost: %s", agent.name, _first_line(error))
        if agent.stage is not Stage.LEAVING and agent.name not in self._joined:
            self._deaths.append(time.time())
        agent.stage = Stage.ENDED
        self._changed.set()

    def _drain(self, agent: KeptAgent, why: str) -> None:
        log.info("node %s leaves: %s", agent.name, why)
        if agent.name in self._blamed:
            self._avoid_node_of(agent.name, EXCLUDED)
            self._blamed.discard(agent.name)
        agent.stage = Stage.LEAVING
        agent.handle.drain()

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- how it ends

    def _ended(self) -> RayOutcome | None:
        """How the job has ended, by what its coordinator says, or by what its agents left."""
        over = self._over
        if over is not None:
            return RayOutcome(
                success=over.success,
                reason=over.reason,
                seconds=over.seconds,
                generations=over.generations,
                restarts=over.restarts,
            )
        for end in self._ends:
            if end.code == 0:
                return RayOutcome(success=True, reason="finished", seconds=time.time() - self._began)
            if end.verdict is not None or end.code == FINAL or (end.said and not self._joined):
                reason = end.verdict.stopped if end.verdict is not None else end.said or "its agents say no reason"
                return RayOutcome(success=False, reason=reason, seconds=time.time() - self._began)
        return self._silent_end()

    def _silent_end(self) -> RayOutcome | None:
        """The last agents have ended by themselves, and nobody heard the coordinator say why: one of them did."""
        last, stages = self._last_end, {agent.stage for agent in self._agents.values()}
        if last is None or last.code <= 0 or not last.said or stages & {Stage.RUNNING, Stage.LEAVING}:
            return None
        return RayOutcome(success=False, reason=last.said, seconds=time.time() - self._began)

    async def _last_words(self, outcome: RayOutcome) -> RayOutcome:
        """Wait for the agents to end by themselves; they know the verdict."""
        if self._over is not None:
            running = [agent.running for agent in self._agents.values() if agent.running is not None]
            if running:
                await asyncio.wait(running, timeout=LAST_WORDS)
        verdict = next((end.verdict for end in self._ends if end.verdict is not None), None)
        final = any(end.code == FINAL for end in self._ends)
        return msgspec.structs.replace(outcome, verdict=verdict, final=final)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
