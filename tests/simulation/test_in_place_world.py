"""Restarts in place under the schedules of the simulator, and broken agents and jobs that must be caught."""

from __future__ import annotations

from typing import Any

import pytest
from campaign import ending, run
from in_place_world import InPlaceSimulation, Shell, SimulatedProcess
from invariants import Violation
from test_mutants import NoBarrier, NobodyIsAGhost, job_of

from outlast.core.job.course import JobCourse
from outlast.core.job.job import Job
from outlast.core.job.state import JobState
from outlast.core.node.course import NodeCourse
from outlast.core.node.node import Node

SEEDS = range(400_000, 400_500)
MOST_SEEDS = 1500


def test_every_invariant_holds_when_workers_are_restarted_in_place() -> None:
    simulations = [run(seed, world=InPlaceSimulation) for seed in SEEDS]
    assert {"succeeded", "run on", "failed for restarts"} <= set(map(ending, simulations))
    worlds = [each for each in simulations if isinstance(each, InPlaceSimulation)]
    assert sum(each.stayed for each in worlds) > len(SEEDS) / 4, "hardly any process was restarted in place"
    assert sum(each.given_up for each in worlds) > len(SEEDS) / 20, "hardly any process had to be killed"
    assert sum(each.held_back for each in worlds) > len(SEEDS) / 20, "hardly any node was held back"
    assert sum(each.refilled for each in worlds) > len(SEEDS) / 20, "hardly any process was replaced meanwhile"


class ClearWhenAsked(Shell):
    """Takes a worker that was asked to leave for one that has left."""

    def is_clear(self, members: list[SimulatedProcess]) -> bool:  # noqa: ARG002
        return True


class ClearWhenFailed(Shell):
    """Takes a worker whose function has raised for one that is gone."""

    def is_clear(self, members: list[SimulatedProcess]) -> bool:
        return not any(each.reaches and not each.failed for each in members)


class WaitsForAll(Shell):
    """Kills nobody: who does not leave is waited for."""

    gives_up = False


class ReusesTheDead(Shell):
    """Does not look whether a parked process still lives."""

    def is_reusable(self, process: SimulatedProcess) -> bool:  # noqa: ARG002
        return True


def caught(shell: type[Shell] = Shell, job: type[Job] = Job, node: type[Node] = Node) -> str:
    """The first invariant that breaks."""
    for seed in range(MOST_SEEDS):
        try:
            InPlaceSimulation(seed, shell=shell, job=job, node=node).run()
        except Violation as violation:
            return violation.invariant
    return ""


@pytest.mark.parametrize(
    ("shell", "invariant"),
    [
        (ClearWhenAsked, "one generation"),
        (ClearWhenFailed, "one generation"),
        (WaitsForAll, "nobody is stuck"),
        (ReusesTheDead, "the dead are replaced"),
    ],
)
def test_a_broken_agent_is_caught(shell: type[Shell], invariant: str) -> None:
    assert caught(shell) == invariant


class HoldsNobodyBack(JobCourse):
    """Forms each generation of all that are there, whatever they lost."""

    def __init__(self, state: JobState, *parts: Any) -> None:
        super().__init__(state, *parts)
        state.admissions.muster = lambda **_: state.admissions._hold_back(False)  # type: ignore[method-assign]


class HoldsBackForEver(JobCourse):
    """Does not use nodes that lost processes, however few others there are."""

    def __init__(self, state: JobState, *parts: Any) -> None:
        super().__init__(state, *parts)
        state.admissions.muster = lambda **_: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("mutant", "invariant"),
    [
        (HoldsNobodyBack, "the healthy wait for nobody"),
        (HoldsBackForEver, "a killed coordinator restarts nobody"),  # the first of several
    ],
)
def test_a_job_that_is_wrong_about_who_is_healthy_is_caught(mutant: type[JobCourse], invariant: str) -> None:
    assert caught(job=job_of(mutant)) == invariant


class NeverRefills(NodeCourse):
    """Leaves the places of those that died empty."""

    def _refill(self, now: float) -> None:  # noqa: ARG002
        self._state.refill_at = None


def test_a_node_that_does_not_replace_its_dead_is_caught() -> None:
    class Negligent(Node):
        _course_class = NeverRefills

    assert caught(node=Negligent) == "nobody is stuck"


@pytest.mark.parametrize("mutant", [NoBarrier, NobodyIsAGhost])
def test_a_job_that_does_not_wait_for_those_that_leave_is_caught(mutant: type[Job]) -> None:
    assert caught(job=job_of(mutant)) == "one generation"
