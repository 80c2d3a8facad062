"""What PyTorch's own tests of its launcher ask of `torch.distributed.run.main`, asked of `outlast.run.main`.

Left out are those that replace private parts of torch's agent and rendezvous, and those that need a GPU
(docs/launcher.md has the table of differences).
"""

from __future__ import annotations

import io
import logging
import os
import uuid
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic import events
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from jobs import SCRIPTS, free_port
from outlast import JobFailed
from outlast.run import main
from processes import Process, outlast, python

TOUCHES = str(SCRIPTS / "touches.py")
EXITS = str(SCRIPTS / "exits.py")
IGNORED = ["--monitor-interval=1", "--start-method=spawn"]
CPUS = len(os.sched_getaffinity(0))
ON_CPUS = pytest.mark.skipif(torch.accelerator.is_available(), reason="auto counts the accelerators here")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OF_THE_PARENT", "inherited")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir()
    return made


@pytest.fixture
def shell_script(tmp_path: Path) -> str:
    """A program that makes a file of its rank's name."""
    path = tmp_path / "touches.sh"
    path.write_text('#!/bin/sh\necho "creating $RANK"\ntouch "$1/$RANK"\n')
    path.chmod(0o755)
    return str(path)


def ranks(place: Path) -> list[str]:
    """The ranks that were there."""
    return sorted(path.name for path in place.iterdir())


def elastic(**conf: object) -> list[str]:
    """One node of a job that may have two."""
    return [
        *["--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"],
        f"--rdzv-conf='{','.join(f'{name}={value}' for name, value in conf.items())}'",
        f"--rdzv-id={uuid.uuid4().int}",
        *IGNORED,
    ]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--nnodes=1", f"--rdzv-id={uuid.uuid4().int}"], id="a job name"),
        pytest.param(["--nnodes=1", "--standalone"], id="standalone"),
        pytest.param(["--run-path", "--nnodes=1"], id="run path"),
    ],
)
def test_every_rank_of_a_python_script_runs(flags: list[str], place: Path) -> None:
    main([*flags, "--nproc-per-node=4", *IGNORED, TOUCHES, str(place)])
    assert ranks(place) == ["0", "1", "2", "3"]
    assert {path.read_text() for path in place.iterdir()} == {"inherited"}


def test_the_flags_of_the_older_launcher_work(place: Path) -> None:
    meeting = ["--master-addr=localhost", f"--master-port={free_port()}", "--node-rank=0"]
    main(["--nnodes=1", "--nproc-per-node=4", *IGNORED, *meeting, TOUCHES, str(place)])
    assert ranks(place) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("flags", "world"), [(["--nproc-per-node=4"], 4), ([], 1)], ids=["4 workers", "default"])
def test_every_rank_of_a_program_runs(flags: list[str], world: int, shell_script: str, place: Path) -> None:
    flags = ["--nnodes=1", *flags, *IGNORED, "--no-python"]
    with pytest.raises(ValueError, match="do not go together"):
        main([*flags, "--module", shell_script, str(place)])
    main([*flags, shell_script, str(place)])
    assert ranks(place) == [str(rank) for rank in range(world)]


def test_flags_may_come_from_the_environment(shell_script: str, place: Path, monkeypatch) -> None:
    for name, value in {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_ID": "7",
        "PET_MONITOR_INTERVAL": "1",
        "PET_START_METHOD": "spawn",
        "PET_NO_PYTHON": "1",
        "PET_MODULE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="do not go together"):
        main([shell_script, str(place)])
    monkeypatch.setenv("PET_MODULE", "0")
    main([shell_script, str(place)])
    assert ranks(place) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("kind", "world"), [("4", 4), ("cpu", CPUS), pytest.param("auto", CPUS, marks=ON_CPUS)], ids=["4", "cpu", "auto"]
)
def test_the_number_of_workers_may_be_a_number_or_a_kind(kind: str, world: int, shell_script: str, place: Path) -> None:
    main(["--nnodes=1", f"--nproc-per-node={kind}", *IGNORED, "--no-python", shell_script, str(place)])
    assert ranks(place) == [str(rank) for rank in range(world)]


def test_a_number_of_workers_that_is_none_is_refused(shell_script: str, place: Path) -> None:
    with pytest.raises(ValueError, match="unknown"):
        main(["--nnodes=1", "--nproc-per-node=unknown", *IGNORED, "--no-python", shell_script, str(place)])
    assert ranks(place) == []


def test_one_node_of_an_elastic_job_is_enough(place: Path) -> None:
    main([*elastic(join_timeout=5, last_call_timeout=1, timeout=5), TOUCHES, str(place)])
    assert ranks(place) == ["0", "1"]


def test_two_agents_make_one_job(place: Path) -> None:
    command = [*elastic(timeout=5), TOUCHES, str(place)]
    with outlast("run", *command) as other:
        main(command)
        assert other.wait() == 0, other.output
    assert ranks(place) == ["0", "1", "2", "3"]


def test_a_failed_worker_raises_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[events.Event] = []
    monkeypatch.setattr(events, "record", lambda event, handler: recorded.append(event) or handler)
    with pytest.raises(JobFailed):
        main([*elastic(last_call_timeout=1), "--max-restarts=0", EXITS, "0", "3"])
    agents = [event for event in recorded if event.source is events.EventSource.AGENT]
    assert [event.name for event in agents] == ["torchelastic.worker.status.FAILED"]
    workers = [event for event in recorded if event.source is events.EventSource.WORKER]
    assert [event.metadata["global_rank"] for event in workers] == [1]


def test_a_handler_that_the_program_has_registered_gets_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    monkeypatch.setitem(handlers._log_handlers, "ours", Keeps())
    main(["--standalone", "--event-log-handler=ours", EXITS, "0"])
    assert [events.Event.deserialize(line).name for line in lines] == ["torchelastic.worker.status.SUCCEEDED"]
    with pytest.raises(ValueError, match="--event-log-handler is one of null, console, dynamic_rendezvous, ours, not"):
        main(["--standalone", "--event-log-handler=theirs", EXITS, "0"])


@pytest.mark.parametrize(
    ("nnodes", "words"), [("2:20:30", "MIN:MAX"), ("0", "1 node or more"), ("3:2", "--nnodes=2:3")]
)
def test_numbers_of_nodes_that_make_no_sense_are_refused(nnodes: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        main([f"--nnodes={nnodes}", EXITS, "0"])


@pytest.mark.parametrize("method", ["tcp://localhost:{}", "env://"], ids=["tcp", "env://"])
def test_ranks_meet_by_either_init_method_and_know_that_they_were_launched(method: str, place: Path) -> None:
    port = free_port()
    meeting = ["--master-addr=localhost", f"--master-port={port}"]
    flags = ["--run-path", "--nnodes=1", "--nproc-per-node=2", *meeting, "--monitor-interval=1"]
    main([*flags, TOUCHES, str(place), method.format(port)])
    assert {path.read_text() for path in place.iterdir()} == {"True"}


def test_a_logs_specs_of_the_users_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        @staticmethod
        def load() -> type[DefaultLogsSpecs]:
            return DefaultLogsSpecs

    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Entry()])
    main(["--nnodes=1", "--nproc-per-node=1", "--logs_specs=default", TOUCHES, str(place)])
    assert ranks(place) == ["0"]


def test_a_logs_specs_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="DOESNOT_EXIST"):
        main(["--nnodes=1", "--logs_specs=DOESNOT_EXIST", EXITS, "0"])


def test_tee_d_lines_go_where_the_program_has_sent_its_output(
    shell_script: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank${rank}]: ")
    flags = ["--nnodes=1", "--nproc-per-node=4", "--redirect=3", "--tee=3", "--no-python"]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        main([*flags, shell_script, str(place)])
    assert sorted(out.getvalue().splitlines()) == [f"[rank{rank}]: creating {rank}" for rank in range(4)]


def test_a_script_whose_path_is_long_and_no_text_runs_as_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / ("a" * 200) / ("b" * 200) / os.fsdecode(b"tab\tnew\nline\xff.py")
    script.parent.mkdir(parents=True)
    script.write_text("import sys\nprint(ascii(sys.argv[0][-20:]))\n")
    started = [
        Process([python(), "-m", *module, "--standalone", script])
        for module in (["outlast", "run"], ["torch.distributed.run"])
    ]
    for process in started:
        assert process.wait(120) == 0, process.output
        assert ascii(str(script)[-20:]) in process.output
