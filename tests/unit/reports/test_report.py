"""Reports: whole runs, half of them, and what a rank may have put into them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outlast.cli.report import main
from outlast.coordinator.event_stream import EventStream
from outlast.events import events, reasons
from outlast.events.events import JobEvent
from outlast.events.numbered import NumberedEvent

EVIL = "</td><script>alert(1)</script><img src=https://example.org/x>"
FAILED = reasons.FailedRank(f"b{EVIL}", 1, 1, cause="out-of-memory")
STORY: list[JobEvent] = [
    events.JobBegan(generation=0, least=1, most=2),
    events.NodeJoined(generation=0, node="a", workers=1),
    events.GenerationFormed(generation=1, nodes=("a",), ranks=1, spares=0, restarts=0),
    events.TrainingBegan(generation=1, step=1),
    events.HangNamed(
        generation=1,
        ranks=(0,),
        nodes=("a",),
        kind="user code",
        where="train.py:8",
        sentence="rank 0 hangs",
        stacks=(events.RankStack(1, (0,), ("a",), culprit=True, state="S", frames=(f"load{EVIL} (train.py:8)",)),),
    ),
    events.GenerationEnding(generation=1, reason=FAILED, ago=0.5),
    events.WorkersGone(generation=1, step=50),
    events.GenerationFormed(generation=2, nodes=("a",), ranks=1, spares=0, restarts=1),
    events.TrainingBegan(generation=2, step=41),
    events.JobOver(
        generation=2,
        success=False,
        ending=events.Ending.FAILED,
        reason=EVIL,
        seconds=9.0,
        generations=2,
        restarts=1,
    ),
]


def recorded(path: Path, story: list[JobEvent] = STORY, job: str = "j") -> Path:
    stream = EventStream(str(path), job=job)
    for number, event in enumerate(story, 1):
        stream.append(NumberedEvent(number, 1e9 + number, 1, event), run="r")
    stream.close()
    return path


class Page(HTMLParser):
    """The tags of a page, and what they refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_one_file_without_a_script_or_a_request_and_everything_is_escaped(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert main([str(recorded(tmp_path / "e.jsonl", job=EVIL)), "-o", str(target), "--price", "3"]) == 0
    text = target.read_text()
    page = Page(text)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert page.links == []
    assert not re.search(r"url\(|@import", text)
    assert "default-src 'none'" in text
    assert "&lt;script&gt;" in text
    assert "which the others wait for, sleeping:\n  load&lt;/td&gt;" in text


def test_it_tells_the_outcome_the_faults_and_their_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recorded(tmp_path / "e.jsonl")), "--text", "--price", "3"]) == 0
    told = capsys.readouterr().out
    assert "failed:" in told
    assert "out-of-memory" in told
    assert "10 steps lost" in told
    assert re.search(r"^productive", told, re.MULTILINE)


def test_a_log_directory_is_searched_for_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "j_abc").mkdir()
    recorded(tmp_path / "j_abc" / "events.jsonl")
    assert main([str(tmp_path), "--text"]) == 0
    assert "job j" in capsys.readouterr().out


@pytest.mark.parametrize("events_kept", [1, 3, 5, 7])
def test_a_run_that_was_cut_short_is_reported_as_far_as_it_goes(tmp_path: Path, events_kept: int) -> None:
    file = recorded(tmp_path / "e.jsonl", STORY[:events_kept])
    file.write_bytes(file.read_bytes()[:-1] + b'\n{"version":2,"time":1794,"ev')
    target = tmp_path / "report.html"
    assert main([str(file), "-o", str(target)]) == 0
    assert "could not be read" in target.read_text()


def test_what_several_hosts_wrote_of_a_run_is_put_together_and_counted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = recorded(tmp_path / "whole.jsonl")
    lines = whole.read_bytes().splitlines(keepends=True)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(b"".join(lines[:6]))
    second.write_bytes(b"".join(lines[4:]))
    assert main([str(second), str(first), "--text"]) == 0
    together = capsys.readouterr().out
    assert main([str(whole), "--text"]) == 0
    assert together == capsys.readouterr().out


def test_of_several_runs_in_a_file_the_newest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = recorded(tmp_path / "e.jsonl")
    recorded(file, STORY, job="second")
    assert main([str(file), "--text"]) == 0
    shown = capsys.readouterr()
    assert "job second" in shown.out
    assert "2 runs" in shown.err
    assert main([str(file), "--text", "--job", "j"]) == 0
    assert "job j\n" in capsys.readouterr().out


def test_events_of_another_version_are_read_as_far_as_they_are_known(tmp_path: Path) -> None:
    file = recorded(tmp_path / "e.jsonl")
    older = [json.loads(line) for line in file.read_text().splitlines()]
    for line in older:
        line["version"] = 1
        line.pop("ago", None)
    newer = {**older[0], "version": 9, "event": "event of the future"}
    file.write_text("".join(json.dumps(line) + "\n" for line in [*older, newer]))
    assert main([str(file), "-o", str(tmp_path / "report.html")]) == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "holds no event"),
        (b"\x00\xff garbage\n", "holds no event"),
        ("dir", "events.jsonl"),
    ],
)
def test_what_is_no_record_of_a_run_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | str | None, says: str
) -> None:
    path = tmp_path / "source"
    if content == "dir":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    assert main([str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("outlast report: error: ")
    assert says in line
