"""Events: every one has words and a level, survives its encoding, and its digest knows facts from prose."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from outlast.core.job.commands import Publish
from outlast.core.job.decisions import digest_of
from outlast.events import events, reasons
from outlast.events.digest import facts
from outlast.events.sentences import sentence, why

FAILED = reasons.FailedRank("b", 3, 1, exception="KeyError", cause="exception", title="an exception", step=7)
VALUES: dict[str, Any] = {
    "reason": reasons.LostNode("b", "its connection closed"),
    "changes": (reasons.JoinedNodes(("c",)),),
    "failure": FAILED,
    "saved": reasons.Saved.ALL,
    "ending": events.Ending.FAILED,
    "excluded": {"b": "slow"},
    "nodes": ("a", "b"),
    "ranks": (3,),
    "longest": {"step": 1.5},
    "generation": 1,
}


def made(kind: type[msgspec.Struct], **given: Any) -> Any:
    """One of this kind, with something in every field that must be given."""
    values = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            plain = {"int": 2, "float": 2.5, "bool": True}.get(getattr(field.type, "__name__", ""), "text")
            values[field.name] = VALUES.get(field.name, plain)
    return kind(**{**values, **given})


def example(kind: type[msgspec.Struct]) -> Any:
    special: dict[type, dict[str, Any]] = {
        events.GenerationFormed: {"ranks": 4},
        events.CoordinatorTookOver: {"nodes": 2},
        events.CheckDone: {"nodes": (events.CheckedNode("a", "good"),)},
        events.WaitingForNodes: {"ready": ("a",)},
        events.NodeExcluded: {"seconds": 60.0},
        events.JobOver: {"reason": "no node is left"},
        events.StragglerChanged: {"over": None},
        reasons.ScaleRequested: {"nodes": 2},
    }
    return made(kind, **special.get(kind, {}))


@pytest.mark.parametrize("kind", get_args(events.JobEvent), ids=lambda kind: kind.__name__)
def test_every_event_survives_json_and_has_words_and_a_level(kind: type[msgspec.Struct]) -> None:
    event = example(kind)
    assert msgspec.json.decode(msgspec.json.encode(event), type=events.JobEvent) == event
    assert sentence(event) or kind is events.CheckDone
    assert events.level_of(event) in events.Level


@pytest.mark.parametrize("kind", get_args(reasons.EndReason), ids=lambda kind: kind.__name__)
def test_every_reason_has_words(kind: type[msgspec.Struct]) -> None:
    reason = example(kind)
    assert msgspec.json.decode(msgspec.json.encode(reason), type=reasons.EndReason) == reason
    assert why(reason)


def test_another_sentence_is_the_same_decision_and_another_fact_is_not() -> None:
    def digest(how: str, node: str) -> str:
        return digest_of([Publish(events.NodeLost(generation=1, node=node, how=how))])

    assert digest("its connection closed", "b") == digest("the connection was closed", "b") != digest("closed", "c")


def test_of_texts_by_name_only_the_names_count() -> None:
    waiting = events.WaitingForNodes(generation=0, least=2, unit=1, ready=(), excluded={"b": "slow", "a": "faulty"})
    assert ["a", "b"] in facts(waiting)
