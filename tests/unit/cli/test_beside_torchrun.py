"""Command lines, each read by torchrun's own code and by ours: both take them for the same, or both refuse them.

Where they differ, the reason stands here, and in the table of docs/launcher.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import run as torchrun

from outlast.cli.request import parse
from outlast.launch import Std

USAGE, REFUSED = "usage", "refused"  # ends with exit code 2; with 1, and before anything is started

# What both take for the same, and run.
ALIKE = [
    # the script and its arguments
    "train.py",
    "train.py --lr 1 -x -- --nnodes=3 --help",
    "-- train.py --lr 1",
    "train.py ${local_rank}",
    "./train.py",
    "package_dir",
    "-m json.tool --indent 2",
    "--module json.tool",
    "--no-python echo hello",
    "--no_python echo -m",
    "--run-path {script} x",
    "--run_path --no-python {script}",
    # how many
    "--nnodes=1 train.py",
    "--nnodes 1:1 train.py",
    "--nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=n0:7 train.py",
    "--nnodes=02 --node-rank=0 train.py",
    "--nproc-per-node=2 train.py",
    "--nproc_per_node 2 train.py",
    "--nproc-per-node=02 train.py",
    "--nproc-per-node=cpu train.py",
    "--nproc-per 3 train.py",
    "--nproc-per-node=1 --nproc_per_node=3 train.py",
    # where they meet
    "--standalone train.py",
    "--standalone --nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=x:1 train.py",
    "--standalone --rdzv-id=mine train.py",
    "--rdzv-backend=c10d train.py",
    "--rdzv_backend c10d --rdzv_endpoint localhost:29400 --rdzv_id job7 train.py",
    "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n0 --rdzv-id=job7 train.py",
    "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[::1]:7 --rdzv-id=7 train.py",
    "--nnodes=2 --node-rank=1 --master-addr=n0 --master-port=1234 train.py",
    "--nnodes=2 --node_rank 0 --master_addr n0 --master_port 1234 train.py",
    "--nnodes=1 --master-port=1234 --master-addr=localhost train.py",
    "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n0:7 --node-rank=3 train.py",
    "--nnodes=2 --rdzv-endpoint=n0:7 --rdzv-conf=timeout=60,is_host=1 train.py",
    "--rdzv-backend=c10d --rdzv-conf=join_timeout=5,last_call_timeout=1,timeout=5 train.py",
    "--local-addr=n1 --nnodes=2 --node-rank=1 train.py",
    # what happens then
    "--max-restarts=3 train.py",
    "--max_restarts 0 train.py",
    "--max-restarts=+3 train.py",
    "--monitor-interval=0.5 --start-method=fork train.py",
    "--start_method forkserver --monitor_interval 5 train.py",
    "--role=trainer train.py",
    "--signals-to-handle=SIGTERM,SIGUSR1 train.py",
    "--signals_to_handle SIGINT train.py",
    "--shutdown-timeout=5 train.py",
    "--virtual-local-rank train.py",
    "--numa-binding=node train.py",
    "--numa_binding core-complex train.py",
    "--event-log-handler=console train.py",
    # what is written where
    "--log-dir=logs train.py",
    "--log_dir logs -r 3 -t 1 train.py",
    "-r3 -t0:1 train.py",
    "--redirects 0:1,1:2 --tee=1:3 train.py",
    "--redirect=3 --tee=3 train.py",
    "--local-ranks-filter=0,2 train.py",
    "--local_ranks_filter 1 --tee 3 train.py",
    "--duplicate-stdout-filters=a,,b,c --duplicate_stderr_filters d train.py",
    "--log-dir=/dev/null --redirects=3 train.py",
]
# What both refuse, in the same way.
WRONG = [
    ("--no-such-flag train.py", USAGE),
    ("--nproc-per-node", USAGE),
    ("", USAGE),
    ("--standalone", USAGE),
    ("--start-method=teleport train.py", USAGE),
    ("--max-restarts=many train.py", USAGE),
    ("--max-restarts=1.5 train.py", USAGE),
    ("--node-rank=first train.py", USAGE),
    ("--master-port=http train.py", USAGE),
    ("--monitor-interval=often train.py", USAGE),
    ("--numa-binding=everywhere train.py", USAGE),
    ("--standalone=true train.py", USAGE),
    ("--rdzv train.py", USAGE),  # five flags begin like that
    ("--nnodes=0 train.py", REFUSED),
    ("--nnodes=3:2 train.py", REFUSED),
    ("--nnodes=1:2:3 train.py", REFUSED),
    ("--nnodes=two train.py", REFUSED),
    ("--nproc-per-node=1.5 train.py", REFUSED),
    ("--max-restarts=-1 train.py", REFUSED),
    ("--no-python -m json.tool", REFUSED),
    ("--redirects=4 train.py", REFUSED),
    ("--tee=both train.py", REFUSED),
    ("--local-ranks-filter=0,x train.py", REFUSED),
    ("--rdzv-conf=timeout train.py", REFUSED),
    ("--rdzv-conf==3 train.py", REFUSED),
    ("--logs-specs=absent train.py", REFUSED),
    ("--log-dir=train.py train.py", REFUSED),
    ("--shutdown-timeout=-1 train.py", REFUSED),
]
# What torchrun starts, to fail, hang or go wrong later, and we refuse.
STRICTER = [
    ("absent.py", "there is no such script: every worker would fail"),
    ("-m no_such_module", "there is no such module"),
    ("empty_dir", "a directory without __main__.py"),
    ("--no-python absent-program", "there is no such program"),
    ("--run-path train.py", "runpy is given absolute paths alone, as torchrun's help says"),
    ("--nproc-per-node=0 train.py", "a node without a worker"),
    ("--nnodes=2 --standalone train.py", "one machine cannot be two nodes: it would wait for ever"),
    ("--nnodes=2 --rdzv-backend=c10d train.py", "no endpoint where the nodes could meet"),
    ("--rdzv-backend=etcd --rdzv-endpoint=a:1 train.py", "Outlast needs no etcd"),
    ("--rdzv-backend=zeus --rdzv-endpoint=a:1 train.py", "there is no such back end"),
    ("--master-port=70000 train.py", "there is no such port"),
    ("--signals-to-handle=SIGTREM train.py", "there is no such signal"),
    ("--event-log-handler=absent train.py", "there is no such handler; torchrun finds out when the job has ended"),
    ("--rdzv-conf=jion_timeout=3 train.py", "an unknown key, which torchrun ignores"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script, a package and nothing else."""
    for name in [name for name in os.environ if name.startswith(("PET_", "OUTLAST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # torchrun makes directories for logs as it reads flags
    (tmp_path / "train.py").touch()
    (tmp_path / "package_dir").mkdir()
    (tmp_path / "package_dir" / "__main__.py").touch()
    (tmp_path / "empty_dir").mkdir()
    return tmp_path


def split(line: str, here: Path) -> list[str]:
    return line.replace("{script}", str(here / "train.py")).split()


def theirs(argv: list[str]) -> dict[str, Any] | str:
    """What torchrun's own code makes of it, up to where it would start the agent."""
    try:
        args = torchrun.parse_args(argv)
        standalone = args.standalone
        config, command, rest = torchrun.config_from_args(args)
    except SystemExit:
        return USAGE
    except (ValueError, RuntimeError, AssertionError, NotADirectoryError):
        return REFUSED
    specs = config.logs_specs
    alone = standalone or (args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None)
    return {
        "nodes": (config.min_nodes, config.max_nodes),
        "nproc": config.nproc_per_node,
        "role": config.role,
        "restarts": config.max_restarts,
        "job": None if standalone or (alone and config.max_nodes == 1) else config.run_id,
        "command": (command, *rest) if isinstance(command, str) else ("run_path", *rest),
        "local_addr": config.local_addr,
        "signals": tuple(config.signals_to_handle.split(",")),
        "shutdown": config.shutdown_timeout or 30,
        "virtual": config.virtual_local_rank,
        "numa": config.numa_options.affinity_mode.value if config.numa_options else None,
        "handler": config.event_log_handler,
        "log_dir": args.log_dir,
        "redirects": specs._redirects,
        "tee": specs._tee,
        "ranks": frozenset(specs._local_ranks_filter or ()),
        "filters": (tuple(config.duplicate_stdout_filters or ()), tuple(config.duplicate_stderr_filters or ())),
    }


def ours(argv: list[str]) -> dict[str, Any] | str:
    """What we make of it, up to where an agent would be started."""
    try:
        asked, _ = parse(argv, {**os.environ, "PATH": os.environ["PATH"]})
    except SystemExit:
        return USAGE
    except ValueError:
        return REFUSED
    logs = asked.logs
    python = (sys.executable, "-u", "-m", "outlast.worker.run_path")
    runs_path = asked.command[:4] == python
    return {
        "nodes": (asked.min_nodes, asked.max_nodes),
        "nproc": asked.nproc,
        "role": asked.role,
        "restarts": asked.max_restarts,
        "job": None if asked.endpoint.port == 0 and len(asked.job) == 36 else asked.job,
        "command": ("run_path", *asked.command[4:]) if runs_path else asked.command,
        "local_addr": asked.local_addr,
        "signals": asked.signals,
        "shutdown": asked.shutdown_timeout,
        "virtual": asked.virtual_local_rank,
        "numa": asked.numa_binding,
        "handler": asked.event_log_handler,
        "log_dir": logs.log_dir,
        "redirects": _plain(logs.redirects),
        "tee": _plain(logs.tee),
        "ranks": logs.ranks,
        "filters": (logs.stdout_filters, logs.stderr_filters),
    }


def _plain(streams: Std | dict[int, Std]) -> object:
    return {rank: int(std) for rank, std in streams.items()} if isinstance(streams, dict) else int(streams)


def test_there_are_enough_of_them() -> None:
    assert len(ALIKE) + len(WRONG) >= 54


@pytest.mark.parametrize("line", ALIKE)
def test_both_run_the_same(line: str, here: Path) -> None:
    argv = split(line, here)
    assert isinstance(theirs(argv), dict)
    assert ours(argv) == theirs(argv)


@pytest.mark.parametrize(("line", "how"), WRONG)
def test_both_refuse_it_in_the_same_way(line: str, how: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = split(line, here)
    assert theirs(argv) == how
    capsys.readouterr()
    assert ours(argv) == how
    assert len(capsys.readouterr().err.splitlines()) <= 1


@pytest.mark.parametrize(("line", "why"), STRICTER)
def test_what_cannot_work_is_refused_before_anything_is_started(line: str, why: str, here: Path) -> None:
    argv = split(line, here)
    assert isinstance(theirs(argv), dict), why
    assert ours(argv) == REFUSED
