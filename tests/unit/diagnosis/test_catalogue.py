"""The catalogue: every signature by its own examples, and what it makes of whole failures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.cli.request import parse
from outlast.diagnosis.catalogue import (
    AROUND,
    TRIES,
    Catalogue,
    Domain,
    Outlook,
    Pattern,
    Role,
    Signature,
    check,
    literals,
)
from outlast.diagnosis.cause import diagnose, find
from outlast.diagnosis.evidence import Evidence
from outlast.signatures import catalogue

KNOWN = catalogue().signatures


def cause(**evidence: object) -> str:
    return find(Evidence(rank=0, **evidence), catalogue()).cause.name  # type: ignore[arg-type]


@pytest.mark.parametrize("name", KNOWN)
def test_a_signature_knows_its_lines_and_spares_others(name: str) -> None:
    signature = KNOWN[name]
    check([signature])
    alone = Catalogue([signature])
    assert bool(signature.matches) == bool(signature.patterns)
    for line in signature.matches:
        assert alone.search([line]), line
        assert cause(log=("step 7 loss 2.1", line, "")) == name, line
    for line in signature.spares:
        assert not alone.search([line]), line


def test_all_that_was_asked_for_is_there() -> None:
    exits = {code for each in KNOWN.values() for code in each.exit_codes if each.name == "node-fault"}
    assert exits == {14, 128, 201, 202}
    assert {each.domain for each in KNOWN.values()} == set(Domain)
    assert {each.outlook for each in KNOWN.values()} == set(Outlook)
    assert all(each.explain for each in KNOWN.values())


@pytest.mark.parametrize(
    ("evidence", "name"),
    [
        ({"exit_code": 14}, "node-fault"),
        ({"exit_code": -11}, "segfault"),
        ({"exit_code": -9}, "killed"),  # which proves nothing about memory
        ({"exit_code": -9, "log": ("Killed",)}, "killed"),
        ({"exit_code": -9, "kernel": ("oom_kill in the memory cgroup rose by 1",)}, "host-out-of-memory"),
        ({"exit_code": -6, "log": ("RuntimeError: CUDA error: an illegal memory access was encountered",)},
         "illegal-memory-access"),
        ({"exit_code": -6, "log": ("[rank1]: Watchdog caught collective operation timeout: WorkNCCL",)},
         "nccl-timeout"),
        ({"exit_code": 1, "exception": "ValueError", "message": "x"}, "exception"),
        ({"exit_code": 1, "exception": "torch.OutOfMemoryError", "message": "CUDA out of memory."},
         "cuda-out-of-memory"),
        ({"exit_code": 3}, "unknown"),
        ({"exit_code": -9, "hung": "no heartbeat for 30 s"}, "hang"),
        ({"exit_code": -9, "hung": "no heartbeat for 30 s", "log": ("OSError: No space left on device",)}, "hang"),
        # The kernel's word before the script's, the cause before what merely hit the process.
        ({"kernel": ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus",),
          "log": ("RuntimeError: CUDA error: unspecified launch failure",)}, "xid-bus"),
        ({"log": ("ERROR: Unexpected bus error encountered in worker. insufficient shared memory (shm)",
                  "RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error.")}, "shared-memory"),
        # What counts in the first steps alone.
        ({"exception": "RuntimeError", "message": "shape '[2]' is invalid for input of size 3"}, "shape-mismatch"),
        ({"exception": "RuntimeError", "message": "shape '[2]' is invalid for input of size 3", "step": 9},
         "exception"),
    ],
)  # fmt: skip
def test_the_cause_of_one_failure(evidence: dict[str, object], name: str) -> None:
    assert cause(**evidence) == name


def test_the_first_that_is_nobodys_consequence_is_the_root() -> None:
    lost = ("RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.1]:4711",)
    failed = [
        Evidence(rank=0, at=1.0, exit_code=1, log=lost),  # its clock was read first, but it was told by the other's end
        Evidence(rank=1, at=1.2, exit_code=1, exception="ValueError", message="mine"),
        Evidence(rank=2, at=1.1, exit_code=1, exception="KeyError", message="earlier"),
    ]
    found = diagnose(failed, catalogue())
    assert (found.root.evidence.rank, found.root.cause.title) == (2, "KeyError")
    assert [each.evidence.rank for each in found.cascade] == [0, 1]
    assert found.cascade[0].cause.role is Role.CASCADE


def test_with_nothing_but_consequences_the_first_of_them_is_shown() -> None:
    lost = ("RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.1]:4711",)
    found = diagnose([Evidence(rank=r, at=2.0 - r, log=lost) for r in (0, 1)], catalogue())
    assert found.root.evidence.rank == 1


def test_lines_that_differ_in_numbers_alone_are_told_apart_where_it_matters() -> None:
    xids = tuple(f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=17, name=python" for number in (79, 45))
    found = find(Evidence(rank=0, kernel=xids), catalogue())
    assert {found.cause.name, *(each.name for each in found.others)} >= {"xid-bus", "xid-application"}


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("No space left", ("no space left",)),
        ("a|bcde", ("a", "bcde")),
        (r"\[Errno 28\] \w+", ("[errno 28] ",)),
        ("colou?r is", ("colo",)),
        ("(?:x|y)z+abc", ("abc",)),
        ("[]ab]cdef{2}gh", ("cde",)),
    ],
)  # fmt: skip
def test_the_plain_text_of_a_pattern(pattern: str, needed: tuple[str, ...]) -> None:
    assert literals(pattern) == needed


OWN = """
- name: licence
  title: no licence
  role: root
  domain: platform
  outlook: may help
  explain: The licence server has none left.
  patterns: ['no licence left']
"""


def test_a_file_of_the_users_own_adds_to_the_catalogue_and_replaces_by_name(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN + OWN.replace("licence\n", "disk-full\n", 1).replace("no licence left", "hard disk is full"))
    known = catalogue(str(path))
    assert [each.signature.name for each in known.search(["Error: no licence left"])] == ["licence"]
    assert not known.search(["OSError: No space left on device"])
    assert [each.signature.name for each in known.search(["the hard disk is full"])] == ["disk-full"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must hold a list of signatures"),
        ("- name: [", "is not valid YAML"),
        ("- {name: x}", "signature x: Object missing required field `title`"),
        (OWN.replace("platform", "weather"), "signature licence: Invalid enum value 'weather'"),
        (OWN.replace("patterns", "pattern"), "signature licence: Object contains unknown field `pattern`"),
        (OWN.replace("no licence left", "licence ("), "licence: pattern 'licence (' is not a regular expression"),
        (OWN.replace("no licence left", "licence [a"), "licence: pattern 'licence [a' is not a regular expression"),
        (OWN.replace("no licence left", "a.*b"), "licence: pattern 'a.*b' needs a plain text of 4 characters"),
        (OWN.replace("patterns: ['no licence left']", "signals: [SIGNOTHING]"), "there is no signal 'SIGNOTHING'"),
        (OWN.replace("patterns: ['no licence left']", ""), "licence: needs patterns, exceptions"),
    ],
)
def test_a_bad_file_is_refused_at_the_start_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    path, script = tmp_path / "own.yaml", tmp_path / "train.py"
    path.write_text(text)
    script.touch()
    with pytest.raises(ValueError) as refused:
        parse([f"--ft-signatures={path}", str(script)], {"PATH": "/usr/bin"})
    line = str(refused.value)
    assert line.startswith(f"{path}: ")
    assert says in line
    assert "\n" not in line


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no.yaml: cannot be read \(No such file or directory\)"):
        catalogue(str(tmp_path / "no.yaml"))


def test_a_signature_is_plain_data() -> None:
    assert isinstance(KNOWN["disk-full"], Signature)


def nasty(pattern: Pattern) -> Iterator[str]:
    """Lines that begin to match again and again, or nearly match."""
    texts = [*pattern.needed, *re.findall(r"[a-z0-9 _:'-]{2,}", pattern.text.lower())]
    for unit in {*texts, *(f"{one}{other}" for one in texts[:3] for other in texts), " ", "a", "1", ":", "/", "a "}:
        for literal in pattern.needed[:2]:
            yield unit * (2 * AROUND // len(unit)) + literal
            yield literal + unit * (2 * AROUND // len(unit))


@pytest.mark.parametrize("pattern", catalogue()._patterns, ids=lambda pattern: pattern.signature.name)
def test_no_line_keeps_a_pattern_busy(pattern: Pattern) -> None:
    begun = time.process_time()
    for line in nasty(pattern):
        pattern.matched(line)
    assert time.process_time() - begun < 30.0  # of the CPU, for up to a thousand lines; a few hundredths, mostly


def test_a_long_line_is_looked_at_near_the_text_that_a_pattern_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    matched = Pattern.matched

    def counted(self: Pattern, line: str) -> int:
        lengths.append(len(line))
        return matched(self, line)

    monkeypatch.setattr(Pattern, "matched", counted)
    (signature,) = [each for each in KNOWN.values() if "mlx5_" in "".join(each.patterns)]
    alone = Catalogue([signature])
    long = "mlx5_0 " * 10_000
    assert not alone.search([long] * 1000)
    assert max(lengths) <= 2 * AROUND + 50
    assert len(lengths) <= TRIES * sum(len(each.needed) for each in alone._patterns)
    assert alone.search([long + "mlx5_0: link down"])
    assert alone.search(["x" * 65536 + " mlx5_0: link down " + "x" * 65536])
