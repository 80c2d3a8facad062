"""Tracebacks are condensed, and the user's own frames stay."""

from __future__ import annotations

from outlast.tracebacks import condensed

LIBRARY = (
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line {0}, in call_{0}\n    return {0}\n'
)
OWN = '  File "/home/me/train.py", line {0}, in own_{0}\n    step({0})\n'
HEAD, ERROR = "Traceback (most recent call last):\n", "ValueError: bad\n"


def test_a_short_one_stays_as_it_is() -> None:
    text = HEAD + OWN.format(1) + LIBRARY.format(2) + ERROR
    assert condensed(text, 10) == text


def test_frames_of_libraries_go_and_the_last_one_before_the_error_stays() -> None:
    text = HEAD + OWN.format(1) + "".join(map(LIBRARY.format, range(2, 40))) + ERROR
    expected = HEAD + OWN.format(1) + "  … 37 frames of libraries …\n" + LIBRARY.format(39) + ERROR
    assert condensed(text, 14) == expected


def test_own_frames_between_those_of_libraries_stay() -> None:
    middle = "".join(map(LIBRARY.format, range(2, 20)))
    text = HEAD + OWN.format(1) + middle + OWN.format(20) + middle + ERROR
    short = condensed(text, 14)
    assert OWN.format(1) in short
    assert OWN.format(20) in short
    assert short.count("17 frames of libraries") == 2


def test_each_error_of_a_chain_keeps_its_own_frames() -> None:
    one = HEAD + OWN.format(1) + "".join(map(LIBRARY.format, range(2, 20))) + ERROR
    text = (
        one
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + one.replace("own_", "later_")
    )
    short = condensed(text, 14)
    assert "own_1" in short
    assert "later_1" in short
    assert short.count(ERROR) == 2
    assert "During handling" in short


def test_of_endless_own_frames_those_in_the_middle_go() -> None:
    short = condensed(HEAD + "".join(map(OWN.format, range(1000))) + ERROR, 14).splitlines()
    assert len(short) == 57
    assert (short[1].strip(), short[-1]) == ('File "/home/me/train.py", line 0, in own_0', ERROR.strip())


def test_one_that_was_indented_is_read_all_the_same() -> None:
    text = (HEAD + OWN.format(1) + "".join(map(LIBRARY.format, range(2, 40))) + ERROR).replace("\n", "\n  ")
    assert "in own_1" in condensed(text, 14)
    assert len(condensed(text, 14).splitlines()) < 14
