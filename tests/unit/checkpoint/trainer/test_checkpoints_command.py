"""`outlast checkpoints`: what a person sees, and the exit codes that a script sees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.checkpoint.memory.arena import Arena
from outlast.checkpoint.storage.persist import persist
from outlast.cli import main
from snapshots import fill, mark, ticket


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Checkpoints of steps 1, 2 and 3."""
    arena = Arena(tmp_path / "arena", 0)
    for step in (1, 2, 3):
        slot = fill(arena, step, mark(step - 1), directory=str(tmp_path / "ck"), durable=True)
        persist([slot.path], ticket(step))
    yield tmp_path / "ck"
    arena.close()


def run(*words: object) -> int:
    return main(["checkpoints", *map(str, words)])


def test_list_names_them_the_newest_first(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", directory) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["checkpoint", "step-00000003", "step-00000002", "step-00000001"]
    assert "1.0 MiB" in lines[1]


def test_list_says_what_a_look_at_the_directory_tells(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(directory / "step-00000002" / "__0_0.distcp", 7)
    (directory / "step-00000003" / "manifest.json").unlink()
    assert run("list", directory) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "DAMAGED" in lines[1]
    assert "has 7 bytes, not 1048576" in lines[2]
    assert "DAMAGED" not in lines[3]


def test_verify_reads_every_byte(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", directory) == 0
    with open(directory / "step-00000002" / "__0_0.distcp", "r+b") as file:
        file.seek(1000)
        file.write(b"x")
    assert run("list", directory) == 0
    capsys.readouterr()
    assert run("verify", directory) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] == "whole" for line in lines] == [True, False, True]
    assert "__0_0.distcp is damaged in chunk 0" in lines[1]
    assert run("verify", directory / "step-00000003") == 0
    assert run("verify", directory, "--step=2") == 1


def test_show_says_where_it_is_from(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", directory / "step-00000003") == 0
    out = capsys.readouterr().out
    assert "step 3, saved" in out
    assert "generation 1, run ab, save 3" in out
    assert "__0_0.distcp" in out


def test_prune_keeps_the_newest(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prune", directory, "--keep-last=1") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 left"
    assert [path.name for path in directory.glob("step-*")] == ["step-00000003"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "absent"], "absent is not a directory: give the one that outlast.Checkpointer was given"),
        (["list", "."], "holds no checkpoints of Outlast"),
        (["verify", "ck", "--step=9"], "has no checkpoint of step 9; there are: 3, 2, 1"),
        (["prune", "ck"], "prune needs --keep-last"),
        (["prune", "ck", "--keep-last=0"], "prune needs --keep-last"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    directory: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory.parent)
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert len(list(directory.glob("step-*"))) == 3
