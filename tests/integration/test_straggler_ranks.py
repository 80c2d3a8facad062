"""A rank that becomes slow while ranks train together is named while it is, and once more when it is no longer."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from jobs import SCRIPTS, finished, free_port, node, two_nodes

FIRST = 100  # the step from which on it is slow
# It is ten times slower. A busy machine makes others slower as well: by default, 1.2 times would be enough.
NOBODY_ELSE = "--ft-straggler-factor=3"


def test_a_rank_that_becomes_slow_is_named_with_node_section_and_step_and_nobody_else_is(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    flags = (f"--ft-events={path}", NOBODY_ELSE)
    with two_nodes(*flags, script=SCRIPTS / "stragglers.py", args=[str(path), "3", str(FIRST), "times slower"]) as (
        a,
        b,
    ):
        a.wait_for(
            r"generation 1: rank 3 on b is [\d.]+ times slower than the others in section 'forward' since step \d+"
        )
        a.wait_for(r"generation 1: rank 3 on b is no longer [\d.]+ times slower than the others in section 'forward'")
        finished(a, b)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    begins, ends = (event for event in events if event["event"] == "straggler")
    assert (begins["over"], begins["ranks"], begins["node"], begins["section"]) == (None, [3], "b", "forward")
    assert 3 < begins["factor"] < 20
    assert abs(begins["since"] - FIRST) <= FIRST // 2  # what is told at a time is a second: thirty quick steps or so
    assert (ends["over"] > ends["since"], ends["ranks"], ends["since"]) == (True, [3], begins["since"])


@pytest.mark.thorough
def test_if_it_is_asked_for_the_job_goes_on_without_the_node_of_a_slow_rank(tmp_path: Path) -> None:
    path, port = tmp_path / "events.jsonl", free_port()
    flags = ("--nnodes=2:3", "--ft-use-infra-group-rank=false", "--ft-straggler=exclude", f"--ft-events={path}")
    flags += (NOBODY_ELSE,)
    with ExitStack() as stack:
        nodes = []
        for name in "abc":
            options = {"script": SCRIPTS / "stragglers.py", "args": [str(path), "1", str(FIRST), "generation 2"]}
            nodes.append(stack.enter_context(node(name, port, *flags, **options)))
            nodes[-1].wait_for("joined the job")
        nodes[0].wait_for("generation 1 ends: node b is excluded for 1800 s: rank 1 on b is .* times slower")
        nodes[0].wait_for(r"generation 2: 2 nodes, 2 ranks \(a, c\)")
        finished(*nodes)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["over"] is None for event in events if event["event"] == "straggler"] == [True, False]
    assert events[-1]["text"].endswith("2 generations, 0 restarts)")
