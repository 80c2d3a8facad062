"""The same command under torchrun and under `outlast run`: what workers and people see is the same."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs import SCRIPTS, errors, free_port, job, node
from outlast import JobFailed
from outlast.run import main
from processes import Process, python

EXAMPLES = Path(__file__).parents[2] / "examples" / "elastic"
DESCRIBE = str(SCRIPTS / "describe.py")
EXITS = str(SCRIPTS / "exits.py")

# What is new with every run, and what is Outlast's own.
OF_THE_RUN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
OURS = {f"OUTLAST_{name}" for name in ("ARENA", "BOARD", "DESK", "GENERATION", "IN_PLACE", "WORKER_GROUP")}


class Both(NamedTuple):
    """What the two launchers made of one command."""

    outlast: Process
    torchrun: Process


def run_both(place: Path, flags: list[str], env: Mapping[str, str | None] | None = None) -> Both:
    """Run `outlast run` and torchrun with the same flags, each in a directory of its own, to their ends."""
    env = {"OMP_NUM_THREADS": "1", **(env or {})}
    launchers = {"outlast": ["outlast", "run"], "torchrun": ["torch.distributed.run"]}
    started = {}
    for name, module in launchers.items():
        (place / name / "out").mkdir(parents=True)
        started[name] = Process([python(), "-m", *module, *flags], env=env, cwd=place / name)
    for process in started.values():
        process.wait(120)
    return Both(**started)


def without(environ: dict[str, str], names: set[str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in {*names, "OL_TEST_ID"}}


def relative(found: Any, place: Path) -> Any:
    """What a worker wrote down, with the launcher's own directory taken out of it."""
    return json.loads(json.dumps(found).replace(str(place), "PLACE"))


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        pytest.param(
            [
                "--nproc-per-node=2",
                "--role=trainer",
                "--max-restarts=3",
                DESCRIBE,
                "out",
                "x${local_rank}",
                "--y",
                "-z",
            ],
            {},
            id="a script",
        ),
        pytest.param(
            ["--standalone", "--nproc_per_node", "2", "-m", "describe", "out", "--nnodes=5"],
            {"PYTHONPATH": str(SCRIPTS)},
            id="a module",
        ),
        pytest.param(
            ["--nproc-per-node=1", "--no-python", python(), DESCRIBE, "out"],
            {"OMP_NUM_THREADS": None},
            id="a program",
        ),
        pytest.param(["--run-path", DESCRIBE, "out"], {"PET_NPROC_PER_NODE": "2"}, id="a path, with PET variables"),
        pytest.param(
            ["--virtual-local-rank", "--nproc-per-node=2", "--signals-to-handle=SIGTERM", DESCRIBE, "out"],
            {"CUDA_VISIBLE_DEVICES": "3,5", "OMP_NUM_THREADS": None},
            id="virtual local ranks",
        ),
        pytest.param(
            ["--node-rank=0", "--nnodes=1", "--master-addr=127.0.0.1", "--master-port=PORT", DESCRIBE, "out"],
            {},
            id="static",
        ),
    ],
)
def test_a_worker_finds_what_it_finds_under_torchrun(flags: list[str], env: dict[str, str], tmp_path: Path) -> None:
    flags = [flag.replace("PORT", str(free_port())) for flag in flags]
    both = run_both(tmp_path, flags, env)
    assert (both.outlast.returncode, both.torchrun.returncode) == (0, 0), both.outlast.output
    files = sorted(path.name for path in (tmp_path / "torchrun" / "out").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "outlast" / "out").iterdir())
    for name in files:
        ours, theirs = (
            relative(json.loads((tmp_path / launcher / "out" / name).read_text()), tmp_path / launcher)
            for launcher in ("outlast", "torchrun")
        )
        mine, other = ours.pop("environ"), theirs.pop("environ")
        assert ours == theirs
        # Their agent hosts the workers' store, ours has no torch.
        assert mine.pop("TORCHELASTIC_USE_AGENT_STORE") == "False"
        assert other.pop("TORCHELASTIC_USE_AGENT_STORE") == "True"
        assert without(mine, OF_THE_RUN | OURS) == without(other, OF_THE_RUN)
        assert mine.keys() - OURS == other.keys()
        assert socket.gethostbyname(mine["MASTER_ADDR"]) == socket.gethostbyname(other["MASTER_ADDR"])
        tail = [Path(each["TORCHELASTIC_ERROR_FILE"]).parts[-3:] for each in (mine, other)]
        assert tail[0] == tail[1]


SUMMARY = re.compile(r"^(=+)\n.*^\1$", re.MULTILINE | re.DOTALL)


def summary(process: Process) -> str:
    """The failure summary, without what is new with every run."""
    found = SUMMARY.search(process.output)
    assert found, process.output
    text = re.sub(r"(time +: |pid: |PID )[\d:_-]+", r"\1…", found[0])
    text = re.sub(r"(host +: ).*", r"\1…", text)
    return re.sub(r"(error_file: )\S+/(attempt\S+)", r"\1…/\2", text)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(["wait", "3"], id="an exit code"),
        pytest.param(["SIGSEGV", "wait"], id="a signal"),
    ],
)
def test_a_failed_worker_is_summed_up_as_by_torchrun(how: list[str], tmp_path: Path) -> None:
    both = run_both(tmp_path, ["--nproc-per-node=2", "--role=r", EXITS, *how])
    assert (both.outlast.returncode, both.torchrun.returncode) == (1, 1)
    assert summary(both.outlast) == summary(both.torchrun)
    assert len(errors(both.outlast)) == 1
    assert both.outlast.lines[-1] == errors(both.outlast)[0]


def test_what_record_wrote_is_shown_and_handed_on_as_by_torchrun(tmp_path: Path) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": "launcher.json"}
    both = run_both(tmp_path, ["--nproc-per-node=2", "--log-dir=logs", str(SCRIPTS / "records.py")], env)
    assert (both.outlast.returncode, both.torchrun.returncode) == (1, 1)
    assert summary(both.outlast) == summary(both.torchrun)
    assert "RuntimeError: the dog ate the gradients" in summary(both.outlast)
    written = []
    for launcher in ("outlast", "torchrun"):
        (error_file,) = (tmp_path / launcher).glob("logs/*/attempt_0/1/error.json")
        assert "the dog ate the gradients" in error_file.read_text()
        forwarded = json.loads((tmp_path / launcher / "launcher.json").read_text())
        forwarded["message"]["extraInfo"].pop("timestamp")
        written.append(forwarded)
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--redirects=3", "--log-dir=logs"], id="redirected"),
        pytest.param(["--tee=3", "--log-dir=logs"], id="tee'd"),
        pytest.param(["--tee=3", "--local-ranks-filter=1", "--log-dir=logs"], id="filtered and tee'd"),
        pytest.param(["--local-ranks-filter=0"], id="filtered"),
        pytest.param(["-r", "0:1", "-t", "1:2", "--log-dir", "logs/deep"], id="by rank"),
        pytest.param(["--redirects=3", "--log-dir=/dev/null"], id="nowhere"),
    ],
)
def test_output_goes_where_torchrun_puts_it(flags: list[str], tmp_path: Path) -> None:
    both = run_both(tmp_path, ["--nproc-per-node=2", *flags, EXITS, "0", "0"])
    assert (both.outlast.returncode, both.torchrun.returncode) == (0, 0), both.outlast.output
    logs = []
    for launcher in ("outlast", "torchrun"):
        files = [path for path in (tmp_path / launcher).glob("logs/**/*") if path.is_file()]
        # Ours alone: what `outlast report` and `outlast logs` read.
        logs.append(
            {path.parts[-3:]: path.read_text() for path in files if path.name[0] != "." and path.name != "events.jsonl"}
        )
    assert logs[0] == logs[1]
    shown = [sorted(line for line in each.lines if re.search(r"(out|err) of \d", line)) for each in both]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_told_to_end_has_torchruns_exit_code(sig: signal.Signals) -> None:
    launchers = (["outlast", "run"], ["torch.distributed.run"])
    both = Both(*(Process([python(), "-m", *module, "--standalone", EXITS, "wait"]) for module in launchers))
    for process in both:
        process.wait_for("out of 0")
        process.signal(sig)
    assert both.outlast.wait() == both.torchrun.wait() == 1
    assert len(errors(both.outlast)) == 1


def test_usage_errors_end_with_2_as_torchruns(tmp_path: Path) -> None:
    both = run_both(tmp_path, ["--nproc-per-node=2", "--no-such-flag", "train.py"])
    assert (both.outlast.returncode, both.torchrun.returncode) == (2, 2)
    assert len(both.outlast.lines) == 1


# -- as a function


def test_main_returns_when_the_job_succeeded(capfd: pytest.CaptureFixture[str]) -> None:
    main(["--standalone", EXITS, "0"])
    assert "out of 0" in capfd.readouterr().out


def test_main_raises_job_failed_with_the_evidence(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobFailed) as caught:
        main(["--standalone", "--nproc-per-node=2", EXITS, "wait", "3"])
    failed = caught.value
    assert "rank 1" in failed.reason
    assert "--max-restarts=0" in failed.reason
    assert (failed.failures[0].rank, failed.failures[0].exit_code) == (1, 3)
    assert "Root Cause (first observed failure):" in str(failed)
    capfd.readouterr()


@pytest.mark.parametrize("argv", [["--nnodes=3:2", EXITS], ["no-such-script.py"], ["-m", "--no-python", "x"]])
def test_main_raises_value_error_for_what_cannot_be_meant(argv: list[str]) -> None:
    with pytest.raises(ValueError):
        main(argv)


def test_main_reads_the_command_line_by_default_and_may_be_called_again(tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(
        "import outlast.run, signal, sys\n"
        "before = signal.getsignal(signal.SIGTERM)\n"
        "outlast.run.main()\n"
        "outlast.run.main(sys.argv[1:])\n"
        "assert signal.getsignal(signal.SIGTERM) is before\n"
    )
    process = Process([sys.executable, script, "--standalone", EXITS, "0"])
    assert process.wait() == 0, process.output
    assert process.lines.count("out of 0") == 2


# -- the scripts of PyTorch's elastic tutorials

TUTORIALS: dict[str, tuple[list[str], Callable[[str], bool]]] = {
    "elastic_ddp.py": ([], lambda output: "rank 0 " in output and "rank 1 " in output),
    "multigpu_torchrun.py": (["3", "1", "--batch_size=256"], lambda output: "Epoch 2" in output),
    "main.py": (["--epochs=2", "--batch-size=128"], lambda output: "epoch 1: " in output),
}


# What torch itself says, under torchrun as well, when now and then it aborts on its way out.
TORCHS_OWN = "terminate called without an active exception"


@pytest.mark.parametrize("script", TUTORIALS)
@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_the_scripts_of_the_elastic_tutorials_run_unchanged(script: str, nodes: int, tmp_path: Path) -> None:
    args, is_done = TUTORIALS[script]
    first, again = tmp_path / "first", tmp_path / "again"  # with what the first left there, it would have nothing to do
    codes, output = run_tutorial(script, args, nodes, first)
    if any(codes) and TORCHS_OWN in output:
        codes, output = run_tutorial(script, args, nodes, again)
    assert codes == [0] * nodes, output
    assert is_done(output), output


def run_tutorial(script: str, args: list[str], nodes: int, place: Path) -> tuple[list[int], str]:
    place.mkdir()
    where: dict[str, Any] = {"script": EXAMPLES / script, "args": args, "cwd": place}
    if nodes == 1:
        started = [job("--standalone", "--nproc-per-node=2", **where)]
    else:
        port = free_port()
        started = [node(name, port, "--nnodes=2", "--nproc-per-node=1", **where) for name in "ab"]
    codes = [process.wait(120) for process in started]
    return codes, "".join(process.output for process in started)
