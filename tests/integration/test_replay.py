"""`outlast replay`: the decisions of a real job, once more, to the byte."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hosts import Host
from membership.job import QUICK, ElasticJob
from outlast.core.job.inputs import Reported
from outlast.journal import Happened, JournalDamaged, read
from processes import outlast


def test_the_journal_of_a_job_that_went_through_much_gives_the_same_decisions(
    hosts: Callable[[int], list[Host]], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    with ElasticJob(hosts(3), tmp_path, "--nnodes=1:3", "--max-restarts=1", f"--ft-journal={journal}", *QUICK) as job:
        a, b, c = job.start_all()
        job.line_up(a, b, c)
        job.end_worker(b.host, 3)
        job.line_up(a, b, c)
        await_journalled(journal, generation=2)  # a coordinator that is killed loses its last milliseconds
        job.kill_coordinator()
        a.agent.wait_for("took over generation")
        job.kill_agent(c)
        job.line_up(a, b)
        again = job.start(c.host)
        job.line_up(a, b, again)
        job.succeeds(a, b, again)
    replay = outlast("replay", journal)
    assert replay.wait() == 0, replay.output
    for decided in (
        "generation 1: 3 nodes, 3 ranks (host-0, host-1, host-2)",
        "generation 1 ends: rank 1 on node host-1 failed (exit code 3)",
        "restart 1 of 1: rank 1 on node host-1 failed (exit code 3)",
        "node host-2 was lost: its connection",
        "job succeeded: every worker finished",
    ):
        assert decided in replay.output
    assert "0 decided differently than then" in replay.output

    # Another version would have restarted nobody: the first event that it decides differently is shown.
    changed = b"".join(_renew(line.replace(b'"max_restarts":1', b'"max_restarts":0')) for line in _lines(journal))
    (tmp_path / "changed").write_bytes(changed)
    other = outlast("replay", tmp_path / "changed", "--differences")
    assert other.wait() == 1
    assert any(line.startswith("!") and "no restart is allowed" in line for line in other.lines), other.output


def await_journalled(journal: Path, generation: int, timeout: float = 120) -> None:
    """Wait until the journal holds that a node runs this generation."""
    deadline = time.monotonic() + timeout
    while True:
        with suppress(JournalDamaged):  # a record is being written
            for record in read(journal.read_bytes()):
                event = record.event if isinstance(record, Happened) else None
                if isinstance(event, Reported) and event.report.generation == generation:
                    return
        assert time.monotonic() < deadline, f"no report of generation {generation} in the journal"
        time.sleep(0.01)


def test_what_is_no_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("text", b"hello\n")):
        (tmp_path / name).write_bytes(content)
        refused = outlast("replay", tmp_path / name)
        assert refused.wait() == 1
        assert "holds no event: is it a journal?" in refused.lines[-1]
    missing = outlast("replay", tmp_path / "none")
    assert missing.wait() == 1
    assert missing.lines == [f"outlast replay: error: {tmp_path / 'none'}: No such file or directory"]


def _lines(journal: Path) -> list[bytes]:
    return journal.read_bytes().splitlines(keepends=True)


def _renew(line: bytes) -> bytes:
    """The line with a checksum that fits."""
    text = line[9:-1]
    return b"%08x %b\n" % (zlib.crc32(text), text)
