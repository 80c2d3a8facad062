"""What can be seen of a worker that failed: its exception, its log, its memory cgroup, the kernel's log."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from outlast.agent.output.summary import read_error_file, seen_failure
from outlast.agent.postmortem.evidence import TAIL_BYTES, TAIL_LINES, Witness, tail, timed
from outlast.agent.postmortem.kernel import KernelLog, count_oom_kills
from outlast.agent.postmortem.verdicts import Judge
from outlast.agent.processes.worker import Streams
from outlast.board.board import Board
from outlast.board.layout import WORDS_SIZE
from outlast.board.readings import LastWords
from outlast.board.slot import BoardSlot
from outlast.diagnosis.evidence import Evidence
from outlast.protocol.failures import Failure


def worker(board: Board, code: str, preloaded: str = "") -> subprocess.CompletedProcess[str]:
    """Run this code as a worker would."""
    before = f"{preloaded}\nfrom outlast.worker import last_words; last_words.install()\n"
    environment = {**os.environ, "OUTLAST_BOARD": board.address(0)}
    return subprocess.run([sys.executable, "-c", before + code], env=environment, capture_output=True, text=True)


def failure(**facts: object) -> Failure:
    known: dict[str, object] = {"node": "a", "host": "h", "rank": 0, "local_rank": 0, "pid": 1, "exit_code": 1}
    return Failure(**{**known, "at": time.time(), "message": "", **facts})  # type: ignore[arg-type]


# -- the exception


def test_an_exception_that_nobody_caught_is_left_on_the_board(board: Board) -> None:
    before = time.time()
    ended = worker(board, "def f():\n    raise ValueError('the ' + 'message')\nf()")
    words = board.last_words(0)
    assert words is not None
    assert (words.exception, words.message) == ("ValueError", "the message")
    assert before <= words.at <= time.time()
    assert words.traceback.startswith("Traceback")
    assert words.traceback.endswith("ValueError: the message\n")
    assert ended.returncode == 1
    assert ended.stderr.endswith("ValueError: the message\n")
    assert "last_words" not in ended.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.excepthook = lambda *what: print('mine'); raise KeyError('x')",
        "import sys; sys.excepthook = lambda *what: sys.__excepthook__(*what); raise KeyError('x')",
        "import sys; assert sys.excepthook is sys.__excepthook__; raise KeyError('x')",
    ],
    ids=["a hook of its own", "one that calls Python's", "no hook that it can see"],
)
def test_whatever_hook_a_script_has(board: Board, code: str) -> None:
    worker(board, code)
    words = board.last_words(0)
    assert words is not None
    assert (words.exception, words.message) == ("KeyError", "'x'")


def test_a_hook_that_was_there_before_is_called_as_it_was(board: Board) -> None:
    ended = worker(board, "raise KeyError('x')", "import sys; sys.excepthook = lambda *what: sys.__excepthook__(*what)")
    assert ended.stderr.count("KeyError: 'x'") == 1
    assert board.last_words(0) is not None


@pytest.mark.parametrize(
    "code",
    [
        "print('well')",
        "import sys; sys.exit(3)",
        "import os\nif os.fork() == 0: raise ValueError('of the child')\nos.wait()",
    ],
    ids=["success", "an exit", "a child's exception"],
)
def test_what_is_no_exception_of_the_worker_leaves_nothing(board: Board, code: str) -> None:
    worker(board, code)
    assert board.last_words(0) is None


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit('no data')",
        "from sys import exit; exit('no data')",
        "raise SystemExit('no data')",
        "exit('no data')",
        "class Why:\n    def __str__(self): return 'no data'\nraise SystemExit(Why())",
        "class Ended(SystemExit): pass\nraise Ended('no data')",
        "try: int('x')\nexcept ValueError as error: raise SystemExit('no data') from error",
    ],
)
def test_the_text_of_an_exit_is_left_on_the_board(board: Board, code: str) -> None:
    ended = worker(board, code)
    assert (ended.returncode, ended.stderr) == (1, "no data\n")
    words = board.last_words(0)
    assert words is not None
    assert (words.exception, words.message) == ("SystemExit", "no data")


def test_what_a_script_writes_to_stderr_is_no_exit(board: Board) -> None:
    ended = worker(board, "import sys; sys.stderr.write('no data\\n'); print('at all', file=sys.stderr); sys.exit(3)")
    assert (ended.returncode, ended.stderr) == (3, "no data\nat all\n")
    assert board.last_words(0) is None


@pytest.mark.parametrize("later", ["sys.exit(3)", "raise ValueError('other')"])
def test_an_exit_that_was_caught_is_not_what_the_worker_ended_with(board: Board, later: str) -> None:
    worker(board, f"import sys\ntry: sys.exit('no data')\nexcept SystemExit: pass\n{later}")
    words = board.last_words(0)
    assert words is None or words.exception == "ValueError"


def test_a_message_may_have_any_character(board: Board) -> None:
    worker(board, "raise ValueError('before\\0after\\x1e')")
    words = board.last_words(0)
    assert words is not None
    assert words.message == "before\\x00after\\x1e"
    assert words.traceback.endswith("ValueError: before\\x00after\x1e\n")


def test_an_exception_that_cannot_be_told_is_shown_all_the_same(board: Board) -> None:
    ended = worker(board, "class E(Exception):\n    def __str__(self): raise OSError()\nraise E()")
    words = board.last_words(0)
    assert words is not None
    assert (words.exception, words.message) == ("E", "<its message raised OSError>")
    assert "E: <exception str() failed>" in ended.stderr


def test_of_a_long_traceback_the_end_is_kept() -> None:
    slot = BoardSlot()
    slot.leave(LastWords(1.5, "E", "é" * WORDS_SIZE, "beginning" + "x" * WORDS_SIZE + "end"))
    words = slot.last_words()
    assert words is not None
    assert words.at == 1.5
    assert words.traceback.endswith("xend")
    assert set(words.message) == {"é"}


# -- the log


def test_the_last_lines_of_a_log_without_what_is_for_terminals(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_text("half\n" + "x" * TAIL_BYTES + "\n10%\r20%\n\n\x1b[31mred\x1b[0m\n")
    assert tail(path) == ["10%", "20%", "red"]
    path.write_text("\n".join(map(str, range(1000))))
    assert tail(path) == [str(number) for number in range(1000 - TAIL_LINES, 1000)]
    assert tail(tmp_path / "none") == []


def test_the_error_file_tells_the_exception_where_the_board_does_not(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("last line\n")
    witness = Witness()
    witness.begin([Streams(None, None, "", (str(log),))])
    known = failure(error='{"message": {"message": "torch.OutOfMemoryError: CUDA"}}')
    seen = witness.evidence(known, None, None, witness.tail(0))
    witness.close()
    assert (seen.exception, seen.message, seen.log) == ("torch.OutOfMemoryError", "CUDA", ("last line",))
    assert witness.log_of(0) == str(log)


def test_a_failure_over_a_name_that_is_no_text_can_be_sent(tmp_path: Path) -> None:
    log = f"{tmp_path}/\udcff.log"  # as Python has a path with the byte 0xff
    error_file = Path(f"{tmp_path}/\udcff.json")
    error_file.write_text(json.dumps({"message": {"message": "FileNotFoundError: no '\udcff.jpg'", "extraInfo": {}}}))
    seen = seen_failure(node="a", host="h", rank=0, local_rank=0, pid=1, exit_code=1, at=time.time())
    known = read_error_file(seen, str(error_file))
    witness = Witness()
    witness.begin([Streams(None, None, str(error_file), (log,))])
    words = witness.evidence(known, LastWords(time.time(), "E", "\udcff", "in \udcff.py"), None)
    by_file = witness.evidence(known, None, None)
    witness.close()
    for evidence in (words, by_file):
        for first in (True, False):
            msgspec.msgpack.encode(Judge("").judged(known, evidence, log=witness.log_of(0), first=first))


def test_of_workers_that_could_not_be_started_the_reason_is_known() -> None:
    witness = Witness()
    witness.begin(())
    seen = witness.evidence(failure(pid=0, exit_code=126, message="cannot write logs: Disk quota exceeded"), None, None)
    witness.close()
    found = Judge("").judged(failure(pid=0), seen, log=witness.log_of(0), first=True)
    assert found.cause is not None
    assert found.cause.name == "quota"


def test_a_failure_is_as_old_as_its_exception() -> None:
    seen = failure()
    told = timed(seen, LastWords(seen.at - 2.0, "E", "", ""), now=100.0)
    assert told.at == seen.at - 2.0
    assert told.clock == pytest.approx(98.0, abs=0.5)


# -- the kernel


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        ("3:cpu:/x\n4:memory:/job/1\n0::/", "memory/job/1/memory.oom_control"),
        ("4:cpu,memory:/elsewhere", "memory/memory.oom_control"),
        ("0::/user.slice/x", "user.slice/x/memory.events"),
        ("0::/", "memory.events"),
    ],
)
def test_the_count_of_the_oom_killer(lines: str, file: str, tmp_path: Path) -> None:
    assert count_oom_kills(lines, tmp_path) is None
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("oom 3\nunder_oom 0\noom_kill 2\n")
    assert count_oom_kills(lines, tmp_path) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel's log is not for this user")
def test_the_kernels_log_since_the_last_time_about_these_processes_and_all_devices(tmp_path: Path) -> None:
    real = tmp_path / "kmsg"  # the one in its usual place is empty in tests: it would tell the others of this
    os.mknod(real, stat.S_IFCHR | 0o600, os.makedev(1, 11))
    log, me = KernelLog(real), os.getpid()
    known = log._knows_pids
    other = me + 1
    with real.open("w") as kernel:
        for line in (
            "outlast test: nothing of interest",
            f"outlast test: Memory cgroup out of memory: Killed process {me} (python)",
            f"outlast test: Memory cgroup out of memory: Killed process {other} (python)",
            "outlast test: NVRM: Xid (PCI:0000:00:00): 79, GPU has fallen off the bus.",
        ):
            print(line, file=kernel, flush=True)
    found = [line for line in log.read() if line.startswith("outlast test")]
    assert len(found) == 3
    assert [log.concerns(line, me) for line in found] == [known, False, True]
    assert not [line for line in log.read() if line.startswith("outlast test")]
    log.close()
    assert log.read() == []


def test_a_kernel_log_that_is_not_for_us_is_empty(tmp_path: Path) -> None:
    assert KernelLog(tmp_path / "none").read() == []


# -- the cause


def test_those_that_we_end_because_another_had_failed_are_its_cascade() -> None:
    judge = Judge("")
    evidence = Evidence(rank=1, exit_code=-15)
    first = judge.judged(failure(exit_code=-15), evidence, log="", first=True)
    later = judge.judged(failure(exit_code=-15), evidence, log="", first=False)
    assert first.cause is not None
    assert later.cause is not None
    assert (first.cause.name, first.cause.role) == ("preempted", "root")
    assert (later.cause.name, later.cause.role) == ("ended-by-us", "cascade")


def test_a_script_that_wants_the_coordinators_port_is_told_who_has_it() -> None:
    taken = Evidence(rank=0, exit_code=1, exception="DistNetworkError", message="port: 29500, name: EADDRINUSE")
    for port, words in ((29500, "Outlast's coordinator listens on port 29500"), (29400, "Choose another port")):
        cause = Judge("", coordinator_port=port).judged(failure(), taken, log="", first=True).cause
        assert cause is not None
        assert words in cause.advice
