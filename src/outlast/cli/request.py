"""What the flags of `outlast run` ask for, checked and read into plain data."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from outlast import rulebook
from outlast.agent.postmortem.extension import check_reference
from outlast.checks.accelerator import reference_of
from outlast.cli.endpoints import C10D_PORT, endpoint_of, host_of
from outlast.cli.flags import STATIC_PORT, given_settings, parser
from outlast.cli.meeting import meet_in_step, own_token, with_token
from outlast.cli.roles import roles_of
from outlast.launch import Endpoint, Launch, Logs, Std
from outlast.protocol.roles import TaskRole
from outlast.settings.loading import Loaded, load
from outlast.settings.values import nearest, truth
from outlast.signatures import catalogue

_MOST, _MOST_WORKERS, _LONGEST = 2**31 - 1, 4096, 255
_EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")  # those that torch itself registers

# Asked in a Python of its own: importing torch here would cost the agent its start and its memory.
_COUNT_DEVICES = """
import os, sys
del sys.path[0]  # the current directory, where a torch.py may lie
import torch
kind, cpus = sys.argv[1], len(os.sched_getaffinity(0))
if kind == "auto":
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else cpus
elif kind in ("gpu", "xpu"):
    device = torch.cuda if kind == "gpu" else torch.xpu
    count = device.device_count() if device.is_available() else 0
elif kind == torch._C._get_privateuse1_backend_name():
    device = getattr(torch, kind, None)
    count = device.device_count() if device and device.is_available() else 0
else:
    count = "unknown"
print(count)
"""


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> tuple[Launch, Loaded]:
    """Reads the command line of `outlast run`.

    Raises ValueError, in one line that names the flag to change, for values that cannot be meant; as any
    argparse parser it ends the process with code 2 for flags that do not exist.
    """
    # argparse keeps what the namespace has: so None is left only where nobody has given a rank.
    given = {"PET_NODE_RANK": "node_rank", "PET_NNODES": "nnodes"}
    not_given = {name: None for variable, name in given.items() if variable not in environ}
    args = parser(environ).read(argv, argparse.Namespace(**not_given))
    least = nnodes_of(args.nnodes)[0] if args.nnodes is not None else 1
    step = meet_in_step(args, least, environ)
    conf = _conf(args.rdzv_conf)
    is_host = _ishost_of(conf.pop("is_host", None))
    loaded = load(given_settings(args), environ, args.ft_cfg_path, conf)
    if loaded.settings.signatures:
        catalogue(loaded.settings.signatures)
    rulebook.read(loaded.settings.failover_rules)
    if loaded.settings.dynamic_failover_extension:
        try:
            check_reference(loaded.settings.dynamic_failover_extension)
        except ValueError as error:
            raise ValueError(f"{loaded.origins['dynamic_failover_extension']} {error}") from None
    _check_verdict(loaded)
    check_checks(loaded)
    loaded = with_token(loaded, create=True, step=step)
    low, high = nnodes_of(args.nnodes)
    _check_unit(low, high, loaded)
    for flag, number in (("--max-restarts", args.max_restarts), ("--node-rank", args.node_rank or 0)):
        if not 0 <= number <= _MOST:
            raise ValueError(f"{flag} must be 0 or more and at most {_MOST}, not {number}")
    for flag, text in (("--rdzv-id", args.rdzv_id), ("--role", args.role)):
        if not text.isprintable() or len(text) > _LONGEST:
            raise ValueError(f"{flag} must be text of at most {_LONGEST} characters, not {text[:80]!r}")
    if not loaded.settings.node_name.isprintable() or len(loaded.settings.node_name) > _LONGEST:
        raise ValueError(f"node_name must be text of at most {_LONGEST} characters")
    command = _command(args, environ)
    others = _others(args)
    job, endpoint, host, node_rank = _meeting(args, low, high)
    host = host if step is None else step.rank == 0
    store_port = _store_port(args, high)
    if store_port:
        endpoint, host = Endpoint("127.0.0.1", 0), True
    if endpoint.port == 0 and is_host is False:
        raise ValueError("--rdzv-conf is_host=0 needs a port in --rdzv-endpoint at which another node listens")
    roles = _roles(args, high, environ)
    nproc = sum(role.count for role in roles) or nproc_of(args.nproc_per_node, environ)
    launch = Launch(
        job=job,
        min_nodes=low,
        max_nodes=high,
        nproc=nproc,
        role=args.role,
        command=command,
        entrypoint=args.training_script,
        endpoint=endpoint,
        others=others,
        host=host if is_host is None else is_host,
        store_port=store_port,
        node_rank=node_rank,
        local_addr=host_of("--local-addr", args.local_addr) if args.local_addr else None,
        max_restarts=args.max_restarts,
        signals=_signals(args.signals_to_handle),
        shutdown_timeout=_shutdown_timeout(args.shutdown_timeout, environ),
        virtual_local_rank=args.virtual_local_rank,
        numa_binding=args.numa_binding,
        event_log_handler=_event_log_handler(args.event_log_handler),
        omp_default=nproc > 1 and not roles and "OMP_NUM_THREADS" not in environ,
        logs=_logs(args, environ),
        own_token=own_token(loaded, step),
        roles=roles,
    )
    return launch, loaded


def _roles(args: argparse.Namespace, high: int, environ: Mapping[str, str]) -> tuple[TaskRole, ...]:
    texts = getattr(args, "roles", [])
    if not texts:
        return ()
    if high > 1:
        raise ValueError(f"--role NAME=COUNT runs all tasks on one node; drop --nnodes={args.nnodes}")
    if args.nproc_per_node != "1":
        raise ValueError("--role NAME=COUNT says how many tasks there are; drop --nproc-per-node")
    for flag in ("numa_binding", "virtual_local_rank"):
        if getattr(args, flag):
            raise ValueError(f"--{flag.replace('_', '-')} is for workers that are alike; drop it, or --role NAME=COUNT")

    def command_of(words: Sequence[str]) -> tuple[str, ...]:
        asked = argparse.Namespace(**{**vars(args), "training_script": words[0], "training_script_args": words[1:]})
        return _command(asked, environ)

    return roles_of(texts, command_of)


def _event_log_handler(name: str) -> str:
    # A program that has torch loaded may have registered more.
    torchs = sys.modules.get("torch.distributed.elastic.events.handlers")
    known = {**dict.fromkeys(_EVENT_LOG_HANDLERS), **getattr(torchs, "_log_handlers", {})}
    if name not in known:
        raise ValueError(f"--event-log-handler is one of {', '.join(known)}, not {name!r}")
    return name


def nnodes_of(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not found:
        raise ValueError(f"--nnodes must be a number of nodes or MIN:MAX, not {text!r}")
    low, high = int(found[1]), int(found[2] or found[1])
    if low < 1:
        raise ValueError(f"--nnodes must be 1 node or more, not {text!r}")
    if low > high:
        raise ValueError(f"--nnodes={text} asks for more nodes at least than at most; give --nnodes={high}:{low}")
    return low, high


def _check_unit(low: int, high: int, loaded: Loaded) -> None:
    unit = loaded.settings.node_unit
    if high // unit * unit < low:
        raise ValueError(
            f"{loaded.origins['node_unit']}: no multiple of node_unit {unit} lies within --nnodes={low}:{high}; "
            "change one of them"
        )


def _check_verdict(loaded: Loaded) -> None:
    place = Path(loaded.settings.verdict).absolute().parent
    if loaded.settings.verdict and not place.is_dir():
        raise ValueError(f"{loaded.origins['verdict']}: there is no directory {place}; make it, or give another path")


def check_checks(loaded: Loaded) -> None:
    """Raises ValueError, in one line, for what no check can use."""
    settings = loaded.settings
    if settings.accelerator != "auto":
        try:
            reference_of(settings.accelerator)
        except ValueError as error:
            raise ValueError(f"{loaded.origins['accelerator']} {error}") from None
    if settings.check_path and not Path(settings.check_path).is_dir():
        raise ValueError(f"{loaded.origins['check_path']}: there is no directory {settings.check_path}; make it first")


def _conf(text: str) -> dict[str, str]:
    conf = {}
    text = _unquoted(text)
    for item in text.split(",") if text else ():
        key, _, value = (_unquoted(part) for part in item.partition("="))
        if not (key and value):
            raise ValueError(f"--rdzv-conf must be KEY=VALUE,…, not {item!r}")
        conf[key] = value
    return conf


def _unquoted(text: str) -> str:
    """Without the quotes that a shell has left there, as in `--rdzv-conf="'timeout=5'"`."""
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1].strip() if quoted else text


def _ishost_of(text: str | None) -> bool | None:
    if text is None:
        return None
    # torchrun takes single letters too.
    word = truth({"t": "true", "y": "yes", "f": "false", "n": "no"}.get(text.lower(), text))
    if word is None:
        raise ValueError(f"--rdzv-conf: is_host must be true or false, not {text!r}")
    return word


def _meeting(args: argparse.Namespace, low: int, high: int) -> tuple[str, Endpoint, bool | None, int | None]:
    """The job's name, where its nodes meet, whether this one hosts that place, and the rank it was given."""
    nowhere = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    if args.standalone and low > 1:
        raise ValueError(f"--standalone is a job on this machine alone; drop it or --nnodes={args.nnodes}")
    if args.standalone or (nowhere and high == 1):
        return str(uuid.uuid4()), Endpoint("127.0.0.1", 0), True, None
    job = args.rdzv_id or str(uuid.uuid4())
    if args.rdzv_backend == "c10d":
        # Ranks come from the line-up here, and torchrun too ignores a --node-rank.
        endpoint, node_rank, host = _c10d_endpoint(args, high), None, None
    else:
        endpoint, node_rank = _static_endpoint(args), args.node_rank
        host = None if node_rank is None else node_rank == 0
    if node_rank is not None and node_rank < 0:
        raise ValueError(f"--node-rank must be 0 or more, not {node_rank}")
    if endpoint.port == 0 and low > 1:
        raise ValueError("--rdzv-endpoint: port 0 is any free port, which other nodes cannot know; give one")
    return job, endpoint, True if endpoint.port == 0 else host, node_rank


def _store_port(args: argparse.Namespace, high: int) -> int:
    """The port that the user has chosen for the store, as under torchrun; 0: none.

    In a job of one node nobody else has to find the coordinator, so it can leave --master-port to the store.
    """
    chosen = args.rdzv_backend == "static" and not args.rdzv_endpoint and not args.standalone
    return args.master_port or 0 if chosen and high == 1 else 0


def _others(args: argparse.Namespace) -> tuple[Endpoint, ...]:
    """All but the first of `--rdzv-endpoint a,b,c`, which is left with the first."""
    first, *rest = (args.rdzv_endpoint or "").split(",")
    args.rdzv_endpoint = first.strip()
    default = STATIC_PORT if args.rdzv_backend == "static" else C10D_PORT
    others = tuple(endpoint_of("--rdzv-endpoint", text, default) for text in rest)
    if any(other.port == 0 for other in others):
        raise ValueError("--rdzv-endpoint: port 0 is any free port, which other nodes cannot know; give one")
    return others


def _c10d_endpoint(args: argparse.Namespace, high: int) -> Endpoint:
    if args.rdzv_endpoint:
        return endpoint_of("--rdzv-endpoint", args.rdzv_endpoint, C10D_PORT)
    if high > 1:
        raise ValueError(f"--nnodes={args.nnodes} needs --rdzv-endpoint host:port of one of your nodes")
    return Endpoint("127.0.0.1", 0)


def _static_endpoint(args: argparse.Namespace) -> Endpoint:
    backend = args.rdzv_backend
    if backend.startswith("etcd"):
        raise ValueError(
            f"--rdzv-backend={backend}: Outlast needs no etcd; "
            "use c10d and give --rdzv-endpoint host:port of one of your nodes"
        )
    if backend != "static":
        raise ValueError(f"--rdzv-backend must be static or c10d, not {backend!r}")
    if args.rdzv_endpoint:
        return endpoint_of("--rdzv-endpoint", args.rdzv_endpoint, STATIC_PORT)
    port = STATIC_PORT if args.master_port is None else args.master_port
    if not 0 <= port <= 65535:
        raise ValueError(f"--master-port must be a port from 0 to 65535, not {port}")
    return Endpoint(host_of("--master-addr", args.master_addr), port)


def nproc_of(text: str, environ: Mapping[str, str]) -> int:
    if re.fullmatch(r"[+-]?\d+", text):
        if not 1 <= int(text) <= _MOST_WORKERS:
            raise ValueError(f"--nproc-per-node must be 1 or more and at most {_MOST_WORKERS}, not {text}")
        return int(text)
    if text == "cpu":
        return len(os.sched_getaffinity(0))
    if not re.fullmatch(r"[A-Za-z_]\w*", text):
        raise ValueError(f"--nproc-per-node must be a number, auto, cpu, gpu or xpu, not {text!r}")
    ask = [_python(environ), "-c", _COUNT_DEVICES, text]
    try:
        asked = subprocess.run(ask, env=dict(environ), capture_output=True, text=True, timeout=300, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise ValueError(
            f"--nproc-per-node={text}: torch could not be asked for devices ({said[-1]}); give a number"
        ) from error
    # torch and its extensions may have printed before it.
    count = asked.stdout.split()[-1]
    if count == "unknown":
        raise ValueError(f"--nproc-per-node must be a number, auto, cpu, gpu or xpu, not {text!r}")
    if int(count) < 1:
        raise ValueError(f"--nproc-per-node={text}: torch sees no {text} on this machine; give a number or cpu")
    return int(count)


def _python(environ: Mapping[str, str]) -> str:
    python = environ.get("PYTHON_EXEC", sys.executable)
    if not shutil.which(python, path=environ.get("PATH")):
        raise ValueError(f"PYTHON_EXEC={python}: no such program; correct or unset it")
    return python


def _command(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, ...]:
    script, rest = args.training_script, args.training_script_args
    if args.run_path:
        if not Path(script).is_absolute():
            raise ValueError(f"--run-path needs an absolute path; give {Path(script).absolute()}")
        _check_script(script)
        return (_python(environ), "-u", "-m", "outlast.worker.run_path", script, *rest)
    if args.no_python:
        if args.module:
            raise ValueError("--no-python and --module (-m) do not go together; drop one")
        _check_program(script, environ)
        return (script, *rest)
    if args.module:
        _check_module(script, environ)
        return (_python(environ), "-u", "-m", script, *rest)
    _check_script(script)
    return (_python(environ), "-u", script, *rest)


def _check_script(script: str) -> None:
    path = Path(script)
    if not path.exists():
        raise ValueError(f"no script {path.absolute()}; correct the path, or give -m for a module")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise ValueError(f"{path.absolute()} is a directory without a __main__.py; give the script in it")
    if not os.access(path, os.R_OK):
        raise ValueError(f"the script {path.absolute()} cannot be read; chmod +r it, or run as a user who may")


def _check_module(module: str, environ: Mapping[str, str]) -> None:
    """Refuse a module whose package is nowhere. What lies below the package would have to be imported to know."""
    if _python(environ) != sys.executable:
        return  # it may have other packages
    package = module.partition(".")[0]
    importlib.invalidate_caches()
    beside = [str(Path.cwd()), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    if not (PathFinder.find_spec(package, beside) or importlib.util.find_spec(package)):
        raise ValueError(f"no module {package!r}; correct its name or PYTHONPATH, or drop -m for a script")


def _check_program(program: str, environ: Mapping[str, str]) -> None:
    if shutil.which(program, path=environ.get("PATH")):
        return
    if not Path(program).is_file():
        raise ValueError(f"--no-python: no program {program!r}; correct its name or PATH")
    if os.access(program, os.X_OK):
        raise ValueError(f"--no-python: {program!r} is not on PATH; give ./{program}")
    raise ValueError(f"--no-python: {program!r} is not executable; chmod +x it, or drop --no-python")


def _signals(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in signal.Signals.__members__:
            raise ValueError(f"--signals-to-handle: unknown signal {name!r}{nearest(name, signal.Signals.__members__)}")
        if name in ("SIGKILL", "SIGSTOP"):
            raise ValueError(f"--signals-to-handle: {name} cannot be handled by any process; drop it")
    return names


def _shutdown_timeout(given: int | None, environ: Mapping[str, str]) -> float:
    name, text = "--shutdown-timeout", str(given)
    if given is None:
        name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
        text = environ.get(name, "30").strip()
    if not text.isdecimal():
        raise ValueError(f"{name} must be a whole number of seconds, 0 or more, not {text!r}")
    return float(text)


def _logs(args: argparse.Namespace, environ: Mapping[str, str]) -> Logs:
    if args.log_dir is not None:
        _check_log_dir(Path(args.log_dir))
    specs = args.logs_specs
    if specs is not None and not metadata.entry_points(group="torchrun.logs_specs", name=specs):
        raise ValueError(f"--logs-specs: no entry point {specs!r} in the group torchrun.logs_specs; install it")
    return Logs(
        log_dir=args.log_dir,
        redirects=_std("--redirects", args.redirects),
        tee=_std("--tee", args.tee),
        ranks=_ranks(args.local_ranks_filter),
        stdout_filters=tuple(args.duplicate_stdout_filters),
        stderr_filters=tuple(args.duplicate_stderr_filters),
        prefix=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        specs=specs,
    )


def _check_log_dir(path: Path) -> None:
    if str(path) == os.devnull:
        return  # as under torchrun: no files at all
    for each in (path, *path.parents):
        if each.is_dir():
            return
        if each.exists():
            raise ValueError(f"--log-dir {path}: {each} is a file, not a directory; give another path")


def _std(flag: str, text: str) -> Std | dict[int, Std]:
    if re.fullmatch(r"[0-3]", text):
        return Std(int(text))
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(rank): Std(int(std)) for rank, std in pairs}
    raise ValueError(f"{flag} must be 0, 1, 2 or 3, or local ranks with one each as 0:1,1:3, not {text!r}")


def _ranks(text: str) -> frozenset[int]:
    if not text:
        return frozenset()
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise ValueError(f"--local-ranks-filter must be local ranks as 0,1,2, not {text!r}")
    return frozenset(map(int, text.split(",")))
