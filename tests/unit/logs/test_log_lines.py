"""From bytes to lines with times."""

from __future__ import annotations

import pytest

from outlast.logs.lines import LONGEST, last_lines, split
from outlast.logs.marks import Mark
from outlast.protocol.logs import LogLine

MUCH = 1 << 20


def test_a_lines_time_is_that_of_the_first_mark_beyond_its_end() -> None:
    marks = [Mark(1.0, 2), Mark(2.0, 5), Mark(3.0, 8)]
    lines, reached, inside = split(b"a\nbb\ncc\n", 0, marks, whole=False, room=MUCH)
    assert lines == [LogLine(1.0, b"a"), LogLine(2.0, b"bb"), LogLine(3.0, b"cc")]
    assert (reached, inside) == (8, False)


def test_a_line_without_an_end_waits_for_it_unless_nothing_follows() -> None:
    marks = [Mark(1.0, 100)]
    assert split(b"a\nb", 10, marks, whole=False, room=MUCH) == ([LogLine(1.0, b"a")], 12, False)
    assert split(b"a\nb", 10, marks, whole=True, room=MUCH) == ([LogLine(1.0, b"a"), LogLine(1.0, b"b")], 13, False)


@pytest.mark.parametrize(
    ("data", "texts", "reached"),
    [
        (b"10 %\r20 %\r30 %\n", [b"10 %", b"20 %", b"30 %"], 15),
        (b"a\r\nb\r\n", [b"a", b"b"], 6),
        (b"a\r", [], 0),  # "\n" may follow
        (b"\n\n", [b"", b""], 2),
    ],
)
def test_a_carriage_return_ends_a_line_too(data: bytes, texts: list[bytes], reached: int) -> None:
    lines, until, _ = split(data, 0, [Mark(1.0, 100)], whole=False, room=MUCH)
    assert ([line.text for line in lines], until) == (texts, reached)


def test_an_overlong_line_is_cut_and_its_rest_is_inside() -> None:
    data = b"x" * (LONGEST + 1)
    assert split(data, 0, [Mark(1.0, MUCH)], whole=False, room=MUCH) == (
        [LogLine(1.0, b"x" * LONGEST, cut=True)],
        LONGEST + 1,
        True,
    )
    ended, _, inside = split(data + b"\nnext\n", 0, [Mark(1.0, MUCH)], whole=False, room=MUCH)
    assert ([line.cut for line in ended], inside) == ([True, False], False)


def test_lines_take_no_more_than_their_room() -> None:
    lines, reached, inside = split(b"\n" * 1000, 0, [Mark(1.0, 1000)], whole=False, room=100)
    assert len(lines) == reached == 5
    assert not inside


@pytest.mark.parametrize(("count", "start"), [(1, 4), (2, 2), (9, 0), (0, 6)])
def test_the_last_lines_are_counted_from_the_end(count: int, start: int) -> None:
    assert last_lines(b"a\nb\nc\n", count) == start
