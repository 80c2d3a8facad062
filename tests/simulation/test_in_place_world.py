"""Restarts in place under the schedules of the simulator, and broken agents and jobs that must be caught."""

from __future__ import annotations

import pytest
from campaign import ending, run
from in_place_world import InPlaceSimulation, Shell, SimulatedProcess
from invariants import Violation
from test_mutants import NoBarrier, NobodyIsAGhost, job_of

from outlast.core.job.job import Job

SEEDS = range(400_000, 400_500)
MOST_SEEDS = 1500


def test_every_invariant_holds_when_workers_are_restarted_in_place() -> None:
    simulations = [run(seed, world=InPlaceSimulation) for seed in SEEDS]
    assert {"succeeded", "run on", "failed for restarts"} <= set(map(ending, simulations))
    stayed = sum(each.stayed for each in simulations if isinstance(each, InPlaceSimulation))
    given_up = sum(each.given_up for each in simulations if isinstance(each, InPlaceSimulation))
    assert stayed > len(SEEDS) / 4, "hardly any process was restarted in place"
    assert given_up > len(SEEDS) / 20, "hardly any process had to be killed"


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


def caught(shell: type[Shell] = Shell, job: type[Job] = Job) -> str:
    """The first invariant that breaks."""
    for seed in range(MOST_SEEDS):
        try:
            InPlaceSimulation(seed, shell=shell, job=job).run()
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


@pytest.mark.parametrize("mutant", [NoBarrier, NobodyIsAGhost])
def test_a_job_that_does_not_wait_for_those_that_leave_is_caught(mutant: type[Job]) -> None:
    assert caught(job=job_of(mutant)) == "one generation"
