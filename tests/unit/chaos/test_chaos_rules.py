"""Who may hurt a job, what a fault is, what a plan says, and what events say of the answer. No processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outlast.agent.chaos.hands import ChaosHands, ChaosImpossible, damage, newest_file
from outlast.chaos.faults import KINDS, ChaosAnswer, ChaosRequest
from outlast.chaos.outcome import HeardEvent, is_answered, outcome_of
from outlast.chaos.plans import read_plan
from outlast.core.coordinator.chaos_relay import FORBIDDEN, NO_RIGHT, ChaosRelay
from outlast.core.coordinator.commands import Close, Write
from outlast.events.events import (
    CoordinatorTookOver,
    Ending,
    GenerationFormed,
    JobOver,
    NodeLost,
    TrainingBegan,
)
from outlast.protocol.chaos import AskChaos, ChaosBegun, ChaosFault, ChaosOrder, right_digest
from outlast.protocol.checks import Findings
from outlast.protocol.requests import Answer
from outlast.protocol.rules import Rules
from outlast.settings.settings import Settings
from outlast.transport.wire import chaos_token

RIGHT = chaos_token("the job's token")
FAULT = ChaosFault("kill-worker", 0)


def relay(*, allowed: bool = True) -> ChaosRelay[str]:
    chaos = right_digest(RIGHT) if allowed else ""
    rules = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2, chaos=chaos)
    return ChaosRelay(rules, {"node-1": "line-1"}.get)


def ask(**changes: Any) -> AskChaos:
    fields = {"who": "me", "job": "j", "right": RIGHT, "node": "node-1", "fault": FAULT, **changes}
    return AskChaos(**fields)


def test_a_fault_is_passed_on_and_its_answer_passed_back() -> None:
    made = relay()
    assert made.ask("me", ask()) == [Write("line-1", ChaosOrder(1, "me", FAULT))]
    assert made.begun("node-2", ChaosBegun(1, True, "not yours")) == []
    assert made.begun("node-1", ChaosBegun(1, True, "done")) == [Write("me", Answer(True, "done")), Close("me")]
    assert made.begun("node-1", ChaosBegun(1, True, "done")) == []  # once


@pytest.mark.parametrize(
    ("allowed", "changes", "why"),
    [
        (False, {}, FORBIDDEN),
        (True, {"right": "chaos-guessed"}, NO_RIGHT),
        (True, {"job": "k"}, "this endpoint serves job 'j', not 'k'"),
        (True, {"node": "node-7"}, "no node 'node-7' is here"),
    ],
)
def test_who_has_no_right_is_told_why(allowed: bool, changes: dict[str, Any], why: str) -> None:
    assert relay(allowed=allowed).ask("me", ask(**changes)) == [Write("me", Answer(False, why)), Close("me")]


def test_whoever_asked_is_told_when_the_node_is_lost_and_forgotten_when_gone() -> None:
    made = relay()
    made.ask("me", ask())
    [written, closed] = made.node_lost("node-1")
    assert isinstance(written, Write)
    assert isinstance(closed, Close)
    made.ask("me", ask())
    made.ended("me")
    assert made.node_lost("node-1") == []


@pytest.mark.parametrize("fault", KINDS)
def test_every_fault_has_defaults_that_can_be_ordered(fault: str) -> None:
    request = ChaosRequest(fault=fault, path="/data" if KINDS[fault].path else "").checked()
    order = request.order(0)
    assert order.name == fault
    assert order.text == (request.path or request.kind)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"fault": "kil"}, "there is no fault 'kil'"),
        ({"fault": "hang", "kind": "x"}, "hang has no kind 'x'; there are: sleep, lock, collective, stopped"),
        ({"fault": "fill-disk"}, "needs --path"),
        ({"fault": "preempt", "rank": 1}, "hits a node"),
        ({"fault": "preempt", "value": 1.0}, "takes no --value"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ChaosRequest(**fields).checked()


def test_a_plan_is_drawn_by_its_seed(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("faults:\n  - kill-worker\n  - {fault: hang, after: {mean: 60}, times: 3}\n")
    plan = read_plan(path)
    assert [each.request.fault for each in plan.faults] == ["kill-worker", "hang", "hang", "hang"]
    assert plan.faults[0].after == 0
    assert len({each.after for each in plan.faults[1:]}) == 3
    assert read_plan(path) == plan != read_plan(path, seed=1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("faults: [kil]", "there is no fault 'kil'"),
        ("faults: [{fault: hang, wen: 3}]", "wen"),
        ("seed: 1", "faults"),
        ("{", "plan.yaml"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_in_one_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=error) as raised:
        read_plan(path)
    assert "\n" not in str(raised.value)


def test_the_answer_of_a_job_is_read_from_its_events() -> None:
    lost = NodeLost(generation=1, node="b", how="its connection closed")
    formed = GenerationFormed(generation=2, nodes=("a",), ranks=1, spares=0, restarts=0)
    heard = [HeardEvent(0.2, lost), HeardEvent(0.3, formed)]
    assert not is_answered(ChaosAnswer.TRAINS_AGAIN, heard, 1)
    heard += [HeardEvent(0.5, TrainingBegan(generation=1)), HeardEvent(1.5, TrainingBegan(generation=2, ago=0.5))]
    assert is_answered(ChaosAnswer.TRAINS_AGAIN, heard, 1)
    outcome = outcome_of("kill-agent", "SIGKILL", heard, generation=1, steps_lost=2, restarts=0)
    assert (outcome.noticed, outcome.training, outcome.steps_lost) == (0.2, 1.0, 2)
    assert outcome.named == "node b was lost: its connection closed"
    assert outcome.done.startswith("generation 2: 1 node")
    assert any("training again after 1.0 s" in line for line in outcome.lines)


def test_a_coordinator_that_takes_over_and_a_job_that_ends_are_answers() -> None:
    took = HeardEvent(1.0, CoordinatorTookOver(generation=1, term=2, nodes=2))
    assert is_answered(ChaosAnswer.TAKES_OVER, [took], 1)
    over = JobOver(
        generation=1,
        success=False,
        ending=Ending.FAILED,
        reason="no restart left",
        seconds=9,
        generations=1,
        restarts=0,
    )
    assert is_answered(ChaosAnswer.NONE, [HeardEvent(2.0, over)], 1)
    outcome = outcome_of("oom", "x", [HeardEvent(2.0, over)], generation=1, steps_lost=0, restarts=0)
    assert outcome.lines[-1] == "  the job ended: no restart left"


def test_the_newest_checkpoint_is_damaged_in_its_middle(tmp_path: Path) -> None:
    with pytest.raises(ChaosImpossible, match="no checkpoint lies in"):
        newest_file(tmp_path)
    (tmp_path / "small").write_bytes(bytes(100))
    (tmp_path / "large").write_bytes(bytes(1000))
    assert newest_file(tmp_path).name == "large"
    damage(tmp_path / "large")
    content = (tmp_path / "large").read_bytes()
    assert (len(content), content[500:564], content[:500]) == (1000, b"\xa5" * 64, bytes(500))


def test_a_check_fails_once_when_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ChaosBegun] = []
    hands = ChaosHands(
        Settings(allow_chaos=True), send=told.append, pids=lambda: (), hosting=cast("Any", None), others=list
    )
    later = SimpleNamespace(call_later=lambda _, act: act())
    monkeypatch.setattr("asyncio.get_running_loop", lambda: later)
    found = Findings(1, 1)
    assert hands.spoiled(found) == found
    hands.ordered(ChaosOrder(1, "me", ChaosFault("fail-check")))
    assert told == [ChaosBegun(1, True, "the next check of this node fails")]
    assert hands.spoiled(found).certain
    assert hands.spoiled(found) == found
    hands.ordered(ChaosOrder(2, "me", ChaosFault("kill-worker", 0)))
    assert told[1] == ChaosBegun(2, False, "no such worker runs here now")
    hands.close()
    assert not Path(hands.directory).exists()


def test_a_node_without_the_flag_does_nothing() -> None:
    told: list[ChaosBegun] = []
    hands = ChaosHands(Settings(), send=told.append, pids=lambda: (), hosting=cast("Any", None), others=list)
    hands.ordered(ChaosOrder(1, "me", ChaosFault("kill-agent")))
    assert told == [ChaosBegun(1, False, "this node was started without --allow-chaos")]
    assert hands.directory == ""
