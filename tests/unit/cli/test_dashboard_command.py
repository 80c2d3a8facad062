"""`outlast dashboard`: what it says when it cannot show a job."""

from __future__ import annotations

import sys

import pytest

from jobs import free_port
from outlast.cli import main
from outlast.cli.dashboard import _page_token


def said(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["dashboard", *flags]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    return told[0]


def test_no_job_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    told = said(capsys, f"--endpoint=127.0.0.1:{port}")
    assert told.startswith(f"outlast dashboard: error: no job answers at 127.0.0.1:{port}")
    assert said(capsys).startswith("outlast dashboard: error: no job of yours runs on this machine: give --endpoint")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--host=0.0.0.0", "--no-token"], "--no-token is for this machine alone, and 0.0.0.0 can be reached"),
        (["--allow-actions", "--no-token"], "--allow-actions needs the token: remove --no-token"),
        (["--log-dir=/nowhere"], "--log-dir: there is no directory /nowhere"),
        (["--port=70000"], "--port must be 0 to 65535, not 70000"),
    ],
)
def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], line: str) -> None:
    assert line in said(capsys, *flags)


def test_a_missing_extra_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith(("outlast.dashboard", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert said(capsys) == ("outlast dashboard: error: uvicorn is not installed: pip install 'outlast[dashboard]'")


def test_each_page_of_a_job_has_the_same_token_and_it_is_not_the_jobs() -> None:
    assert _page_token("a secret") == _page_token("a secret") != _page_token("another secret")
    assert "a secret" not in _page_token("a secret")
    assert _page_token("") != _page_token("")
    assert len(_page_token("")) == len(_page_token("a secret")) == 32
