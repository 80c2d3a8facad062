"""Ranks that are well stay in their process when a generation ends, and the dead are replaced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs import SCRIPTS, errors, free_port, job, node
from processes import Process

SCRIPT = SCRIPTS / "in_place.py"


class Entry(NamedTuple):
    """One entry into the function, as scripts/in_place.py tells of it."""

    rank: int
    world: int
    generation: int
    pid: int
    entry: int
    restarts: int


def entries(process: Process) -> dict[tuple[int, int], Entry]:
    """By generation and rank."""
    found = re.findall(
        r"rank (\d+) of (\d+) entered generation (\d+): pid (\d+) entry (\d+) restarts (\d+) connection True hello",
        process.output,
    )
    all_of_them = [Entry(*map(int, each)) for each in found]
    return {(each.generation, each.rank): each for each in all_of_them}


def stayed(found: dict[tuple[int, int], Entry], generation: int, rank: int) -> bool:
    return found[generation, rank].pid == found[generation + 1, rank].pid


def test_the_living_stay_and_the_dead_are_forked() -> None:
    faults = ["raise:1", "kill:0", "sleep:0", "lock:1", "swallow:0", "exit:1"]
    flags = ("--nproc-per-node=2", "--max-restarts=9", "--ft-in-place-timeout=2")
    with job(*flags, script=SCRIPT, args=faults) as process:
        assert process.wait() == 0
    found = entries(process)
    last = len(faults) + 1
    assert found.keys() == {(generation, rank) for generation in range(1, last + 1) for rank in (0, 1)}
    dead = {(2, 0), (5, 1), (6, 1)}  # killed; swallowed the exception; ended itself
    assert {key for key in found if key[0] < last and not stayed(found, *key)} == dead
    assert all(each.restarts == each.generation - 1 for each in found.values())
    assert process.output.count(f"done in generation {last}") == 2
    assert "cleans up after generation 1" in process.output
    assert "has not left its restartable function in time" in process.output
    assert "ValueError: a fault of the test's" in process.output
    assert "[rank0]: [rank0]:" not in process.output


def test_a_rank_that_hangs_is_forked_and_one_that_waits_for_it_stays() -> None:
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--ft-rank-heartbeat-timeout=4", "--ft-in-place-timeout=20")
    with job(*flags, script=SCRIPT, args=["hang:1"]) as process:
        assert process.wait() == 0
    found = entries(process)
    assert stayed(found, 1, 0)
    assert not stayed(found, 1, 1)


def test_a_rank_stays_when_another_node_comes_and_when_it_is_lost() -> None:
    port, forever = free_port(), ["steps:9"] * 2
    flags = ("--nnodes=1:2", "--nproc-per-node=1", "--ft-last-call=0", "--ft-planned-change-timeout=0")
    with node("a", port, *flags, "--ft-in-place-timeout=20", script=SCRIPT, args=forever) as first:
        first.wait_for("rank 0 of 1 entered generation 1")
        with node("b", port, *flags, script=SCRIPT, args=forever) as second:
            first.wait_for(r"rank \d of 2 entered generation 2")
            second.wait_for(r"rank \d of 2 makes steps in generation 2")
            second.kill()
        assert first.wait() == 0
    found = entries(first)
    assert [(each.generation, each.world) for each in found.values()] == [(1, 1), (2, 2), (3, 1)]
    assert len({each.pid for each in found.values()}) == 1


def test_when_the_restarts_are_used_up_the_job_fails_as_ever_and_parked_processes_end() -> None:
    with job("--nproc-per-node=2", "--max-restarts=1", script=SCRIPT, args=["raise:1"] * 3) as process:
        assert process.wait() == 1
    found = entries(process)
    assert {generation for generation, _ in found} == {1, 2}
    (error,) = errors(process)
    assert "rank 1" in error
    assert "1 restart did not help" in error or "--max-restarts=1" in error
    assert "ValueError: a fault of the test's" in process.output
    for rank in (0, 1):
        assert f"rank {rank} says goodbye, pid {found[2, rank].pid}" in process.output


@pytest.mark.thorough
@pytest.mark.parametrize("flags", [["--ft-in-place-timeout=0"], ["--ft-restart-grace=0"]], ids=["off", "no grace"])
def test_where_it_is_turned_off_every_rank_is_a_new_process(flags: list[str]) -> None:
    with job("--nproc-per-node=2", "--max-restarts=1", *flags, script=SCRIPT, args=["raise:1"]) as process:
        assert process.wait() == 0
    found = entries(process)
    assert len({each.pid for each in found.values()}) == 4
    assert {each.entry for each in found.values()} == {1}


def test_without_a_launcher_the_function_is_just_called(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import outlast\n@outlast.restartable\ndef f(x, y=1): return x + y\nprint(f(2, y=3))\n")
    assert subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout == "5\n"


@pytest.mark.thorough
def test_a_compiled_model_and_a_loader_stay_and_the_training_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    script = SCRIPTS / "in_place_training.py"
    with job("--nproc-per-node=2", "--max-restarts=2", script=script, args=[tmp_path / "checkpoints"]) as process:
        assert process.wait() == 0
    starts = re.findall(r"rank (\d) pid (\d+) starts after step (\d+), entry (\d)", process.output)
    by_rank = {rank: [each[1:] for each in starts if each[0] == rank] for rank in "01"}
    assert [step for _, step, _ in by_rank["0"]] == ["0", "2", "4"]
    assert [entry for _, _, entry in by_rank["0"]] == ["1", "2", "1"]  # killed in generation 2
    assert [entry for _, _, entry in by_rank["1"]] == ["1", "2", "3"]
    assert process.output.count("is refused by an older Checkpointer: True") == 3
    assert process.output.count("ends as if nothing had happened: True") == 2
