"""A rank that becomes slow while ranks train together is named while it is, and once more when it is no longer."""

from __future__ import annotations

import json
from pathlib import Path

from jobs import SCRIPTS, finished, two_nodes

FIRST = 60  # the step from which on it is slow


def test_a_rank_that_becomes_slow_is_named_with_node_section_and_step_and_nobody_else_is(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    flags = (f"--ft-events={path}", "--node-timeout=30")
    with two_nodes(*flags, script=SCRIPTS / "stragglers.py", args=[str(path), "3", str(FIRST)]) as (a, b):
        a.wait_for(
            r"generation 1: rank 3 on b is [\d.]+ times slower than the others in section 'forward' since step \d+"
        )
        a.wait_for(r"generation 1: rank 3 on b is no longer [\d.]+ times slower than the others in section 'forward'")
        finished(a, b)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    begins, ends = (event for event in events if event["kind"] == "straggler")
    assert (begins["straggler"], begins["ranks"], begins["nodes"], begins["section"]) == (
        "begins", [3], ["b"], "forward"
    )  # fmt: skip
    assert 1.4 < begins["factor"] < 2.6
    assert abs(begins["since"] - FIRST) <= 40  # a second or so
    assert (ends["straggler"], ends["ranks"], ends["since"]) == ("ends", [3], begins["since"])
