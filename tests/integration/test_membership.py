"""Who is in the job, on several hosts: nodes that come, go, die and are replaced."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Host
from membership.job import HERE, QUICK, STEADY, ElasticJob, assert_empty, reason
from processes import alive, await_exit

Hosts = Callable[[int], list[Host]]


def test_a_job_starts_at_once_when_max_nodes_are_there(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", "--ft-last-call=600") as job:
        nodes = job.start_all()
        assert job.line_up(*nodes).generation == 1
        job.succeeds(*nodes)


def test_a_job_starts_with_min_nodes_after_the_last_call(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=2:3", "--ft-last-call=1") as job:
        nodes = job.start_all()
        assert job.line_up(*nodes).generation == 1
        job.succeeds(*nodes)


def test_a_node_that_comes_within_the_last_call_is_in_the_first_generation(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:4", "--ft-last-call=6") as job:
        first, *others = job.start_all_at_once()
        assert job.line_up(first, *others).generation == 1
        job.succeeds(first, *others)


def test_below_min_nodes_the_job_waits_and_then_fails_with_the_reason(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=3:4", "--ft-pend-timeout=5") as job:
        nodes = job.start_all_at_once()
        assert [node.agent.wait() for node in nodes] == [1, 1]
        reasons = {reason(node) for node in nodes}
        assert len(reasons) == 1
        assert "waited 5 s (pend_timeout) for at least 3 nodes; 2 here: host-" in reasons.pop()
        assert job.generations() == {}


def test_a_job_grows_and_shrinks_one_node_at_a_time(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *STEADY, "--ft-last-call=0") as job:
        a = job.start(job.hosts[0])
        assert job.line_up(a).generation == 1
        b = job.start(job.hosts[1])
        assert job.line_up(a, b).generation == 2
        c = job.start(job.hosts[2])
        assert job.line_up(a, b, c).generation == 3

        c.agent.signal(signal.SIGTERM)
        assert job.line_up(a, b).generation == 4
        assert c.agent.wait() == 1
        assert reason(c) == "node host-2 was drained"
        assert_empty(c.host)
        b.agent.signal(signal.SIGTERM)
        line_up = job.line_up(a)
        assert b.agent.wait() == 1
        assert (line_up.generation, line_up.restarts) == (5, 0)
        job.succeeds(a)


@pytest.mark.thorough
def test_nodes_that_come_within_one_last_call_are_taken_in_together(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *STEADY, "--ft-last-call=5") as job:
        a = job.start(job.hosts[0])
        job.line_up(a)
        b, c = (job.start(host) for host in job.hosts[1:])
        assert job.line_up(a, b, c).generation == 2
        job.succeeds(a, b, c)


def test_a_drained_node_gives_its_workers_their_whole_time_to_shut_down(hosts: Hosts, tmp_path: Path) -> None:
    flags = ("--nnodes=1:2", *STEADY, "--ft-restart-grace=0", "--shutdown-timeout=600")
    with ElasticJob(hosts(2), tmp_path, *flags, worker=("--stubborn",)) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        stays, leaves = job.workers_of(a.host), job.workers_of(b.host)
        b.agent.signal(signal.SIGTERM)
        # The others are ended at once, and go on when the drained one has come to its end.
        assert await_exit(stays, 120) == []
        assert all(map(alive, leaves))
        assert list(job.generations()) == [1]
        job.end_worker(b.host, 0)
        job.line_up(a)
        assert b.agent.wait() == 1
        job.succeeds(a)


def test_the_node_that_hosts_the_coordinator_can_be_drained_too(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *STEADY) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        a.agent.signal(signal.SIGTERM)
        assert job.line_up(b).generation == 2
        assert a.agent.wait() == 1  # the other one hosts the coordinator from now on
        assert_empty(a.host)
        job.succeeds(b)
        assert reason(a) == "node host-0 was drained"


def test_when_every_node_is_drained_the_job_ends_and_waits_for_nobody(hosts: Hosts, tmp_path: Path) -> None:
    # As when a scheduler's time is up. The long timeouts must not matter.
    flags = ("--nnodes=2:3", *STEADY, "--ft-pend-timeout=600", "--ft-empty-timeout=600")
    with ElasticJob(hosts(3), tmp_path, *flags) as job:
        nodes = job.start_all()
        job.line_up(*nodes)
        for node in nodes:
            node.agent.signal(signal.SIGTERM)
        assert [node.agent.wait() for node in nodes] == [1, 1, 1]
        assert all(node.host.processes() == [] for node in nodes)


def test_power_loss_of_a_node_is_noticed_after_the_node_timeout(hosts: Hosts, tmp_path: Path) -> None:
    # With every timeout as it is by default.
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2") as job:
        a, b = job.start_all()
        job.line_up(a, b)
        b.host.kill()
        a.agent.wait_for("node host-1 was lost: nothing heard for 3 s", anywhere=True)
        line_up = job.line_up(a)
        assert (line_up.generation, line_up.restarts) == (2, 0)
        b = job.start(b.host)
        assert job.line_up(a, b).generation == 3
        job.succeeds(a, b)


@pytest.mark.thorough
def test_power_loss_of_the_only_node_is_noticed_by_keepalive(hosts: Hosts, tmp_path: Path) -> None:
    """The only node is never given up for silence: it may be stopped. That nothing answers its probes tells the two."""
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *QUICK, "--ft-empty-timeout=1") as job:
        a, b = job.start_all()
        job.line_up(a, b)
        job.kill_agent(a)  # its coordinator lives on
        job.line_up(b)
        b.host.kill()
        a.agent.wait_for("node host-1 was lost: its connection broke .* timed out", anywhere=True)
        a.agent.wait_for("job failed: no node is left", anywhere=True)
        assert_empty(a.host)


def test_a_node_that_is_back_before_its_loss_was_noticed_takes_its_own_place(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=2:2", "--max-restarts=0", *QUICK) as job:
        a, b = job.start_all()
        first = job.line_up(a, b)
        b.host.kill()
        b = job.start(b.host)
        second = job.line_up(a, b)
        assert (second.generation, second.restarts, second.order) == (2, 0, first.order)
        job.succeeds(a, b)


def test_an_agent_killed_with_kill_9_is_a_lost_node_at_once(hosts: Hosts, tmp_path: Path) -> None:
    # Nothing but the closed connection can tell within a node timeout of ten minutes.
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", "--node-timeout=600", "--ft-last-call=30") as job:
        a, b = job.start_all()
        job.line_up(a, b)
        job.kill_agent(b)
        a.agent.wait_for("node host-1 was lost: its connection closed", anywhere=True)
        assert job.line_up(a).generation == 2
        b.agent.wait()
        assert_empty(b.host)
        job.succeeds(a)


def test_the_coordinator_outlives_the_agent_that_started_it(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", *STEADY) as job:
        a, b, c = job.start_all()
        job.line_up(a, b, c)
        job.kill_agent(a)
        assert job.line_up(b, c).generation == 2
        again = job.start(a.host)  # the endpoint is its own, but somebody listens there already
        assert job.line_up(again, b, c).generation == 3
        job.succeeds(again, b, c)


def test_of_two_nodes_the_one_without_the_coordinator_cannot_go_on_alone_and_ends_with_one_clear_line(
    hosts: Hosts, tmp_path: Path
) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", *QUICK, "--ft-pend-timeout=1") as job:
        a, b = job.start_all()
        job.line_up(a, b)
        a.host.kill()
        assert b.agent.wait() == 1
        assert "only 1 of the 2 nodes of generation 1 are here, for 1 s (pend_timeout)" in reason(b)
        assert b.host.processes() == []


def test_a_job_that_needs_all_of_its_nodes_waits_for_a_replacement(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=2:2", *QUICK) as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        b.host.kill()
        a.agent.wait_for("waiting for at least 2 nodes; 1 here: host-0")
        assert_empty(a.host)
        replacement = job.start(job.hosts[2])
        line_up = job.line_up(a, replacement)
        assert (line_up.generation, line_up.restarts) == (2, 0)
        job.succeeds(a, replacement)


def test_a_job_that_waits_for_a_replacement_in_vain_fails_with_the_reason(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=2:2", *STEADY, "--ft-pend-timeout=5") as job:
        a, b = job.start_all_at_once()
        job.line_up(a, b)
        job.kill_agent(b)
        assert a.agent.wait() == 1
        assert "waited 5 s (pend_timeout) for at least 2 nodes; 1 here: host-0" in reason(a)


def test_spares_take_over_one_after_the_other_and_no_restart_is_counted(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(4), tmp_path, "--nnodes=2:2", "--max-restarts=0", *STEADY) as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        c, d = (job.start_spare(host) for host in job.hosts[2:])

        job.kill_agent(b)
        line_up = job.line_up(a, c)
        assert (line_up.generation, line_up.restarts) == (2, 0)
        c.agent.signal(signal.SIGTERM)
        line_up = job.line_up(a, d)
        assert (line_up.generation, line_up.restarts) == (3, 0)
        job.succeeds(a, d)


@pytest.mark.thorough
def test_a_spare_that_is_lost_while_it_waits_disturbs_nobody(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:2", *QUICK) as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        spare = job.start_spare(job.hosts[2])
        spare.host.kill()
        a.agent.wait_for("node host-2 was lost: nothing heard", anywhere=True)
        job.succeeds(a, b)
        assert list(job.generations()) == [1]


def test_a_spare_ends_with_the_job_and_with_its_exit_code(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=2:2", *STEADY) as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        spare = job.start_spare(job.hosts[2])
        job.succeeds(a, b, spare)


def test_a_node_whose_workers_have_finished_may_be_lost(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=2:2", *STEADY) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        job.end_worker(b.host, 0)
        b.agent.wait_for("every worker here has finished")
        job.kill_agent(b)
        b.agent.wait()
        job.succeeds(a)
        assert list(job.generations()) == [1]


def test_a_node_that_comes_when_others_have_finished_disturbs_nobody(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=2:3", *STEADY, "--ft-last-call=0") as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        job.end_worker(b.host, 0)
        b.agent.wait_for("every worker here has finished")
        late = job.start_spare(job.hosts[2])
        job.succeeds(a, b, late)
        assert list(job.generations()) == [1]


def test_with_a_node_unit_of_two_the_world_has_two_nodes_or_four(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(4), tmp_path, "--nnodes=2:4", "--node-unit=2", *STEADY, "--ft-last-call=0.5") as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        c = job.start_spare(job.hosts[2])
        d = job.start(job.hosts[3])
        assert job.line_up(a, b, c, d).generation == 2
        job.kill_agent(d)
        assert job.line_up(a, b).generation == 3
        job.kill_agent(b)
        assert job.line_up(a, c).generation == 4
        job.succeeds(a, c)


def test_a_failed_worker_and_its_victims_on_another_host_cost_one_restart(hosts: Hosts, tmp_path: Path) -> None:
    flags = ("--nnodes=2:2", "--max-restarts=2", *STEADY)
    with ElasticJob(hosts(2), tmp_path, *flags, worker=("--coupled",)) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        for count in (1, 2):
            a.agent.wait_for(f'^worker {{"coupled": {count}}}')
            b.agent.wait_for(f'^worker {{"coupled": {count}}}')
            job.end_worker(b.host, 3)
            line_up = job.line_up(a, b)
            assert (line_up.generation, line_up.restarts) == (count + 1, count)
        job.succeeds(a, b)


def test_a_lost_node_costs_no_restart_although_the_survivors_worker_crashes_of_it(hosts: Hosts, tmp_path: Path) -> None:
    flags = ("--nnodes=1:2", "--max-restarts=0", *STEADY)
    with ElasticJob(hosts(2), tmp_path, *flags, worker=("--coupled",)) as job:
        a, b = job.start_all()
        job.line_up(a, b)
        for node in (a, b):
            node.agent.wait_for('^worker {"coupled": 1}')
        job.kill_agent(b)
        line_up = job.line_up(a)
        assert (line_up.generation, line_up.restarts) == (2, 0)
        job.succeeds(a)


def test_a_drained_node_costs_no_restart_although_the_others_workers_crash_of_it(hosts: Hosts, tmp_path: Path) -> None:
    flags = ("--nnodes=1:3", "--max-restarts=0", *STEADY)
    with ElasticJob(hosts(3), tmp_path, *flags, worker=("--coupled",)) as job:
        a, b, c = job.start_all()
        job.line_up(a, b, c)
        for node in (a, b, c):
            node.agent.wait_for('^worker {"coupled": 1}')
        a.agent.signal(signal.SIGTERM)
        line_up = job.line_up(b, c)
        assert (line_up.generation, line_up.restarts) == (2, 0)
        job.succeeds(b, c)


@pytest.mark.thorough
@pytest.mark.parametrize("second", ["agent killed", "power loss"])
def test_a_second_node_that_dies_while_the_job_re_forms_is_left_out_too(
    hosts: Hosts, tmp_path: Path, second: str
) -> None:
    # Workers that do not end on SIGTERM, so that the old generation lives until the test lets it end.
    flags = ("--nnodes=2:4", *QUICK, "--ft-restart-grace=600", "--max-restarts=0")
    with ElasticJob(hosts(4), tmp_path, *flags, worker=("--stubborn",)) as job:
        a, b, c, d = job.start_all()
        job.line_up(a, b, c, d)
        job.kill_agent(d)
        a.agent.wait_for("generation 1 ends: node host-3 was lost", anywhere=True)
        if second == "power loss":
            c.host.kill()
        else:
            job.kill_agent(c)
        for node in (a, b):
            job.end_worker(node.host, 0)
        line_up = job.line_up(a, b)
        assert (line_up.generation, line_up.restarts) == (2, 0)
        job.succeeds(a, b)


def test_a_node_that_comes_while_the_job_re_forms_is_taken_in_at_once(hosts: Hosts, tmp_path: Path) -> None:
    flags = ("--nnodes=2:3", "--ft-last-call=0", "--ft-restart-grace=3", "--max-restarts=0")
    with ElasticJob(hosts(3), tmp_path, *flags, worker=("--stubborn",)) as job:
        a, b = (job.start(host) for host in job.hosts[:2])
        job.line_up(a, b)
        job.kill_agent(b)
        a.agent.wait_for("ends: node host-1 was lost", anywhere=True)
        c = job.start(job.hosts[2])
        job.line_up(a, c)
        a.agent.wait_for(r"generation \d+: 2 nodes, 2 ranks \(host-0, host-2\)", anywhere=True)
        job.succeeds(a, c)


def test_a_failed_job_ends_on_every_node_with_exit_code_1_and_the_same_reason(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(4), tmp_path, "--nnodes=3:3", *STEADY) as job:
        nodes = [job.start(host) for host in job.hosts[:3]]
        job.line_up(*nodes)
        spare = job.start_spare(job.hosts[3])
        job.end_worker(job.hosts[1], 7)
        assert [node.agent.wait() for node in (*nodes, spare)] == [1, 1, 1, 1]
        reasons = {reason(node) for node in (*nodes, spare)}
        assert len(reasons) == 1
        assert "on node host-1 failed (exit code 7), and no restart is allowed (--max-restarts=0)" in reasons.pop()
        assert all(node.host.processes() == [] for node in (*nodes[1:], spare))


def test_ctrl_c_on_any_node_ends_the_whole_job(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(3), tmp_path, "--nnodes=3:3", *STEADY) as job:
        nodes = job.start_all()
        job.line_up(*nodes)
        nodes[2].agent.signal(signal.SIGINT)
        assert [node.agent.wait() for node in nodes] == [1, 1, 1]
        assert {reason(node) for node in nodes} == {"interrupted on node host-2"}
        for host in job.hosts:
            assert_empty(host)


def test_training_goes_on_from_its_last_step_when_a_node_is_lost_and_comes_back(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", "--max-restarts=0", *QUICK, script=HERE / "train.py") as job:
        a, b = job.start_all()
        both = a.agent.wait_for(r"^step (\d+) of 2 ranks", 120)
        b.host.kill()
        alone = a.agent.wait_for(r"^step (\d+) of 1 rank", 120)
        b = job.start(b.host)
        again = a.agent.wait_for(r"^step (\d+) of 2 ranks", 120)
        assert 0 < int(both[1]) < int(alone[1]) < int(again[1])
        job.succeeds(a, b)
        # Every step was taken, and none was counted twice.
        steps = job.steps()
        assert steps == list(range(1, len(steps) + 1))
