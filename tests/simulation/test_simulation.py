"""The core under thousands of schedules of delay, loss, partition, crash and return. See simulator.py."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from campaign import ending, run
from simulator import Simulation

from outlast.core.node.commands import Command
from outlast.settings.settings import Settings

SEEDS = range(100_000, 102_400)
BLOCK = 600
# Of a node. Workers are refilled only where they restart in place: test_in_place_world counts that.
COMMANDS = {command.__name__ for command in get_args(Command)} - {"RefillWorkers"}


@pytest.mark.parametrize(
    "first", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.thorough) for seed in SEEDS[BLOCK::BLOCK])]
)
def test_every_invariant_holds_after_every_event(first: int) -> None:
    simulations = [run(seed) for seed in range(first, first + BLOCK)]
    # A campaign in which some ending never comes no longer tests what leads to it.
    assert set(Counter(map(ending, simulations))) == {
        "succeeded", "run on", "lost all nodes", "lost its quorum", "waited in vain", "failed for restarts",
        "interrupted",
    }  # fmt: skip
    assert {simulation.schedule.kind for simulation in simulations} == {"any", "tie", "kills"}
    hosts = [{life.host.number for life in simulation.lives} for simulation in simulations]
    assert sum(len(one) > 1 for one in hosts) > BLOCK / 10, "hardly any coordinator was succeeded on another host"


def test_every_invariant_holds_when_ranks_save_before_planned_changes() -> None:
    simulations = [run(seed, planned=True) for seed in range(200_000, 200_600)]
    assert sum(simulation.saved for simulation in simulations) > 50, "hardly any change was waited for"
    assert "run on" in set(map(ending, simulations))


def test_every_invariant_holds_when_the_coordinator_of_a_node_that_left_resigns() -> None:
    simulations = []
    for seed in range(400_000, 400_300):
        simulations.append(simulation := Simulation(seed, resigns=True))
        simulation.run()
        if seed % 8 == 0:
            simulation.replay()
    assert sum(simulation.resigned for simulation in simulations) > 50, "hardly any coordinator resigned"


def test_every_invariant_holds_while_nodes_are_checked() -> None:
    """And nobody is let in who is not fit, whoever coordinates."""
    simulations = []
    for seed in range(300):
        simulations.append(simulation := Simulation(seed, checks=True))
        simulation.run()
        if seed % 8 == 0:
            simulation.replay()
    assert sum(simulation.generations > 1 for simulation in simulations) > 50, "hardly any job went on after its checks"


def test_every_invariant_holds_with_the_settings_and_habits_that_people_have() -> None:
    simulations = [run(seed, whole=True) for seed in range(300_000, 300_400)]
    defaults = Settings()
    usual = [each for each in simulations if each.rules.node_timeout == defaults.node_timeout]
    assert len(usual) > 0.6 * len(simulations)
    assert all(each.rules.planned_change_timeout == defaults.planned_change_timeout for each in usual)
    assert {"succeeded", "run on", "failed for restarts"} <= set(map(ending, simulations))
    # What is never done is not tested, either.
    done = Counter(name for simulation in simulations for name in simulation.done)
    assert {name for name in COMMANDS if not done[name]} == set()


def test_a_seed_is_one_schedule() -> None:
    one, other = Simulation(7, whole=True), Simulation(7, whole=True)
    one.run()
    other.run()
    assert [life.journal for life in one.lives] == [life.journal for life in other.lives]
