"""Logs of one node, read from its directory in bounded parts."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from outlast.agent.output.marking import LogMarker
from outlast.logs.directory import HEADER, SKIPPED, AttemptHeader, NodeLogs, logs_below
from outlast.logs.lines import LONGEST
from outlast.protocol.logs import ANSWER, STREAMS, FindStreams, LogLine, LogStream, ReadStreams, StreamPlace

OUT, ERR = LogStream(1, 0, error=False), LogStream(1, 0, error=True)


class Attempt:
    """The logs of one generation, as an agent writes them."""

    def __init__(self, directory: Path, generation: int = 1, ranks: int = 1, first_rank: int = 0) -> None:
        self._attempt = directory / f"attempt_{generation - 1}"
        for rank in range(ranks):
            (self._attempt / str(rank)).mkdir(parents=True)
            for name in ("stdout.log", "stderr.log"):
                (self._attempt / str(rank) / name).touch()
        self.marker = LogMarker(generation, [str(each) for each in self._attempt.glob("*/*.log")])
        self.marker.introduce(AttemptHeader("gpu-07", first_rank))

    def write(self, data: bytes, time: float | None, *, rank: int = 0, name: str = "stdout.log") -> None:
        with (self._attempt / str(rank) / name).open("ab") as log:
            log.write(data)
        if time is not None:
            self.marker.look(time)


def read(logs: NodeLogs, *places: StreamPlace) -> list[list[LogLine]]:
    """All that follows, question by question, as a client asks."""
    lines: list[list[LogLine]] = [[] for _ in places]
    at = list(places)
    for _ in range(1000):
        answer = logs.read(ReadStreams(tuple(at)))
        assert len(msgspec.msgpack.encode(answer)) <= ANSWER
        at = [part.place for part in answer.parts]
        for all_of, part in zip(lines, answer.parts, strict=True):
            all_of += part.lines
        if all(part.end for part in answer.parts):
            return lines
    raise AssertionError("never ends")


def start(logs: NodeLogs, wanted: FindStreams) -> list[StreamPlace]:
    return [found.place for found in logs.find(wanted).streams]


def test_while_a_generation_writes_what_has_a_time_is_told(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, first_rank=4)
    attempt.write(b"one\ntwo", 10.0)
    attempt.write(b" and a half\n", None)
    live = NodeLogs(tmp_path, newest=1, live=True, seen=10.0)
    assert [(each.place, each.rank) for each in live.find(FindStreams()).streams] == [
        (StreamPlace(OUT, 0), 4),
        (StreamPlace(ERR, 0), 4),
    ]
    (part,) = live.read(ReadStreams((StreamPlace(OUT, 0),))).parts
    assert (part.lines, part.closed) == ((LogLine(10.0, b"one"),), False)
    assert live.read(ReadStreams((part.place,))).parts[0].until == 10.0
    attempt.marker.finish(11.0)
    (rest,) = NodeLogs(tmp_path, newest=1).read(ReadStreams((part.place,))).parts
    assert (rest.lines, rest.end, rest.closed) == ((LogLine(11.0, b"two and a half"),), True, True)


def test_logs_of_a_killed_agent_end_with_the_last_change_of_the_file(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write(b"seen\n", 10.0)
    attempt.write(b"unseen", None)
    os.utime(tmp_path / "attempt_0" / "0" / "stdout.log", (20.0, 20.0))
    assert read(NodeLogs(tmp_path), StreamPlace(OUT, 0)) == [[LogLine(10.0, b"seen"), LogLine(20.0, b"unseen")]]


def test_since_a_time_starts_with_whole_lines(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write(b"old\nhalf of ", 10.0)
    attempt.write(b"this\nnew\n", 20.0)
    logs = NodeLogs(tmp_path)
    assert read(logs, *start(logs, FindStreams(since=15.0))[:1]) == [[LogLine(20.0, b"new")]]
    assert not start(logs, FindStreams(since=15.0))[1:2] or read(logs, start(logs, FindStreams(since=15.0))[1]) == [[]]
    assert read(logs, *start(logs, FindStreams(since=5.0))[:1])[0][0] == LogLine(10.0, b"old")


def test_the_last_lines_are_those_of_the_newest_generation_that_has_the_rank(tmp_path: Path) -> None:
    first, second = Attempt(tmp_path, 1, ranks=2), Attempt(tmp_path, 2, ranks=1)
    first.write(b"of rank 1\n", 10.0, rank=1)
    second.write(b"a\nb\nc\n", 20.0)
    logs = NodeLogs(tmp_path)
    (place, _) = start(logs, FindStreams(rank=0, lines=2))
    assert read(logs, place) == [[LogLine(20.0, b"b"), LogLine(20.0, b"c")]]
    (place, _) = start(logs, FindStreams(rank=1, lines=2))
    assert read(logs, place) == [[LogLine(10.0, b"of rank 1")]]
    assert {place.stream.generation for place in start(logs, FindStreams())} == {1, 2}
    assert {place.stream.generation for place in start(logs, FindStreams(after=1))} == {2}


def test_a_generation_that_is_only_being_made_is_not_there_yet(tmp_path: Path) -> None:
    Attempt(tmp_path, 1), Attempt(tmp_path, 2)
    assert NodeLogs(tmp_path, newest=1).find(FindStreams()).newest == 1


def test_a_line_of_a_hundred_megabytes_takes_a_few_questions_and_one_line(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write(b"before\n", 10.0)
    log = tmp_path / "attempt_0" / "0" / "stdout.log"
    os.truncate(log, SKIPPED + (36 << 20))  # zeros, which take no room on the disk
    attempt.write(b"\nafter\n", 20.0)
    assert [(len(line.text), line.cut) for line in read(NodeLogs(tmp_path), StreamPlace(OUT, 0))[0]] == [
        (6, False),
        (LONGEST, True),
        (5, False),
    ]


def test_many_streams_share_an_answer_and_none_is_forgotten(tmp_path: Path) -> None:
    ranks = STREAMS // 2
    attempt = Attempt(tmp_path, ranks=ranks)
    for rank in range(ranks):
        for name in ("stdout.log", "stderr.log"):
            attempt.write(b"y" * 6000 + b"\n\n\n", None, rank=rank, name=name)
    attempt.marker.finish(10.0)
    logs = NodeLogs(tmp_path)
    places = start(logs, FindStreams())
    assert len(places) == STREAMS
    assert [[len(line.text) for line in lines] for lines in read(logs, *places)] == [[6000, 0, 0]] * STREAMS


@pytest.mark.parametrize("what", ["log", "rank", "fifo"])
def test_nothing_outside_is_read(tmp_path: Path, what: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "stdout.log").write_text("a secret\n")
    place = tmp_path / "logs" / "attempt_0" / "0"
    place.parent.mkdir(parents=True)
    if what == "rank":
        place.symlink_to(secret)
    else:
        place.mkdir()
        if what == "log":
            (place / "stdout.log").symlink_to(secret / "stdout.log")
        else:
            os.mkfifo(place / "stdout.log")
    logs = NodeLogs(tmp_path / "logs")
    assert read(logs, StreamPlace(OUT, 0)) == [[]]
    assert not logs.find(FindStreams(lines=1)).streams


def test_files_that_are_damaged_or_gone_are_no_error(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write(b"a\nb\n", 10.0)
    (tmp_path / "attempt_0" / HEADER).write_text("{")
    (tmp_path / "attempt_0" / "0" / ".stdout.log.times").write_bytes(b"torn")
    os.utime(tmp_path / "attempt_0" / "0" / "stdout.log", (20.0, 20.0))
    logs = NodeLogs(tmp_path)
    assert read(logs, StreamPlace(OUT, 0)) == [[LogLine(20.0, b"a"), LogLine(20.0, b"b")]]
    assert read(logs, StreamPlace(OUT, 10**9), StreamPlace(LogStream(7, 7, error=True), 0)) == [[], []]
    assert logs.name() == tmp_path.name


def test_of_several_jobs_and_runs_the_newest_is_read(tmp_path: Path) -> None:
    for age, name in enumerate(["bert_aaaaaaaa", "bert_bbbbbbbb", "gpt_cccccccc"]):
        Attempt(tmp_path / name)
        os.utime(tmp_path / name, (100.0 - age, 100.0 - age))
    (found,) = logs_below(tmp_path)
    assert (found.job, found.name()) == ("bert", "gpu-07")
    assert [each.job for each in logs_below(tmp_path / "gpt_cccccccc")] == ["gpt"]
    with pytest.raises(ValueError, match="holds no attempt_0 or the like"):
        logs_below(tmp_path / "nowhere")
