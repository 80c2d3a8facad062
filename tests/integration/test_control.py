"""`outlast.control`: what a rank may ask of the launcher, also with its last breath. On two nodes of two ranks."""

from __future__ import annotations

import signal

import pytest

from jobs import HANGS, errors, finished, free_port, job, two_nodes
from jobs import node as start_node
from processes import Process

ENDINGS = pytest.mark.parametrize("ending", ["lives", "dies"])


def why(process: Process) -> str:
    (error,) = errors(process)
    return error


@ENDINGS
def test_a_rank_stops_the_job_with_its_reason_and_nothing_is_restarted(ending: str) -> None:
    with two_nodes("--max-restarts=3", args=[f"control:stop:{ending}", "3"]) as (a, b):
        assert (a.wait(), b.wait()) == (1, 1)
    for each in (a, b):
        assert "because of stop and more (stop, asked for by rank 3 on node b)" in why(each)
        assert "generation 2" not in each.output


@ENDINGS
def test_a_rank_has_all_ranks_started_again_and_that_counts_as_no_failure(ending: str) -> None:
    with two_nodes("--max-restarts=0", args=[f"control:restart:{ending}", "1"]) as (a, b):
        a.wait_for("generation 1 ends: rank 1 on node a asked for a restart: because of restart and more")
        finished(a, b)
    assert "2 generations, 0 restarts" in a.output


@ENDINGS
def test_a_rank_excludes_its_node_and_whoever_comes_there_again_is_refused(ending: str) -> None:
    port = free_port()
    flags = ("--nnodes=1:2", "--nproc-per-node=2", "--ft-use-infra-group-rank=false", "--ft-last-call=1")
    args = [f"control:exclude_node:{ending}", "3", "9"]
    with start_node("a", port, *flags, script=HANGS, args=args) as a:
        a.wait_for("joined the job")
        b = start_node("b", port, *flags, script=HANGS, args=args)
        a.wait_for("rank 3 on node b excludes its node: because of exclude_node and more", anywhere=True)
        assert b.wait() == 1
        assert "because of exclude_node and more (exclude_node, asked for by rank 3 on node b)" in why(b)
        a.wait_for("generation .*: 1 node, 2 ranks", anywhere=True)
        again = start_node("b", port, *flags, script=HANGS, args=args)
        assert again.wait() == 1
        assert "not used again in this job: because of exclude_node" in why(again)
        other = start_node("c", port, *flags, script=HANGS, args=args)
        a.wait_for(r"generation .*: 2 nodes, 4 ranks \(a, c\)", anywhere=True)
        a.signal(signal.SIGINT)
        assert (a.wait(), other.wait()) == (1, 1)


def test_a_rank_drains_its_node_and_the_others_go_on() -> None:
    with two_nodes("--ft-last-call=30", args=["control:drain", "3", "1"], least=1) as (a, b):
        a.wait_for("node b is draining", anywhere=True)
        assert b.wait() == 1
        assert "drained" in why(b)
        finished(a)


def test_with_hang_detection_off_ranks_are_heard_all_the_same() -> None:
    with job("--nproc-per-node=2", "--ft-hang-detection=off", script=HANGS, args=["control:stop"]) as process:
        assert process.wait() == 1
    assert "because of stop and more" in why(process)
