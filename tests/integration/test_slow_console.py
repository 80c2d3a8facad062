"""`--tee` into a pipe whose reader is slow: no line is lost, and the agent's heart beats on."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from jobs import free_port, job

LINES = 20_000  # of 100 bytes, of each rank: more than all the pipes between them hold
PAUSE = 4.0  # seconds, several times the node timeout

PRINTS = f"""
import os
for number in range({LINES}):
    print(f"{{os.environ['RANK']}}-{{number}}" + "x" * 100)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("elastic", [False, True], ids=["one node", "with a lease"])
def test_a_reader_that_pauses_gets_every_line(tmp_path: Path, elastic: bool) -> None:
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}") if elastic else ()
    reader, writer = os.pipe()
    flags = ("--nproc-per-node=2", "--tee=3", "--node-timeout=1", f"--log-dir={tmp_path / 'logs'}", *meeting)
    with job(*flags, script=script, stdout=writer, stderr=None) as process, open(reader, "rb") as console:
        os.close(writer)
        first = console.read(1)
        time.sleep(PAUSE)
        text = first + console.read()
        assert process.wait() == 0
    for rank in (0, 1):
        shown = [int(number) for number in re.findall(rb":%d-(\d+)x" % rank, text)]
        assert shown == list(range(LINES))
