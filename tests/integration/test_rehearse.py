"""`outlast rehearse` on scripts whose flaws are known: each is found and named, and a script without one passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs import SCRIPTS
from processes import Process, outlast

REHEARSED = SCRIPTS / "rehearsed.py"
EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 500.0


def rehearse(tmp_path: Path, *args: str | Path) -> Process:
    process = outlast("rehearse", f"--output={tmp_path / 'page.html'}", *args, cwd=tmp_path)
    process.wait(PATIENCE)
    return process


def told(process: Process) -> dict[str, Any]:
    lines = [line for line in process.lines if line.startswith("{")]
    assert len(lines) == 1, process.output
    found: dict[str, Any] = json.loads(lines[0])
    return found


def test_a_script_that_saves_and_loads_everything_survives_a_kill_to_the_bit(tmp_path: Path) -> None:
    process = rehearse(tmp_path, "--only=kill", REHEARSED, "--epochs=2")
    assert process.returncode == 0, process.output
    assert "survives, and trains exactly" in process.output
    [row] = [line for line in process.lines if line.startswith("kill  ")]
    assert "on from" in row
    assert "to the bit" in row
    assert "exact" in row
    assert "survives" in (tmp_path / "page.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]  # the script's files lie elsewhere


def test_an_optimizer_that_is_not_saved_is_found_with_the_line(tmp_path: Path) -> None:
    process = rehearse(tmp_path, "--json", "--only=kill", REHEARSED, "--epochs=2", "--flaw=no-optimizer")
    assert process.returncode == 1, process.output
    [finding] = [each for each in told(process)["findings"] if each["problem"]]
    assert finding["kind"] == "optimizer-not-restored"
    path, _, number = finding["line"].rpartition(":")
    assert Path(path) == REHEARSED
    assert "torch.save(" in REHEARSED.read_text().splitlines()[int(number) - 1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flaw", "only", "kind", "line"),
    [
        ("unseeded", "again", "unseeded-shuffle", "DataLoader("),
        ("no-barrier", "slow-save", "read-while-written", "torch.save("),
        ("skips-data", "kill", "samples", "DataLoader("),
        ("ignores-sigterm", "fewer-nodes", "ignores-sigterm", "signal.signal("),
        ("not-atomic", "kill-in-save", "save-not-atomic", "torch.save("),
        ("not-atomic", "damage", "damaged-checkpoint", "torch.load("),
        ("saves-nothing", "kill", "starts-over", ""),
    ],
)
def test_a_flaw_is_found_and_named_with_its_line(tmp_path: Path, flaw: str, only: str, kind: str, line: str) -> None:
    process = rehearse(tmp_path, "--json", f"--only={only}", REHEARSED, f"--flaw={flaw}")
    assert process.returncode == 1, process.output
    [finding] = [each for each in told(process)["findings"] if each["kind"] == kind]
    assert finding["problem"]
    assert finding["change"]
    if line:
        assert line in REHEARSED.read_text().splitlines()[int(finding["line"].rpartition(":")[2]) - 1]


@pytest.mark.thorough
@pytest.mark.parametrize("only", ["kill,slow-save,lost-node", "hang,damage,kill-in-save"])
def test_a_script_without_a_flaw_survives_everything_on_its_nodes(tmp_path: Path, only: str) -> None:
    process = rehearse(tmp_path, "--json", f"--only={only}", REHEARSED)
    assert process.returncode == 0, process.output
    assert set(told(process)["runs"].values()) == {"finished"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "--steps=40"],
        ["fsdp_elastic.py", "--checkpoints={scratch}/checkpoints", "--width=16", "--depth=1", "--lines=200"],
    ],
)
def test_our_examples_survive(tmp_path: Path, command: list[str]) -> None:
    script, *args = command
    runs = "--only=again,kill,lost-node,fewer-nodes,hang"
    process = rehearse(tmp_path, "--json", runs, EXAMPLES / script, *args)
    assert process.returncode == 0, process.output


def test_what_cannot_be_rehearsed_is_said_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("import os; print('no training')")
    process = rehearse(tmp_path, empty)
    assert process.returncode == 2
    assert "only 0 steps of torch's optimizers were seen" in process.lines[-1]
    for args, line in (
        (["--only=kil", empty], "--only: there is no run 'kil'"),
        (["--nodes=0", empty], "must be 1 or more"),
        (["gone.py"], "there is no script gone.py"),
        (["--link=gone", empty], "--link: there is no"),
    ):
        process = rehearse(tmp_path, *args)
        assert process.returncode == 2
        assert line in process.lines[-1]
