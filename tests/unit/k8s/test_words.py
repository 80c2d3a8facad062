"""What the operator makes of a coordinator's view."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from outlast.events.events import NodeLost
from outlast.events.reasons import NodeLoss
from outlast.k8s.observed import GoneAgent
from outlast.k8s.words import after_event, word_of
from outlast.protocol.views import ExclusionView, JobView, NodeView


def node(name: str, **more: Any) -> NodeView:
    facts = {"state": "running", "workers": 1, "connected": True, "member": True, "ready": False, **more}
    return NodeView(node=f"{name}-1", name=name, **facts)


def view(*nodes: NodeView, **more: Any) -> JobView:
    facts = {"generation": 1, "acting": True, "restarts": 0, **more}
    return JobView(
        job="j",
        run="r",
        term=1,
        phase="running",
        seconds=1.0,
        least=1,
        most=3,
        nodes=nodes,
        spares=0,
        allowed=3,
        generations=1,
        **facts,
    )


def test_an_agent_is_gone_once_a_generation_was_formed_without_it() -> None:
    first = word_of(view(node("a"), node("b")), None, 10.0)
    assert (first.agents, first.gone) == ({"a", "b"}, {})
    silent = word_of(view(node("a"), node("b", connected=False)), first, 11.0)
    assert silent.gone == {}
    over = word_of(view(node("a"), generation=2), silent, 12.0)
    assert (over.agents, over.gone, over.generation) == ({"a"}, {"b": GoneAgent(12.0)}, 2)
    assert word_of(view(node("a")), over, 13.0).gone == {"b": GoneAgent(12.0)}


def test_an_agent_that_comes_back_is_not_gone() -> None:
    gone = word_of(view(node("a")), word_of(view(node("a"), node("b")), None, 10.0), 11.0)
    assert word_of(view(node("a"), node("b")), gone, 12.0).gone == {}


def test_a_coordinator_without_a_quorum_says_of_nobody_that_it_is_gone() -> None:
    first = word_of(view(node("a"), node("b")), None, 10.0)
    alone = word_of(view(node("a"), acting=False), first, 11.0)
    assert (alone.acting, alone.agents, alone.gone) == (False, {"a", "b"}, {})


def test_what_is_excluded_is_told_with_its_reason() -> None:
    found = word_of(replace(view(node("a")), excluded={"key-of-a": ExclusionView("slow", 60.0, "a")}), None, 10.0)
    assert found.excluded == {"a": "slow"}


def test_an_agent_that_fell_silent_is_gone_before_the_next_generation_is_formed() -> None:
    first = word_of(view(node("a"), node("b")), None, 10.0)

    def lost(how: NodeLoss) -> NodeLost:
        return NodeLost(generation=1, node="b", how="", loss=how)

    assert after_event(first, lost(NodeLoss.CLOSED), 11.0) == first
    silent = after_event(first, lost(NodeLoss.SILENT), 11.0)
    assert (silent.at, silent.agents, silent.gone) == (11.0, {"a"}, {"b": GoneAgent(11.0, silent=True)})
    assert not silent.acting  # it may be the coordinator that is cut off
    later = word_of(view(node("a"), node("b", connected=False)), silent, 12.0)
    assert (later.acting, later.agents, later.gone) == (True, {"a"}, silent.gone)
    assert word_of(view(node("a"), node("b")), later, 13.0).gone == {}
