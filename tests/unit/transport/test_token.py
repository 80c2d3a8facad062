"""Where a job's token comes from, and who can read it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from outlast.cli import main
from outlast.launch import Endpoint
from outlast.transport import token

PORT = 45678


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def leave(secret: str) -> Path:
    return token.leave(token.Record("job", Endpoint("127.0.0.1", PORT), secret))


def test_every_token_is_new_and_long_enough_to_be_taken() -> None:
    tokens = {token.make() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(each) >= 16 for each in tokens)


def test_the_command_prints_one_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token"]) == 0
    assert len(capsys.readouterr().out.strip()) == 32
    with pytest.raises(SystemExit) as usage:
        main(["token", "please"])
    assert usage.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_token_that_was_left_is_found_by_its_port_alone() -> None:
    path = leave("secret")
    assert token.find(PORT) == "secret"
    assert token.find(PORT + 1) is None
    path.unlink()
    assert token.find(PORT) is None


def test_a_token_that_was_left_is_for_this_user_alone() -> None:
    path = leave("secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_newer_token_takes_the_place_of_an_older_one_and_no_draft_is_left() -> None:
    leave("old")
    path = leave("new")
    assert token.find(PORT) == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    """In a shared temporary directory somebody else may have been there first."""
    plain = tmp_path / f"outlast-{os.getuid()}"
    plain.mkdir(mode=0o700)
    plain.chmod(0o777)
    assert leave("secret").parent != plain
    plain.rmdir()
    plain.symlink_to(tmp_path)
    assert token.find(PORT) == "secret"
    assert leave("newer").parent not in (plain, tmp_path)


def test_the_message_for_a_missing_token_says_what_to_do() -> None:
    message = str(token.required(Endpoint("10.0.0.1", PORT)))
    assert "10.0.0.1:45678" in message
    assert "OUTLAST_TOKEN" in message
    assert "--no-auth" in message
    assert "\n" not in message
