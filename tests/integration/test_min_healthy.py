"""`--ft-restart-policy=min-healthy`: while MIN nodes have all their processes, they go on without the others."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hosts import Host
from jobs import SCRIPTS, free_port, node
from membership.job import QUICK, ElasticJob
from processes import Process

SCRIPT = SCRIPTS / "min_healthy.py"
LONG = 120.0
FLAGS = ("--ft-restart-policy=min-healthy", "--ft-in-place-timeout=30", "--ft-last-call=60", "--max-restarts=5")
Hosts = Callable[[int], list[Host]]


def entered(process: Process, generation: int, world: int) -> dict[int, int]:
    """The processes of this node that entered this generation, by rank."""
    process.wait_for(rf"rank \d of {world} makes steps in generation {generation} now", anywhere=True, timeout=LONG)
    found = re.findall(rf"rank (\d) of {world} is pid (\d+), and entered generation {generation} now", process.output)
    return {int(rank): int(pid) for rank, pid in found}


@contextmanager
def nodes(directory: Path, *names: str, least: int, extra: tuple[str, ...] = ()) -> Iterator[list[Process]]:
    """These nodes of two workers each; the first hosts the coordinator, and tells the story."""
    port, flags = free_port(), (f"--nnodes={least}:{len(names)}", "--nproc-per-node=2", *FLAGS)
    with ExitStack() as stack:
        started = []
        for name in names:
            args = [directory, *extra]
            started.append(stack.enter_context(node(name, port, *flags, script=SCRIPT, args=args)))
            started[-1].wait_for("joined the job")
        yield started


def end(directory: Path, *processes: Process) -> None:
    (directory / "end").touch()
    for each in processes:
        assert each.wait(LONG) == 0, each.output


def test_the_healthy_go_on_without_a_node_that_lost_a_process_until_it_has_a_new_one(tmp_path: Path) -> None:
    with nodes(tmp_path, "a", "b", least=1) as (a, b):
        healthy, before = entered(a, 1, 4), entered(b, 1, 4)
        os.kill(before[3], signal.SIGKILL)
        assert entered(a, 2, 2) == healthy
        a.wait_for("generation 2 starts without node b, which lost 1 of 2 workers", anywhere=True)
        b.wait_for(r"new processes for the local ranks that died \(1\) are started beside them", anywhere=True)
        assert entered(a, 3, 4) == healthy
        after = entered(b, 3, 4)
        assert after[2] == before[2]  # it waited in its process
        assert after[3] != before[3]
        end(tmp_path, a, b)
    assert b.output.count("sets itself up") == 3


def test_below_min_all_go_on_together_with_a_new_process_for_the_dead(tmp_path: Path) -> None:
    with nodes(tmp_path, "a", "b", least=2) as (a, b):
        healthy, before = entered(a, 1, 4), entered(b, 1, 4)
        os.kill(before[3], signal.SIGKILL)
        assert entered(a, 2, 4) == healthy
        after = entered(b, 2, 4)
        assert after[2] == before[2]
        assert after[3] != before[3]
        end(tmp_path, a, b)
    assert "starts without node" not in a.output


def test_without_a_restartable_function_all_start_again(tmp_path: Path) -> None:
    with nodes(tmp_path, "a", "b", least=1, extra=("--plain",)) as (a, b):
        before = {*entered(a, 1, 4).values(), *entered(b, 1, 4).values()}
        os.kill(entered(b, 1, 4)[3], signal.SIGKILL)
        after = {*entered(a, 2, 4).values(), *entered(b, 2, 4).values()}
        assert not before & after
        end(tmp_path, a, b)
    assert "starts without node" not in a.output


def test_a_replacement_that_fails_in_its_set_up_costs_the_others_nothing(tmp_path: Path) -> None:
    with nodes(tmp_path, "a", "b", least=1) as (a, b):
        stay = entered(a, 1, 4)
        victim = entered(b, 1, 4)[3]
        os.kill(victim, signal.SIGKILL)
        new = int(b.wait_for(rf"local rank 1 is pid (?!{victim},)(\d+), and sets itself up", anywhere=True)[1])
        os.kill(new, signal.SIGKILL)
        b.wait_for(rf"local rank 1 \(pid {new}\) ended with exit code -9 before its restartable function|joined")
        assert set(entered(a, 2, 2).values()) == set(stay.values())
        end(tmp_path, a)
        b.wait(LONG)


def test_the_loss_of_the_host_of_the_store_restarts_no_process_elsewhere(hosts: Hosts, tmp_path: Path) -> None:
    three = hosts(3)
    flags = ("--nnodes=2:3", *QUICK, *FLAGS)
    job = ElasticJob(three, tmp_path, *flags, script=SCRIPT)
    names = ["c", "a", "b"]  # the coordinator is on the first host, and the store with rank 0 on the second
    c, lost, b = (job.start(host, f"--ft-node-name={name}").agent for host, name in zip(three, names, strict=True))
    assert list(entered(lost, 1, 3)) == [0]
    healthy = {*entered(b, 1, 3).values(), *entered(c, 1, 3).values()}
    three[1].kill()
    assert {*entered(b, 2, 2).values(), *entered(c, 2, 2).values()} == healthy
    end(tmp_path / "job", b, c)
