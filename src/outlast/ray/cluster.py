"""The calls to Ray that the overseer makes, and nothing else."""

from __future__ import annotations

import logging
from asyncio import Future, wrap_future
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import ray
from ray._private.state import state as ray_state
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from outlast.ray.agent_actor import AgentActor, AgentEnd, AgentOrder, Introduction
from outlast.ray.request import NAMESPACE, RayRequest

log = logging.getLogger("overseer")

CALLS = 8  # at a time in an agent's actor: `run` takes one for as long as the agent lives


class ActorHandle(msgspec.Struct, frozen=True, eq=False):
    """An agent's actor, and its placement group."""

    actor: Any
    group: PlacementGroup

    def introduce(self) -> Future[Introduction]:
        """Where it is, once it is somewhere."""
        return wrap_future(self.actor.introduce.remote().future())

    def run(self, order: AgentOrder) -> Future[AgentEnd]:
        """Start its agent, and await the end of that."""
        return wrap_future(self.actor.run.remote(order).future())

    def order(self) -> Future[AgentOrder | None]:
        """What it runs already."""
        return wrap_future(self.actor.order.remote().future())

    def drain(self) -> None:
        """Tell its agent to leave the job."""
        self.actor.drain.remote()

    def remove(self) -> None:
        """Give its resources back; the actor dies with its placement group."""
        try:
            remove_placement_group(self.group)
        except RayError as error:
            log.warning("a placement group could not be removed: %s", error)


def ask_for_actor(request: RayRequest, number: int, avoid: frozenset[str]) -> ActorHandle:
    """A placement group for one node, and an actor that comes to be in it. Returns at once."""
    selector = request.selector(avoid)
    lifetime = "detached" if request.detached else None
    name = f"{request.job}/{number}"
    group = placement_group(
        [request.bundle],
        name=f"outlast/{name}",
        lifetime=lifetime,
        bundle_label_selector=[selector] if selector else None,
    )
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    options = {**request.actor_resources(), "max_restarts": 0, "max_task_retries": 0, "max_concurrency": CALLS}
    if request.detached:
        options |= {"name": name, "namespace": NAMESPACE, "lifetime": lifetime}
    actor = ray.remote(AgentActor).options(scheduling_strategy=strategy, **options).remote()
    return ActorHandle(actor, group)


def living_actors(request: RayRequest) -> Iterator[tuple[int, ActorHandle]]:
    """The agents of a detached job that an overseer before this one has asked for."""
    for each in ray.util.list_named_actors(all_namespaces=True):
        job, _, number = each["name"].rpartition("/")
        if each["namespace"] == NAMESPACE and job == request.job and number.isdecimal():
            actor = ray.get_actor(each["name"], namespace=NAMESPACE)
            yield int(number), ActorHandle(actor, ray.util.get_placement_group(f"outlast/{each['name']}"))


def draining_nodes() -> Mapping[str, float]:
    """The Ray nodes that are about to go, and when (wall-clock); 0: nobody says when."""
    return {node: milliseconds / 1000 for node, milliseconds in ray_state.get_draining_nodes().items()}
