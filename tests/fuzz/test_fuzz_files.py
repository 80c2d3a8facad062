"""Files that somebody else may have written or damaged: they are read, or refused in one line."""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.agent.output.summary import read_error_file, seen_failure
from outlast.checkpoint.memory.slot import HEAD, Slot, Ticket, open_slot
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.format import MANIFEST, Damaged, File, Manifest, Save
from outlast.diagnosis.cause import find
from outlast.diagnosis.evidence import Evidence
from outlast.journal import JournalDamaged, read
from outlast.log import one_line
from outlast.protocol.failures import Failure
from outlast.settings.loading import load
from outlast.signatures import catalogue
from outlast.system import private

NUMBERS = st.integers(-(2**63), 2**63 - 1)
SAVES = st.builds(
    Save, run=st.text(max_size=8), sequence=NUMBERS, step=NUMBERS, generation=NUMBERS, world=NUMBERS, job=st.just("")
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(st.binary(max_size=60) | JSON.map(msgspec.json.encode), max_size=5), st.booleans())
@example([b'{"type":"\xff"}'], True)  # text that is no UTF-8
@example([b"[" * 100_000], True)
def test_a_journal_is_good_up_to_its_damage(lines: list[bytes], summed: bool) -> None:
    sums = [b"%08x" % zlib.crc32(line) if summed else b"00000000" for line in lines]
    data = b"".join(b"%b %b\n" % pair for pair in zip(sums, lines, strict=True))
    with suppress(JournalDamaged):
        list(read(data))


FILES = st.builds(
    File,
    st.sampled_from(["__0_0.distcp", "../../etc/passwd", "/etc/passwd", "", ".", "a/b", "\0"]) | st.text(max_size=8),
    st.sampled_from([-1, 0, 1, 5, 2**62]) | NUMBERS,
    st.lists(st.text(max_size=32), max_size=3).map(tuple),
)


@given(
    st.builds(Manifest, version=st.just(1), save=SAVES, saved_at=st.floats(0, 1e10), files=st.lists(FILES).map(tuple))
)
@example(
    Manifest(
        save=Save(run="a", sequence=0, step=0, generation=0, world=1),
        saved_at=0.0,
        files=(File("__0_0.distcp", 5, ()),),
    )
)
def test_a_manifest_that_makes_no_sense_is_damaged(manifest: Manifest) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "step-00000001"
        path.mkdir()
        (path / "__0_0.distcp").write_bytes(b"12345")
        body = msgspec.json.encode(manifest)
        digest = b'"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n'
        (path / MANIFEST).write_bytes(body + b"\n" + digest)
        with suppress(Damaged):
            found = disk.read_manifest(path)
            disk.check(path, found)
            for file in found.files:
                if (path / file.name).exists():
                    disk.verify_file(path, file)


TICKETS = st.builds(
    Ticket,
    save=SAVES,
    rank=NUMBERS,
    here=NUMBERS,
    saved_at=st.floats(allow_nan=False, allow_infinity=False),
    **{name: st.text(max_size=8) for name in ("origin", "directory", "layout")},
    **dict.fromkeys(("keep_last", "length", "table", "contents", "blanks"), NUMBERS),
    durable=st.booleans(),
)


@given(TICKETS)
def test_a_ticket_never_leads_out_of_its_slot(ticket: Ticket) -> None:
    with TemporaryDirectory() as place:
        private.make_directory(Path(place) / "arena")
        path = Path(place) / "arena" / "0.0"
        descriptor = private.create(path)
        with open(descriptor, "r+b", closefd=False) as file:
            file.truncate(HEAD + 4096)
        slot = Slot(str(path), descriptor)
        slot.begin()
        slot.seal(ticket)
        slot.close()
        slot = open_slot(path)
        found = slot.ticket()
        if found is not None:
            parts = slot.parts(found)
            assert sum(map(len, parts)) == found.size <= 4096
            parts[0].release()
        slot.close()


@given(
    st.binary(max_size=200) | JSON.map(msgspec.json.encode) | JSON.map(lambda it: msgspec.json.encode({"message": it}))
)
def test_an_error_file_of_any_content_makes_a_failure_that_can_be_sent(text: bytes) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "error.json"
        path.write_bytes(text)
        common = {"node": "a", "host": "h", "rank": 0, "local_rank": 0, "pid": 1, "exit_code": 1, "at": 5.0}
        failure = read_error_file(seen_failure(**common), str(path))  # type: ignore[arg-type]
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=Failure) == failure


@given(st.binary(max_size=100) | st.text(max_size=60).map(str.encode))
@example(b"a: &a [*a]")
@example(b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]")
def test_a_configuration_file_is_read_or_refused_in_one_line(text: bytes) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "ft.yaml"
        path.write_bytes(text)
        said = ""
        try:
            load({}, {}, str(path), {})
        except ValueError as error:
            said = str(error)
        assert "\n" not in said


@given(st.lists(st.text(max_size=200), max_size=10), st.text(max_size=50), st.text(max_size=20))
def test_any_lines_have_a_cause(lines: list[str], message: str, exception: str) -> None:
    evidence = Evidence(rank=0, exit_code=1, exception=exception, message=message, log=tuple(lines))
    assert find(evidence, catalogue()).cause.name


@given(st.text())
def test_a_line_of_the_log_is_one_line_that_says_nothing_to_the_terminal(text: str) -> None:
    assert one_line(text).isprintable()
