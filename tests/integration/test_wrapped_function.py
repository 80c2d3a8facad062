"""`outlast.Wrapper` in a real job."""

from __future__ import annotations

import re

from jobs import SCRIPTS, job


def test_a_wrapped_function_is_restarted_in_place_with_its_hooks() -> None:
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--ft-in-place-timeout=60")
    with job(*flags, script=SCRIPTS / "wrapped_function.py") as process:
        assert process.wait() == 0
    said = re.findall(r"rank (\d) pid (\d+) (.*)", process.output)
    assert len({pid for _, pid, _ in said}) == 2
    of_rank = {rank: [what for who, _, what in said if who == rank] for rank in "01"}
    for rank, lines in of_rank.items():
        assert lines[0] == "initializes iteration 0"
        assert lines[2:] == [f"is well, {rank}", "initializes iteration 1", "done in iteration 1"]
    assert of_rank["1"][1] == "finalizes iteration 0: ValueError: a fault of the test's"
    assert of_rank["0"][1].startswith("finalizes iteration 0: ")  # it may see that the other one has gone
