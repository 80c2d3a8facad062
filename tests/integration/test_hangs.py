"""Ranks that hang are found in time, named and ended; ranks that do not are left alone. On two nodes of two ranks."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from jobs import HANGS, errors, finished, job, two_nodes

ALL = ("--ft-rank-heartbeat-timeout=2", "--ft-initial-rank-heartbeat-timeout=60")
# All but the culprit have to begin in this time: so no zygote imports torch beside them.
COLD_START = ["--ft-initial-rank-heartbeat-timeout=8", "--warm-start=false"]


@pytest.mark.parametrize(
    ("how", "flags", "sentence"),
    [
        ("sleep", ["--ft-rank-heartbeat-timeout=2"], "it had no heartbeat or step for 2 s; step 3 was "),
        ("silent", COLD_START, "it gave no sign of life within 8 s of its start"),
        ("section", ["--ft-rank-section-timeouts=step:2"], "it has been in section 'step' for 2 s; in epoch > step"),
        ("outside", ["--ft-rank-out-of-section-timeout=2"], "it has been outside any section for 2 s"),
        ("stopped", ["--ft-rank-heartbeat-timeout=2"], "it had no heartbeat or step for 2 s"),
        ("holding", ["--ft-rank-heartbeat-timeout=2"], "it had no heartbeat or step for 2 s"),
    ],
)
def test_a_rank_that_hangs_is_named_and_ended_and_the_job_goes_on(how: str, flags: list[str], sentence: str) -> None:
    with two_nodes("--max-restarts=1", *flags, args=[how, "3"]) as (a, b):
        b.wait_for(
            rf"generation 1: rank 3 \(pid \d+\) hangs since \d\d:\d\d:\d\d: {re.escape(sentence)}", anywhere=True
        )
        a.wait_for("restart 1 of 1: rank 3 on node b hung$", anywhere=True)
        finished(a, b)
    for rank in range(4):
        assert f"rank {rank} of generation 2: done" in a.output + b.output


def test_with_no_restart_left_the_summary_names_the_rank_that_hung_as_the_root_cause() -> None:
    with two_nodes("--ft-rank-section-timeouts=step:2", args=["section", "2"]) as (a, b):
        assert a.wait() == 1
        assert b.wait() == 1
    for each in (a, b):
        (error,) = errors(each)
        assert "rank 2 on node b hung, and no restart is allowed" in error
        assert "failed first: rank 2 on node b (host" in each.output
        verdict = each.output.partition("failed first: ")[2]
        assert "hung, and was killed" in verdict
        assert verdict.count("it has been in section 'step' for 2 s") == 1
        root = each.output.partition("Root Cause")[2]
        assert "rank      : 2 (local_rank: 0)" in root
        assert "traceback : Hung: it has been in section 'step' for 2 s" in root


@pytest.mark.thorough
def test_another_rank_that_hangs_during_the_recovery_is_ended_as_well() -> None:
    """Rank 1 gives no sign of life in two generations in a row."""
    with two_nodes("--max-restarts=2", *COLD_START, args=["silent", "1", "2"]) as (a, b):
        for restart in (1, 2):
            a.wait_for(r"rank 1 \(pid \d+\) hangs since .*: it gave no sign of life within 8 s of its start")
            a.wait_for(f"restart {restart} of 2: rank 1 on node a hung$")
        finished(a, b)


def test_a_rank_may_be_ended_with_a_signal_that_it_handles_and_is_killed_if_it_lives_on() -> None:
    """It is stuck, but its handler runs: it has a second for what it does then."""
    flags = ("--max-restarts=1", "--ft-rank-heartbeat-timeout=2", "--ft-rank-termination-signal=TERM")
    with job("--nproc-per-node=2", *flags, script=HANGS, args=["deaf"]) as process:
        process.wait_for("rank 1 of generation 1: got SIGTERM")
        process.wait_for("restart 1 of 1: rank 1 on node .* hung", anywhere=True)
        finished(process)


def test_nobody_is_ended_while_monitoring_is_paused() -> None:
    with two_nodes(*ALL, args=["pause:3.5", "3"]) as (a, b):
        finished(a, b)
    assert "hang" not in a.output + b.output


def test_a_section_with_a_timeout_that_nobody_enters_is_mentioned_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, outlast\n"
        "with outlast.section('checkpoint'): outlast.step()\n"
        "os._exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) == 0)\n"
    )
    with job("--max-restarts=1", "--ft-rank-section-timeouts=chekpoint:60,checkpoint:60", script=script) as process:
        assert process.wait() == 0, process.output
    told = [line for line in process.lines if "has entered the section" in line]
    assert len(told) == 1
    assert "'chekpoint', which has a timeout" in told[0]
    assert "entered were: 'checkpoint'" in told[0]


def test_hang_detection_may_be_off() -> None:
    with two_nodes(*ALL, "--ft-hang-detection=off", args=["late:3.5", "3"]) as (a, b):
        finished(a, b)
    assert "seems to hang" not in a.output + b.output


def test_hang_detection_may_only_report() -> None:
    with two_nodes(*ALL, "--ft-hang-detection=report", args=["late:600", "3"]) as (a, b):
        late = int(b.wait_for(r"rank 3 of generation 1: pid (\d+)", anywhere=True)[1])
        b.wait_for("rank 3 .*seems to hang", anywhere=True)
        os.kill(late, signal.SIGUSR1)
        finished(a, b)


def test_an_agent_that_was_stopped_together_with_its_workers_gives_them_their_time_again() -> None:
    flags = ("--nproc-per-node=2", "--node-timeout=60", "--ft-rank-heartbeat-timeout=2")
    with job(*flags, script=HANGS, args=["pause:0", "0"]) as process:
        process.wait_for("rank 0 of generation 1: done")  # rank 1 waits for it
        worker = int(process.wait_for(r"rank 1 of generation 1: pid (\d+)", anywhere=True)[1])
        for pid in (process.pid, worker):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4)  # far more than its timeout: it is late the moment the agent looks
        for pid in (process.pid, worker):
            os.kill(pid, signal.SIGCONT)
        time.sleep(1)  # it is found late now, or not at all
        os.kill(worker, signal.SIGUSR1)
        assert process.wait() == 0, process.output
    assert "hangs" not in process.output


# The coordinator gives up on a node 0.15 s before an agent gives up on it: too close for a busy machine.
PATIENT_LAUNCHER = """
import sys
from outlast.agent.monitoring import hangs
from outlast.cli import main
hangs.TO_NAME = 60.0
sys.exit(main(sys.argv[1:]))
"""


def test_a_node_that_cannot_say_where_its_ranks_are_keeps_nobody_from_being_named_and_ended() -> None:
    flags = ("--max-restarts=1", "--node-timeout=60", "--ft-rank-heartbeat-timeout=2")
    with two_nodes(*flags, args=["sleep", "1"], launcher=PATIENT_LAUNCHER) as (a, b):
        a.wait_for("rank 1 of generation 1: now sleep")
        b.wait_for("rank 3 of generation 1: pid", anywhere=True)
        b.signal(signal.SIGSTOP)
        a.wait_for(r"coordinator: generation 1: rank 1 on a .* stuck in for_ever at hangs.py:\d+")
        a.wait_for("generation 1 ends: rank 1 on node a hung$")
        b.signal(signal.SIGCONT)
        finished(a, b)


STEPS = """
import os, time, torch
rank, generation = os.environ["RANK"], os.environ["OUTLAST_GENERATION"]
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.ones(2)).backward()
    optimizer.step()
    time.sleep(0.1)
    if step == 5 and rank == "1" and generation == "1":
        time.sleep(3600)
print(f"rank {rank} of generation {generation}: trained", flush=True)
os._exit(0)  # a Python that has imported torch may take longer than the test's timeout to end by itself
"""


@pytest.mark.parametrize("warm", ["true", pytest.param("false", marks=pytest.mark.thorough)])
def test_a_script_that_knows_nothing_of_outlast_has_heartbeats_by_its_optimizer(tmp_path: Path, warm: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--ft-rank-heartbeat-timeout=4", f"--warm-start={warm}")
    with job(*flags, script=script) as process:
        process.wait_for(r"rank 1 .* hangs since .*: it had no heartbeat or step for 4 s; step 6 was [\d.]+ s ago")
        finished(process)
    for rank in (0, 1):
        assert f"rank {rank} of generation 2: trained" in process.output


@pytest.mark.thorough
def test_the_optimizers_hook_can_be_turned_off(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STEPS.replace("3600", "3"))
    with job("--nproc-per-node=2", "--ft-rank-heartbeat-timeout=1.5", "--ft-step-hook=false", script=script) as process:
        finished(process)
    assert "hangs" not in process.output


CALIBRATES = """
import os, sys, time, outlast
rank, generation = int(os.environ["RANK"]), os.environ["OUTLAST_GENERATION"]
def say(text): os.write(1, f"rank {rank} of generation {generation}: {text}\\n".encode())
if generation == "2":
    outlast.calibration.load_state_dict({"longest": '{"section:save": 70.0}'})
for step in range(5):
    with outlast.section(f"own-{rank}"):
        outlast.step()
        time.sleep(0.01 * (rank + 1))
if rank == 2 or generation == "2":
    outlast.calibrate()
while not all(f"own-{each}" in outlast.calibration.state_dict()["longest"] for each in range(4)):
    outlast.heartbeat()
    time.sleep(0.01)
if generation == "1":
    say("calibrated")
    with outlast.section("wait"):  # which was never measured, and is not watched
        while True:
            if rank != 3:
                outlast.heartbeat()
            time.sleep(0.1)
while "save" not in outlast.calibration.state_dict()["longest"]:
    time.sleep(0.01)
say("saw what another run had measured")
"""


@pytest.mark.thorough
def test_one_rank_asks_and_all_are_calibrated_by_what_all_have_measured(tmp_path: Path) -> None:
    script = tmp_path / "calibrates.py"
    script.write_text(CALIBRATES)
    with two_nodes("--max-restarts=1", args=[], script=script) as (a, b):
        for each, ranks in ((a, (0, 1)), (b, (2, 3))):
            for rank in ranks:
                each.wait_for(f"rank {rank} of generation 1: calibrated", anywhere=True)
        a.wait_for("calibration 1: the timeouts are now .*section 'own-3' ", anywhere=True)
        a.wait_for("restart 1 of 1: rank 3 on node b hung$")
        finished(a, b)
    for rank in range(4):
        assert f"rank {rank} of generation 2: saw what another run had measured" in a.output + b.output


@pytest.mark.thorough
def test_the_example_hangs_is_ended_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "sections.py"
    args = ["--steps", "60", "--hang-at", "30", "--checkpoint", str(tmp_path / "sections.pt")]
    # One restart more than the hang needs: now and then torch hangs on its way out, and is ended for that, too.
    flags = ("--nproc-per-node=2", "--max-restarts=2", "--ft-rank-section-timeouts=step:10,checkpoint:60")
    with job(*flags, script=example, args=args) as process:
        process.wait_for("rank 1 .* hangs since .*: it has been in section 'step' for 10 s; step 30 was", timeout=120)
        process.wait_for("rank 1 trains from step 20", timeout=120)
        assert process.wait(120) == 0, process.output
    assert "rank 1 has trained 60 steps" in process.output
