"""What a coordinator writes down: good up to the last whole record, whatever happens to the file."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from outlast import journal as journals
from outlast.core.job.commands import Publish
from outlast.core.job.decisions import digest_of
from outlast.core.job.inputs import Lost
from outlast.core.succession.authority import Electorate, Memory
from outlast.core.tick import Tick
from outlast.events.events import NodeLeft
from outlast.journal import (
    Began,
    Happened,
    Journal,
    JournalCut,
    JournalDamaged,
    Record,
    Remembered,
    read,
    recall,
)
from outlast.protocol.checks import Findings
from outlast.protocol.failures import Account
from outlast.protocol.membership import Over
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Term

RULES = Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2)


def memory(term: int, outcome: Over | None = None) -> Memory:
    electorate = Electorate(generation=term, formed=1, affirmed=term, total=3, votes={"a": 3})
    return Memory(run="r", term=term, electorates=(electorate,), outcome=outcome)


DECISION = Publish(NodeLeft(generation=1, node="a"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of six records."""
    path = tmp_path / "journal"
    journal = Journal(path, fresh=True)
    journal.began(Began(0.5, RULES, Term(1, "a-1"), "r", None))
    journal.happened(1.0, Lost("a", "gone"), "", [])
    journal.flush()
    journal.remember(memory(1))
    journal.happened(2.0, Tick(), "01", [DECISION])
    journal.flush()
    journal.remember(memory(2))
    journal.happened(3.0, Tick(), "", [])
    journal.close()
    return path


def whole(data: bytes) -> list[Record]:
    """The records before the damage."""
    found = []
    try:
        for record in read(data):
            found.append(record)  # noqa: PERF402
    except JournalDamaged:
        pass
    return found


def test_what_is_written_is_read(path: Path) -> None:
    records = list(read(path.read_bytes()))
    assert [type(record) for record in records] == [Began, Happened, Remembered, Happened, Remembered, Happened]
    assert records[3] == Happened(2.0, Tick(), "01", digest_of([DECISION]))
    assert recall(path)[0] == memory(2)


def test_a_journal_that_is_cut_anywhere_is_good_up_to_its_last_whole_record(path: Path) -> None:
    data = path.read_bytes()
    records = list(read(data))
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data)):
        assert whole(data[:length]) == records[: sum(end <= length for end in ends)]


def test_a_journal_that_is_damaged_in_any_byte_is_good_up_to_that_record(path: Path) -> None:
    data = path.read_bytes()
    records = list(read(data))
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for place in range(len(data)):
        for byte in (data[place] ^ 1, 0, ord("\n")):
            if byte == data[place]:
                continue
            damaged = data[:place] + bytes([byte]) + data[place + 1 :]
            assert whole(damaged) == records[: sum(end <= place for end in ends)], (place, byte)


def test_what_is_damaged_is_said_and_cut_off_and_the_rest_is_written_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    assert recall(path)[0] == memory(2)
    assert "5 whole records" in caplog.text
    journal = Journal(path, fresh=False)
    journal.remember(memory(3))
    journal.close()
    assert len(list(read(path.read_bytes()))) == 6
    assert recall(path)[0] == memory(3)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, os.urandom(1000), b"SQLite format 3\0"])
def test_what_is_no_journal_recalls_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    assert recall(path)[0] is None


def test_no_journal_recalls_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert recall(tmp_path / "none")[0] is None
    assert recall(tmp_path)[0] is None  # a directory
    assert "what the nodes say is enough" in caplog.text


def test_a_place_where_nothing_can_be_written_is_said_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "no" / "such" / "directory", fresh=True)
    journal.remember(memory(1))
    journal.close()
    assert "--ft-journal sets another place" in caplog.text


def test_a_full_disk_is_said_once_and_the_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(Path("/dev/full"), fresh=False)
    for term in range(3):
        journal.remember(memory(term))
    journal.close()
    assert caplog.text.count("the job continues without it") == 1


def test_a_journal_that_grows_too_large_keeps_what_a_restart_needs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MOST_BYTES", 1)
    journal = Journal(path, fresh=False)
    journal.happened(4.0, Tick(), "", [])
    journal.remember(memory(7))
    journal.close()
    assert list(read(path.read_bytes())) == [JournalCut(), Remembered(memory(7))]


def test_the_outcome_is_remembered(path: Path) -> None:
    journal = Journal(path, fresh=False)
    journal.remember(memory(4, Over(False, "no node is left", term=4)))
    journal.close()
    found, _ = recall(path)
    assert found is not None
    assert found.outcome == Over(False, "no node is left", term=4)


def test_what_is_no_file_keeps_no_job_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MOST_BYTES", 100)  # it cannot be cut either
    journal = Journal(Path(os.devnull), fresh=True)
    journal.began(Began(0.5, RULES, Term(1, "a-1"), "r", None))
    journal.remember(memory(1, Over(True, "every worker finished")))
    journal.close()


def test_a_disk_that_fails_at_the_end_keeps_no_job_from_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    journal = Journal(path, fresh=False)
    journal.remember(memory(3, Over(True, "every worker finished")))
    journal.close()
    assert "cannot be written (Input/output error): the job continues without it" in caplog.text


def test_a_disk_that_stands_still_holds_nobody_up_and_gets_everything_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe that nobody reads from stands in for it: a write to it does not return."""
    waits: list[float | None] = []
    wait_for = threading.Condition.wait_for

    def counted(self: threading.Condition, true: Callable[[], object], timeout: float | None = None) -> object:
        if threading.current_thread() is threading.main_thread():
            waits.append(timeout)
        return wait_for(self, true, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", counted)
    os.mkfifo(tmp_path / "journal")
    reader = os.open(tmp_path / "journal", os.O_RDONLY | os.O_NONBLOCK)
    journal = Journal(tmp_path / "journal", fresh=True)
    many = 500
    for term in range(many):
        journal.remember(memory(term))
    assert journal._tasks
    assert len([each for each in waits if each is not None]) < many  # it waited once, and then no more
    assert caplog.text.count("does not answer") == 1
    data = bytearray()
    os.set_blocking(reader, True)
    drain = threading.Thread(target=lambda: [data.extend(chunk) for chunk in iter(lambda: os.read(reader, 65536), b"")])
    drain.start()
    journal.close()
    drain.join()
    os.close(reader)
    remembered = [each.memory.term for each in whole(bytes(data)) if isinstance(each, Remembered)]
    assert remembered == list(range(many))


def test_no_message_can_hold_a_number_that_the_journal_cannot() -> None:
    for text in ("nan", "inf", "-inf"):
        findings = Findings(term=1, number=1, figures={"x": float(text)})
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(findings), type=Findings)
        account = Account(ran=float(text))
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(account), type=Account)
