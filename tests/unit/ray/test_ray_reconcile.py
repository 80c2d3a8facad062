"""What the overseer of a job on Ray decides, from what it has seen."""

from __future__ import annotations

from typing import Any

from outlast.ray.reconcile import (
    DEATHS,
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

NOW = 1000.0


def agent(number: int, stage: Stage = Stage.RUNNING, **more: Any) -> RayAgent:
    if stage is not Stage.ASKED:
        more = {"name": f"h.{number}", "node": f"n{number}", "place": f"10.0.0.{number}:7", **more}
    return RayAgent(number=number, stage=stage, **more)


def decide(*agents: RayAgent, now: float = NOW, **more: Any) -> list[RayAction]:
    """With all running agents in the generation, unless it is said otherwise."""
    running = frozenset(each.name for each in agents if each.stage is Stage.RUNNING)
    seen = {"least": 2, "wanted": 2, "spares": 0, "members": running, **more}
    return list(reconcile(RayObservation(agents=agents, **seen), now))


def test_at_first_as_many_nodes_are_asked_for_as_can_train_and_the_spares() -> None:
    assert decide(wanted=3, spares=1) == [AskForNode(frozenset())] * 4


def test_the_first_actor_hosts_the_coordinator_and_the_others_meet_there() -> None:
    here = [agent(0, Stage.HERE), agent(1, Stage.HERE)]
    assert decide(*here) == [
        StartAgent(0, ("10.0.0.0:7",), host=True),
        StartAgent(1, ("10.0.0.0:7",), host=False),
    ]


def test_who_comes_later_knows_where_the_coordinator_was_and_all_nodes_that_run() -> None:
    said = decide(agent(0), agent(4), agent(5, Stage.HERE), wanted=3, places=("10.0.0.9:7",))
    assert said == [StartAgent(5, ("10.0.0.9:7", "10.0.0.0:7", "10.0.0.4:7"), host=False)]


def test_when_all_agents_are_lost_the_next_one_looks_around_before_it_hosts() -> None:
    said = decide(agent(7, Stage.HERE), agent(8, Stage.ASKED), places=("10.0.0.0:7",))
    assert said == [StartAgent(7, ("10.0.0.7:7", "10.0.0.0:7"), host=True)]


def test_an_agent_that_ended_is_removed_and_another_is_asked_for() -> None:
    assert decide(agent(0), agent(1, Stage.ENDED)) == [
        RemoveAgent(1, "it has ended"),
        AskForNode(frozenset({"n0"})),
    ]


def test_nothing_is_asked_for_twice() -> None:
    assert decide(agent(0), agent(1, Stage.ASKED)) == []


def test_two_agents_on_one_ray_node_are_one_too_many() -> None:
    twins = [agent(0), agent(1, Stage.HERE, node="n0")]
    assert decide(*twins) == [
        RemoveAgent(1, "another agent of the job is on that node"),
        AskForNode(frozenset({"n0"})),
    ]
    assert decide(*twins, share_nodes=True) == [StartAgent(1, ("10.0.0.0:7",), host=False)]


def test_of_two_that_came_at_once_to_one_node_the_first_stays() -> None:
    said = decide(agent(0, Stage.HERE), agent(1, Stage.HERE, node="n0"))
    assert said[0] == RemoveAgent(1, "another agent of the job is on that node")
    assert StartAgent(0, ("10.0.0.0:7",), host=True) in said


def test_who_waits_and_avoids_a_node_that_is_free_again_asks_anew() -> None:
    waits = agent(1, Stage.ASKED, avoids=frozenset({"n0", "n7"}))
    assert decide(agent(0), waits)[0] == RemoveAgent(1, "it avoids nodes that can be used again")
    assert decide(agent(0), agent(1, Stage.ASKED, avoids=frozenset({"n0"}))) == []


def test_a_draining_node_is_left_at_once_where_the_job_can_go_on_without_it() -> None:
    said = decide(agent(0), agent(1), agent(2), wanted=3, draining={"n1": NOW + 600})
    assert said == [DrainAgent(1, "Ray drains its node"), AskForNode(frozenset({"n0", "n1", "n2"}))]


def test_a_draining_node_that_the_job_needs_waits_for_its_replacement_or_the_deadline() -> None:
    pair = (agent(0), agent(1))
    asks = [AskForNode(frozenset({"n0", "n1"}))]
    assert decide(*pair, draining={"n1": NOW + 600}) == asks
    assert DrainAgent(1, "Ray drains its node") in decide(*pair, draining={"n1": NOW + 5})
    three = (*pair, agent(2))
    said = decide(*three, draining={"n1": NOW + 600}, members=frozenset({"h.0", "h.1"}), waiting=frozenset({"h.2"}))
    assert said == [DrainAgent(1, "Ray drains its node")]


def test_two_draining_nodes_do_not_leave_on_one_replacement() -> None:
    members = frozenset({"h.0", "h.1"})
    said = decide(
        agent(0),
        agent(1),
        agent(2),
        draining={"n0": NOW + 600, "n1": NOW + 600},
        members=members,
        waiting=frozenset({"h.2"}),
    )
    assert [each for each in said if isinstance(each, DrainAgent)] == [DrainAgent(0, "Ray drains its node")]


def test_an_excluded_node_is_left_and_its_ray_node_not_used_again() -> None:
    said = decide(agent(0), agent(1), members=frozenset({"h.0"}), avoid=frozenset({"n1"}))
    assert said == [DrainAgent(1, "the job has excluded it"), AskForNode(frozenset({"n0", "n1"}))]
    here = decide(agent(0), agent(2, Stage.HERE, node="n1"), avoid=frozenset({"n1"}))
    assert here[0] == RemoveAgent(2, "its node is not to be used")


def test_a_blamed_node_stays_until_another_is_here() -> None:
    asked = decide(agent(0), agent(1), blamed=frozenset({"h.1"}))
    assert asked == [AskForNode(frozenset({"n0", "n1"}))]
    assert decide(agent(0), agent(1), agent(2, Stage.ASKED), blamed=frozenset({"h.1"})) == []
    there = decide(
        agent(0),
        agent(1),
        agent(2),
        blamed=frozenset({"h.1"}),
        members=frozenset({"h.0", "h.1"}),
        waiting=frozenset({"h.2"}),
    )
    assert there == [DrainAgent(1, "the job wants another node in its place, and one is here")]


def test_fewer_nodes_first_those_that_are_not_here_yet_then_spares_and_never_who_trains() -> None:
    members = frozenset({"h.0", "h.1"})
    agents = (agent(0), agent(1), agent(2), agent(3, Stage.ASKED))
    said = decide(*agents, wanted=2, members=members, waiting=frozenset({"h.2"}))
    assert said == [RemoveAgent(3, "fewer nodes are wanted"), DrainAgent(2, "fewer nodes are wanted")]
    assert decide(*agents[:3], wanted=2) == []


def test_agents_that_die_again_and_again_before_they_join_end_the_job() -> None:
    deaths = tuple(NOW - number for number in range(DEATHS))
    assert any(isinstance(each, GiveUp) for each in decide(deaths=deaths))
    assert not any(isinstance(each, GiveUp) for each in decide(deaths=deaths, now=NOW + 120))


def test_when_the_job_is_over_nothing_is_asked_for_and_who_runs_ends_by_itself() -> None:
    said = decide(agent(0), agent(1, Stage.ASKED), agent(2, Stage.ENDED), over=True)
    assert said == [RemoveAgent(1, "the job is over"), RemoveAgent(2, "it has ended")]
