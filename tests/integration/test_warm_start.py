"""Workers that are forked from a zygote: as good as new ones, and nothing of it is left when the job is over.

What a forked worker sees and how it ends is held, process by process, in tests/unit/test_zygote.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import outlast as package
from jobs import SCRIPTS, free_port, job
from processes import Process, await_exit, describe

DEBUG = {"OUTLAST_LOG_LEVEL": "debug"}
READY = "the zygote is ready"
OF_THE_LAUNCHER = ("OUTLAST_GENERATION", "OUTLAST_WORKER_GROUP", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")

# What stands for torch where only its imports matter: everything that a zygote begins with, and a step to take.
TORCH = {
    "torch/__init__.py": "import torch.optim.optimizer",
    "torch/distributed.py": "",
    "torch/nn/__init__.py": "",
    "torch/nn/parallel.py": "",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n"
    "def step():\n    for hook in hooks:\n        hook(None, (), {})\n",
    "torch/utils/__init__.py": "",
    "torch/utils/data.py": "",
    "torch/_dynamo.py": "",
    "numpy/__init__.py": "",
}
IN_ZYGOTE = "import os\nif os.readlink('/proc/self/fd/1') == '/dev/null':\n    "


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """`installed({"package.py": code})` gives the Python of an environment with Outlast, these, and a light torch."""

    def install(files: dict[str, str]) -> Path:
        place = tmp_path / "environment"
        venv.EnvBuilder(symlinks=True).create(place)
        (site_packages,) = place.glob("lib/python*/site-packages")
        ours = [Path(pytest.__file__).parents[1], Path(package.__file__).parents[1]]
        (site_packages / "ours.pth").write_text("".join(f"{path}\n" for path in ours))
        for name, code in {**TORCH, **files}.items():
            (site_packages / name).parent.mkdir(parents=True, exist_ok=True)
            (site_packages / name).write_text(code)
        return place / "bin" / "python"

    return install


def light_job(python: Path, *flags: str, modules: Sequence[str] = (), env: dict[str, str] | None = None) -> Process:
    command = [python, "-m", "outlast", "run", "--max-restarts=3", *flags, SCRIPTS / "warm_learns.py", *modules]
    return Process(command, env={**DEBUG, **(env or {})})


def started(process: Process, generation: int) -> tuple[int, list[str]]:
    """Await the worker of a generation: its pid, and which modules it found imported."""
    match = process.wait_for(rf"generation {generation}: pid (\d+) parent (\d+) had \[(.*)\]", anywhere=True)
    return int(match[1]), match[3].split()


def zygotes(process: Process) -> list[int]:
    return [pid for pid in process.tree() if "outlast: zygote" in describe(pid)]


# -- with torch


def test_a_worker_that_was_forked_computes_as_one_that_was_started_and_as_plain_python(tmp_path: Path) -> None:
    probe = SCRIPTS / "warm_probe.py"
    plain = Process([sys.executable, "-u", probe, tmp_path], env={"OMP_NUM_THREADS": None})
    assert plain.wait(120) == 0, plain.output
    with job("--max-restarts=1", script=probe, args=[tmp_path], env={**DEBUG, "OMP_NUM_THREADS": None}) as process:
        worker = int(process.wait_for(r"generation 1 is done, pid (\d+)", 120, anywhere=True)[1])
        process.wait_for(READY, 120)
        os.kill(worker, signal.SIGKILL)
        assert process.wait(120) == 0, process.output
    seen = {name: json.loads((tmp_path / name).read_text()) for name in ("plain", "1", "2")}
    assert [seen[name].pop("warm")["warm"] for name in seen] == [False, False, True]
    place = {name: seen[name].pop("place") for name in seen}
    for kind in seen["plain"]:
        for generation in ("1", "2"):
            assert differences(seen["plain"][kind], seen[generation][kind]) == {}, f"{kind} in generation {generation}"
    for generation in ("1", "2"):
        assert place[generation]["parent"] == process.pid
        assert place[generation]["leads"]
        assert place[generation]["death_signal"] == signal.SIGKILL
    cold, forked = ({k: v for k, v in place[g]["environment"].items() if k not in OF_THE_LAUNCHER} for g in ("1", "2"))
    assert differences(cold, forked).keys() <= {
        "OUTLAST_ARENA",
        "OUTLAST_BOARD",
        "OUTLAST_DESK",
        "TORCHELASTIC_ERROR_FILE",
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    assert one.keys() == other.keys()
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def test_two_workers_that_were_forked_train_together_and_share_no_random_numbers() -> None:
    said = r"rank {} of generation {}: pid (\d+) warm (\w+) drew (\S+) (\S+) seed (\d+) threads (\d+) gradient (\S+)"
    with job("--nproc-per-node=2", "--max-restarts=1", script=SCRIPTS / "warm_pair.py", env=DEBUG) as process:
        first = [process.wait_for(said.format(rank, 1), 120, anywhere=True).groups() for rank in (0, 1)]
        process.wait_for(READY, 120)
        os.kill(int(first[1][0]), signal.SIGKILL)
        second = [process.wait_for(said.format(rank, 2), 120, anywhere=True).groups() for rank in (0, 1)]
        assert process.wait(60) == 0
    everybody = [*first, *second]
    assert [worker[1] for worker in everybody] == ["False", "False", "True", "True"]
    for column in (2, 3, 4):
        assert len({worker[column] for worker in everybody}) == 4
    # As the launcher gives each of several workers one thread.
    assert {worker[5:] for worker in everybody} == {("1", "0.5")}


def test_a_rank_that_comes_too_early_waits_for_rank_0_and_torch_is_not_refused(tmp_path: Path) -> None:
    said = r"rank 1 of generation {}: warm (\w+) pauses (\d+) pid (\d+)"
    script, env = SCRIPTS / "warm_early.py", {**DEBUG, "TORCH_CPP_LOG_LEVEL": "WARNING"}
    with job("--nproc-per-node=2", "--max-restarts=1", script=script, args=[tmp_path], env=env) as process:
        first = process.wait_for(said.format(1), 120, anywhere=True)
        process.wait_for(READY, 120)
        os.kill(int(first[3]), signal.SIGKILL)
        second = process.wait_for(said.format(2), 120, anywhere=True)
        assert process.wait(60) == 0
    assert [first[1], second[1]] == ["False", "True"]
    assert int(first[2]) > 0
    assert int(second[2]) > 0
    # Neither rank 1 nor the store complains, but for torch's that no name server is there to ask who it was.
    assert not [line for line in process.lines if "socket" in line and "hostname of the client" not in line]


IGNORES = """
import os, signal, sys
names = [each.name for each in sorted(signal.valid_signals()) if signal.getsignal(each) is signal.SIG_IGN]
forked = "torch" in sys.modules
import torch
print(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']} ignores {names}, pid {os.getpid()}, forked {forked}")
if "wait" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    signal.pause()
"""


def test_workers_ignore_what_they_would_under_torchrun_forked_or_not(
    installed: Callable[[dict[str, str]], Path], tmp_path: Path
) -> None:
    """As a shell's `&` and `nohup` leave it: the launcher's own signals are handled, and so default in workers."""
    script = tmp_path / "ignores.py"
    script.write_text(IGNORES)
    shell = ["sh", "-c", 'trap "" INT HUP USR1 TSTP; exec "$@"', "sh"]
    seen = {}
    for name, command in {
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", script],
        "not forked": [installed({}), "-m", "outlast", "run", "--standalone", "--warm-start=false", script],
    }.items():
        with Process([*shell, *command]) as process:
            seen[name] = process.wait_for("restart 0 ignores (.*), pid .* forked False", anywhere=True)[1]
            assert process.wait() == 0, process.output
    command = [installed({}), "-m", "outlast", "run", "--standalone", "--max-restarts=1", script, "wait"]
    with Process([*shell, *command], env=DEBUG) as process:
        first = int(process.wait_for(r"restart 0 .*pid (\d+)", anywhere=True)[1])
        process.wait_for(READY, anywhere=True)
        os.kill(first, signal.SIGKILL)
        seen["forked"] = process.wait_for("restart 1 ignores (.*), pid .* forked True", anywhere=True)[1]
        assert process.wait() == 0, process.output
    assert seen["torchrun"] == "['SIGUSR1', 'SIGPIPE', 'SIGTSTP', 'SIGXFSZ']"
    assert len(set(seen.values())) == 1, seen


# -- what it learns


def test_it_learns_what_workers_import_and_leaves_out_what_cannot_be_forked(
    installed: Callable[[dict[str, str]], Path], tmp_path: Path
) -> None:
    bad = {
        "threaded": f"import threading, time\n{IN_ZYGOTE}threading.Thread(target=time.sleep, args=[1000]).start()",
        "fatal": f"{IN_ZYGOTE}os._exit(0)",
        "crash": f"import ctypes\n{IN_ZYGOTE}ctypes.string_at(0)",
        "raises": f"{IN_ZYGOTE}raise RuntimeError('not here')",
        "leaves": f"{IN_ZYGOTE}raise SystemExit",
        "ranked": "import os\nrank = os.environ['RANK']",
    }
    good = {"good/__init__.py": "from good import inner", "good/inner.py": "", "last.py": ""}
    python = installed({**{f"{name}.py": code for name, code in bad.items()}, **good})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").touch()
    modules = ["good", "good.inner", *bad, "own", "last"]
    with light_job(python, modules=modules, env={"PYTHONPATH": str(tmp_path / "mine")}) as process:
        worker, there = started(process, 1)
        assert there == []
        for name in ("threaded", "fatal", "crash", "raises", "leaves", "ranked"):
            process.wait_for(f"the zygote skips {name}: ", anywhere=True)
        process.wait_for("the zygote skips ranked: ")
        process.wait_for(READY)
        os.kill(worker, signal.SIGKILL)
        worker, there = started(process, 2)
        assert there == ["good", "good.inner", "last"]
        os.kill(worker, signal.SIGUSR1)
        assert process.wait() == 0
    assert process.output.count("the zygote skips ") == len(bad)


def test_own_modules_are_imported_beforehand_only_when_asked_for(
    installed: Callable[[dict[str, str]], Path], tmp_path: Path
) -> None:
    (tmp_path / "own.py").touch()
    env = {"PYTHONPATH": str(tmp_path)}
    with light_job(installed({}), "--warm-preload=own", modules=["own"], env=env) as process:
        worker, _ = started(process, 1)
        process.wait_for(READY)
        os.kill(worker, signal.SIGKILL)
        worker, there = started(process, 2)
        assert there == ["own"]
        os.kill(worker, signal.SIGUSR1)
        assert process.wait() == 0


def test_a_node_that_is_to_be_warm_when_it_joins_has_its_first_workers_forked(
    installed: Callable[[dict[str, str]], Path],
) -> None:
    """Also where a Kubernetes or a Slurm has given the node a rank: whatever copies its environment reads that."""
    copies = "import os, time\ntime.sleep(0.5)\ndict(os.environ)"
    python = installed({"torch/distributed.py": copies})
    with light_job(python, "--ft-warm-join=60", modules=["torch.nn"], env={"GROUP_RANK": "0", "RANK": "0"}) as process:
        worker, there = started(process, 1)
        assert there == ["torch.nn"]
        assert process.output.index(READY) < process.output.index("generation 1: started")
        assert "the zygote skips" not in process.output
        os.kill(worker, signal.SIGUSR1)
        assert process.wait() == 0


# -- when there is none


@pytest.mark.parametrize("how", ["--warm-start=off", "PYTHON_EXEC", "--no-python"])
def test_without_a_zygote_workers_are_what_the_command_line_says(
    how: str, installed: Callable[[dict[str, str]], Path]
) -> None:
    python = installed({})
    script, env = SCRIPTS / "warm_learns.py", dict(DEBUG)
    other = python.with_name("other-python")  # of the same environment
    other.symlink_to(python)
    flags, command = [how], [str(python), "-u", str(script)]
    if how == "PYTHON_EXEC":
        flags, env, command = [], {**env, how: str(other)}, [str(other), "-u", str(script)]
    elif how == "--warm-start=off":
        flags.append("--ft-step-hook=off")  # which is the other thing that begins before the script
    elif how == "--no-python":
        flags, command = [how, str(python)], [str(python), str(script)]
    with Process([python, "-m", "outlast", "run", "--max-restarts=1", *flags, script], env=env) as process:
        worker, _ = started(process, 1)
        assert Path(f"/proc/{worker}/cmdline").read_text().split("\0")[:-1] == command
        assert b"OUTLAST_STARTUP" not in Path(f"/proc/{worker}/environ").read_bytes()
        assert len(process.tree()) == 3  # agent, coordinator, worker
        os.kill(worker, signal.SIGKILL)
        worker, _ = started(process, 2)
        assert len(process.tree()) == 3
        os.kill(worker, signal.SIGUSR1)
        assert process.wait() == 0
    assert "zygote" not in process.output


# -- when something happens to it


def test_a_zygote_that_is_killed_is_replaced_and_the_worker_does_not_notice(
    installed: Callable[[dict[str, str]], Path],
) -> None:
    with light_job(installed({})) as process:
        worker, _ = started(process, 1)
        process.wait_for(READY)
        os.kill(worker, signal.SIGKILL)
        worker, _ = started(process, 2)  # a child of the zygote's, once
        (zygote,) = zygotes(process)
        os.kill(zygote, signal.SIGKILL)
        process.wait_for(READY)
        assert zygotes(process) != [zygote]
        os.kill(worker, signal.SIGUSR1)
        assert process.wait() == 0
    assert "generation 3" not in process.output


def test_a_zygote_that_is_stopped_holds_up_neither_a_restart_nor_the_lease(
    installed: Callable[[dict[str, str]], Path],
) -> None:
    """Two nodes: the other one would go on without this one, were it silent for 15 s; it is for one."""
    python, port = installed({}), free_port()

    def node(name: str) -> Process:
        meeting = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--ft-node-name={name}")
        return light_job(python, *meeting, "--node-timeout=20")

    with node("a") as a, node("b") as b:
        started(a, 1)
        worker, _ = started(b, 1)
        a.wait_for(READY)
        b.wait_for(READY)
        (zygote,) = zygotes(b)
        os.kill(zygote, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        for process in (a, b):
            worker, _ = started(process, 2)
            os.kill(worker, signal.SIGUSR1)
        assert (a.wait(), b.wait()) == (0, 0)
    assert "the zygote is unfit, it did not answer" in b.output
    assert not [line for line in (*a.lines, *b.lines) if "lost" in line or "nothing heard" in line]


def test_a_restart_while_it_learns_is_a_warm_one_and_nothing_is_left_of_either_zygote(
    installed: Callable[[dict[str, str]], Path], tmp_path: Path
) -> None:
    for name in ("begun", "released"):
        os.mkfifo(tmp_path / name)
    slow = f"{IN_ZYGOTE}open({str(tmp_path / 'begun')!r}, 'w').close(); open({str(tmp_path / 'released')!r}).read()"
    python = installed({"slow.py": slow, "quick.py": ""})
    with light_job(python, "--warm-preload=quick", modules=["quick", "slow"]) as process:
        worker, _ = started(process, 1)
        process.wait_for(READY)
        (tmp_path / "begun").read_text()
        os.kill(worker, signal.SIGKILL)
        worker, there = started(process, 2)
        assert there == ["quick"]
        assert len(zygotes(process)) == 2
        (tmp_path / "released").write_text("")
        process.wait_for(READY)
        assert len(zygotes(process)) == 1
        os.kill(worker, signal.SIGKILL)
        worker, there = started(process, 3)
        assert there == ["quick", "slow"]
        left = process.tree()
        process.signal(signal.SIGKILL)
        process.wait()
        assert await_exit(left, 120) == []


@pytest.mark.parametrize("how", ["the agent is killed", "Ctrl-C", "SIGTERM", "the worker fails"])
def test_no_zygote_outlives_its_job(how: str, installed: Callable[[dict[str, str]], Path]) -> None:
    with light_job(installed({}), "--max-restarts=0") as process:
        worker, _ = started(process, 1)
        process.wait_for(READY)
        left = process.tree()
        assert zygotes(process)
        if how == "the worker fails":
            os.kill(worker, signal.SIGKILL)
        else:
            process.signal({"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}.get(how, signal.SIGKILL))
        process.wait()
        assert await_exit(left, 120) == []
