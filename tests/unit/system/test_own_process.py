"""Processes of our own take no module from the current directory, where anybody may have put one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import outlast
from outlast.system import own_process

SOURCE = Path(outlast.__file__).parent
# The user's program, which finds its modules as Python does; a path for batch scripts; two that are started with -I.
OTHERS = {
    "cli/request.py",
    "cli/check.py",
    "cli/submit.py",
    "agent/monitoring/checker.py",
    "agent/monitoring/stacks.py",
}
ISOLATED = {"agent/supervisor.py", "agent/processes/guard.py"}
TARGETS = [
    (path.relative_to(SOURCE).as_posix(), target)
    for path in sorted(SOURCE.rglob("*.py"))
    for target in re.findall(r"\"(outlast\.[\w.]+:\w+)\"", path.read_text())
    if path.name != "own_process.py"
]
HOSTILE = ("queue", "socket", "json", "logging", "msgspec", "signal", "subprocess", "struct", "threading", "outlast")


def test_all_are_started_the_same_way() -> None:
    named = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if "sys.executable" in path.read_text()
    }
    assert named <= {"system/own_process.py", "workloads/torch_job.py"} | OTHERS | ISOLATED
    assert len(TARGETS) >= 6


@pytest.mark.parametrize("target", [target for _, target in TARGETS] + ["outlast.agent.snapshots.keeper_process:run"])
def test_what_lies_in_the_current_directory_is_not_run(target: str, tmp_path: Path) -> None:
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('ran {name}.py')")
    *imports, _ = own_process.program(target).split("; ")  # without the call
    program = "; ".join([*imports, "print('imported')"])
    # An empty or relative entry of PYTHONPATH is the user's own wish, and leads to the current directory.
    path = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    ended = subprocess.run(
        [own_process.command(target)[0], "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "ran " not in ended.stderr, ended.stderr
    assert ended.stdout.startswith("imported"), ended.stderr


def test_the_very_same_would_run_otherwise(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('ran queue.py')")
    python = own_process.command("x:y")[0]
    ended = subprocess.run([python, "-m", "queue"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "ran queue.py" in ended.stderr
