"""Where a command's output goes may be closed or full: that is no crash, and no other outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.observe.client import _user


@pytest.mark.parametrize(("code", "flags"), [(0, ["--event-log-handler=console"]), (1, []), (1, ["--supervise"])])
def test_a_job_ends_as_it_ends_where_nobody_can_be_told(code: int, flags: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys; print('ran', flush=True); sys.exit({code})")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "outlast", "run", *flags, str(script)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (code, "ran\n")


def test_whoever_reads_may_have_seen_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "outlast", "token"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert _user() == f"user {2**31 - 7}"
