"""Workers' output and error files: torchrun's layout, and nothing that can stop training."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

import launches
from launches import assignment
from outlast.agent.output import tee
from outlast.agent.output.disk import Disk, LogFile, open_log
from outlast.agent.output.layout import LogsNotWritable
from outlast.agent.output.logs import JobLogs
from outlast.agent.output.tee import Console, Tee, open_pipe
from outlast.agent.processes.worker import Streams
from outlast.agent.processes.workers import WorkerGroup
from outlast.launch import Launch, Logs, Std
from processes import descriptors

DEADLINE = 120.0
BOTH = "echo out; echo err >&2"

ASSIGNMENT = assignment(group_rank=0)


def launch(**logs: Any) -> Launch:
    return launches.launch(nproc=2, logs=Logs(**logs))


DISKS: list[Disk] = []  # of the test that runs


def run_async(body: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await body()
        while DISKS:
            assert DISKS.pop().close(DEADLINE)

    asyncio.run(run())


def log_file(path: Path) -> LogFile:
    DISKS.append(Disk())
    return LogFile(str(path), open_log(str(path)), DISKS[-1])


async def events_handled() -> None:
    """What is readable now has been read: one turn of the loop finds it, the next has handled it."""
    for _ in range(3):
        await asyncio.sleep(0)


class Terminal:
    """Stands for the agent's stdout and stderr, and remembers what was shown."""

    def __init__(self) -> None:
        self._ends = [os.pipe(), os.pipe()]
        self.stdout, self.stderr = (writer for _, writer in self._ends)

    def close(self) -> tuple[str, str]:
        shown = []
        for reader, writer in self._ends:
            os.close(writer)
            with open(reader, "rb") as pipe:
                shown.append(pipe.read().decode())
        return shown[0], shown[1]


def run_workers(
    asked: Launch, *scripts: str, generations: int = 1, success: bool = True
) -> tuple[str, str, Path, list[Streams]]:
    """What the console showed, where the files are, and the last generation's streams."""
    terminal = Terminal()
    last: list[Any] = []

    async def body() -> None:
        logs = JobLogs(asked, stdout=terminal.stdout, stderr=terminal.stderr)
        for number in range(1, generations + 1):
            last[:] = [logs.directory, await generation(logs, number)]
            logs.finish()
        logs.close(success)

    async def generation(logs: JobLogs, number: int) -> list[Streams]:
        ended = asyncio.Event()
        left = set(range(len(scripts)))

        def on_exit(local_rank: int, pid: int, exit_code: int) -> None:  # noqa: ARG001
            left.discard(local_rank)
            if not left:
                ended.set()

        environments = [dict(os.environ) for _ in scripts]
        streams = await logs.open(msgspec.structs.replace(ASSIGNMENT, generation=number), environments)
        commands = [("/bin/sh", "-c", script) for script in scripts]
        group = WorkerGroup.start(commands, environments, streams, on_exit)
        await asyncio.wait_for(ended.wait(), DEADLINE)
        await group.stop(grace=0)
        return streams

    run_async(body)
    stdout, stderr = terminal.close()
    return stdout, stderr, Path(last[0]), last[1]


def tree(directory: Path) -> dict[str, str]:
    """All files but those that say when lines were written, and by whom."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def test_redirected_streams_are_files_in_torchruns_layout(tmp_path: Path) -> None:
    log_dir = tmp_path / "deep" / "logs"
    shown, _, directory, _ = run_workers(launch(log_dir=str(log_dir), redirects=Std.ALL), BOTH, BOTH, generations=2)
    assert shown == ""
    assert directory.parent == log_dir
    assert directory.name.startswith("job_")
    assert tree(directory) == {
        f"attempt_{attempt}/{local_rank}/{stream}.log": text
        for attempt in (0, 1)
        for local_rank in (0, 1)
        for stream, text in (("stdout", "out\n"), ("stderr", "err\n"))
    }


def test_streams_can_be_redirected_for_some_ranks_only(tmp_path: Path) -> None:
    asked = launch(log_dir=str(tmp_path), redirects={1: Std.ERR})
    _, _, directory, streams = run_workers(asked, "true", BOTH.replace("echo out;", ""))
    assert tree(directory) == {"attempt_0/1/stderr.log": "err\n"}
    assert (streams[0].stdout, streams[0].stderr, streams[1].stdout) == (None, None, None)


def test_a_teed_stream_goes_to_its_file_as_it_is_and_to_the_console_with_a_prefix(tmp_path: Path) -> None:
    asked = launch(log_dir=str(tmp_path), tee=Std.ALL)
    stdout, stderr, directory, _ = run_workers(asked, BOTH, BOTH)
    assert sorted(stdout.splitlines()) == ["[trainer0]:out", "[trainer1]:out"]
    assert sorted(stderr.splitlines()) == ["[trainer0]:err", "[trainer1]:err"]
    assert tree(directory)["attempt_0/1/stdout.log"] == "out\n"


def test_the_prefix_is_the_users_template(tmp_path: Path) -> None:
    template = "<${role_name} ${rank} ${local_rank} ${other}> "
    stdout, _, _, _ = run_workers(launch(log_dir=str(tmp_path), tee=Std.OUT, prefix=template), "true", "echo hi")
    assert stdout == "<trainer 5 1 ${other}> hi\n"


def test_ranks_that_are_not_shown_still_have_their_files(tmp_path: Path) -> None:
    asked = launch(log_dir=str(tmp_path), tee={0: Std.OUT, 1: Std.OUT}, ranks=frozenset({0}))
    stdout, _, directory, streams = run_workers(asked, "echo hi", BOTH)
    assert stdout == "[trainer0]:hi\n"
    assert tree(directory) == {"attempt_0/0/stdout.log": "hi\n", "attempt_0/1/stdout.log": "out\n"}
    assert streams[1].stderr is not None, "what is neither shown nor kept goes to /dev/null"


def test_matching_lines_of_shown_teed_ranks_are_gathered_in_one_file(tmp_path: Path) -> None:
    asked = launch(
        log_dir=str(tmp_path),
        tee=Std.ALL,
        ranks=frozenset({0}),
        stdout_filters=("apple", "pear"),
        stderr_filters=("x",),
    )
    script = "echo an apple; echo plum; echo pears"
    _, _, directory, _ = run_workers(asked, script, script)
    assert (directory / "attempt_0/filtered_stdout.log").read_text() == "[trainer0]:an apple\n[trainer0]:pears\n"
    assert (directory / "attempt_0/filtered_stderr.log").read_text() == ""


def test_the_error_file_lies_beside_the_logs_and_the_worker_knows_where(tmp_path: Path) -> None:
    script = "echo broken > $TORCHELASTIC_ERROR_FILE"
    _, _, directory, streams = run_workers(launch(log_dir=str(tmp_path)), script, script)
    assert tree(directory) == {"attempt_0/0/error.json": "broken\n", "attempt_0/1/error.json": "broken\n"}
    assert streams[1].error_file == str(directory / "attempt_0/1/error.json")


def test_without_a_log_dir_error_files_are_kept_only_if_the_job_failed() -> None:
    script = "echo broken > $TORCHELASTIC_ERROR_FILE"
    _, _, directory, _ = run_workers(launch(), script)
    assert not directory.parent.exists()
    _, _, directory, _ = run_workers(launch(), script, success=False)
    assert tree(directory) == {"attempt_0/0/error.json": "broken\n"}
    _, _, directory, _ = run_workers(launch(redirects=Std.OUT), "echo asked for")
    assert tree(directory) == {"attempt_0/0/stdout.log": "asked for\n"}


def test_with_dev_null_as_log_dir_there_are_no_files() -> None:
    asked = launch(log_dir=os.devnull, redirects=Std.ALL, tee=Std.ALL, stdout_filters=("x",))
    _, _, _, streams = run_workers(asked, 'test -z "$TORCHELASTIC_ERROR_FILE"')
    assert streams == [Streams(None, None, "")]


def test_a_job_name_with_a_slash_stays_below_the_log_dir(tmp_path: Path) -> None:
    asked = msgspec.structs.replace(launch(log_dir=str(tmp_path)), job="team/run")
    assert JobLogs(asked).directory.startswith(str(tmp_path / "team_run_"))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"one\ntwo", ["one", "two"]),
        (b"\xff\xfe\x00binary\n", ["\ufffd\ufffd\x00binary"]),
        (b" 1%\r 50%\r100%\n", [" 1%", " 50%", "100%"]),
        (b"dos\r\nlines\r\n", ["dos", "lines"]),
        (b"\n\nx\n", ["", "", "x"]),
        ("漢字\n".encode(), ["漢字"]),
        (b"end\r", ["end"]),
        (b"", []),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_whatever_a_worker_prints_is_shown_line_by_line(
    tmp_path: Path, text: bytes, lines: list[str], at_once: bool
) -> None:
    chunks = [text] if at_once else [text[index : index + 1] for index in range(len(text))]
    shown = teed(tmp_path, chunks)
    assert shown.decode() == "".join(f">{line}\n" for line in lines)
    assert (tmp_path / "out.log").read_bytes() == text


def teed(tmp_path: Path, chunks: Sequence[bytes]) -> bytes:
    terminal = Terminal()

    async def body() -> None:
        source, worker = open_pipe()
        console = Console(terminal.stdout, "stdout")
        stream = Tee(source, file=log_file(tmp_path / "out.log"), console=console, prefix=">")
        for chunk in chunks:
            os.write(worker, chunk)
            await events_handled()
        stream.close()
        stream.close()
        console.close()
        os.close(worker)

    run_async(body)
    return terminal.close()[0].encode()


def test_a_line_without_an_end_is_shown_in_pieces(tmp_path: Path) -> None:
    size = 3 * 1024 * 1024
    log = tmp_path / "console"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)

    async def body() -> None:
        asked = launch(log_dir=str(tmp_path), tee=Std.OUT)
        logs = JobLogs(asked, stdout=descriptor)
        ended = asyncio.Event()
        environments = [dict(os.environ)]
        command = ("/bin/sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x")
        streams = await logs.open(ASSIGNMENT, environments)
        group = WorkerGroup.start([command], environments, streams, lambda *_: ended.set())
        await asyncio.wait_for(ended.wait(), DEADLINE)
        await group.stop(grace=0)
        logs.close(True)

    run_async(body)
    (kept,) = tmp_path.glob("*/attempt_0/0/stdout.log")
    assert kept.stat().st_size == size
    os.close(descriptor)
    lines = log.read_text().splitlines()
    assert sum(line.count("x") for line in lines) == size
    assert all(len(line) < 2 * 1024 * 1024 for line in lines)


@pytest.mark.parametrize(
    ("asked", "text", "success", "kept"),
    [
        pytest.param({}, "", False, False, id="nothing was written"),
        pytest.param({}, "{}", False, True, id="an error file of a failed job"),
        pytest.param({}, "{}", True, False, id="an error file, and the job succeeded"),
        pytest.param({"redirects": Std.OUT}, "", False, False, id="redirected, and nothing was written"),
        pytest.param({"redirects": Std.OUT}, "{}", True, True, id="redirected"),
    ],
)
def test_a_temporary_log_directory_stays_only_for_what_is_in_it(
    asked: dict[str, Std],
    text: str,
    success: bool,
    kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caplog.set_level(logging.INFO, "agent")

    def leave_error_file(directory: str) -> None:
        Path(directory, "attempt_0", "0", "error.json").write_text(text)

    async def body() -> None:
        logs = JobLogs(launch(**asked))
        for streams in await logs.open(ASSIGNMENT, [{}]):
            streams.close()
        leave_error_file(logs.directory)
        logs.close(success)

    run_async(body)
    assert bool(list(tmp_path.glob("outlast_*"))) is kept
    said = [record.getMessage() for record in caplog.records if "the logs are in" in record.getMessage()]
    assert len(said) == kept


def test_a_full_disk_is_told_once_and_the_console_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "out.log").symlink_to("/dev/full")
    terminal = Terminal()

    async def body() -> None:
        source, worker = open_pipe()
        console = Console(terminal.stdout, "stdout")
        stream = Tee(source, file=log_file(tmp_path / "out.log"), console=console, prefix=">")
        for number in range(3):
            os.write(worker, b"%d\n" % number)
            await events_handled()
        stream.close()
        console.close()
        os.close(worker)

    run_async(body)
    assert terminal.close()[0] == ">0\n>1\n>2\n"
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write {tmp_path / 'out.log'}: No space left on device; lines will be missing from it"
    ]


def test_a_closed_console_is_told_once_and_the_file_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        source, worker = open_pipe()
        console = Console(writer, "stdout")
        stream = Tee(source, file=log_file(tmp_path / "out.log"), console=console, prefix=">")
        os.write(worker, b"one\n")
        await events_handled()
        os.write(worker, b"two\n")
        os.close(worker)
        stream.close()
        console.close()
        os.close(writer)

    run_async(body)
    assert (tmp_path / "out.log").read_text() == "one\ntwo\n"
    assert [record.getMessage() for record in caplog.records] == [
        "cannot write to stdout: Broken pipe; workers' lines are shown no more"
    ]


def test_no_console_at_all_is_fine(tmp_path: Path) -> None:
    closed = os.dup(0)
    os.close(closed)

    async def body() -> None:
        source, worker = open_pipe()
        console = Console(closed, "stdout")
        stream = Tee(source, file=log_file(tmp_path / "out.log"), console=console, prefix=">")
        os.write(worker, b"one\n")
        os.close(worker)
        stream.close()
        console.close()

    run_async(body)
    assert (tmp_path / "out.log").read_text() == "one\n"


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_console_that_nobody_reads_makes_workers_wait_and_loses_no_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tee, "BACKLOG_LIMIT", 100_000)
    text = b"".join(b"%04d" % number + b"x" * 995 + b"\n" for number in range(5000))

    async def body() -> None:
        if kind == "pipe":
            reader, writer = os.pipe()
        else:
            ends = socket.socketpair()
            reader, writer = ends[0].detach(), ends[1].detach()
        source, worker = open_pipe()
        console = Console(writer, "stdout")
        stream = Tee(source, file=log_file(tmp_path / "out.log"), console=console, prefix="")
        os.set_blocking(worker, False)
        written = await write_until_it_would_block(worker, text)
        assert written < len(text), "it would wait"
        assert console.owes < 100_000 + 2 * 65536
        assert os.get_blocking(writer), "others who share the console still write to it as they did"
        os.set_blocking(worker, True)
        rest = threading.Thread(target=write_all, args=(worker, text[written:]))
        rest.start()
        assert await read_until(reader, text[-1000:]) == text
        rest.join(DEADLINE)
        stream.close()
        console.close()
        os.close(reader)
        os.close(writer)

    run_async(body)
    assert (tmp_path / "out.log").read_bytes() == text


async def write_until_it_would_block(descriptor: int, text: bytes) -> int:
    """How much was written before nobody read on."""
    written, blocked = 0, 0
    while blocked < 20 and written < len(text):
        try:
            written += os.write(descriptor, text[written : written + 65536])
            blocked = 0
        except BlockingIOError:
            blocked += 1
        await events_handled()
    return written


def write_all(descriptor: int, text: bytes) -> None:
    with open(descriptor, "wb") as pipe:
        pipe.write(text)


def test_a_console_that_is_closed_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tee, "BACKLOG_LIMIT", 100_000)
    text = 5000 * (b"x" * 999 + b"\n")

    async def body() -> None:
        reader, writer = os.pipe()
        source, worker = open_pipe()
        console = Console(writer, "stdout")
        stream = Tee(source, file=log_file(tmp_path / "out.log"), console=console, prefix="")
        os.set_blocking(worker, False)
        written = await write_until_it_would_block(worker, text)
        os.set_blocking(worker, True)
        os.close(reader)
        rest = asyncio.get_running_loop().run_in_executor(None, write_all, worker, text[written:])
        await asyncio.wait_for(rest, DEADLINE)
        stream.close()
        console.close()
        os.close(writer)

    run_async(body)
    assert (tmp_path / "out.log").stat().st_size == len(text)


async def read_until(descriptor: int, end: bytes) -> bytes:
    text, readable = b"", asyncio.Event()
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)  # the loop may report once more what has just been read
    loop.add_reader(descriptor, readable.set)
    try:
        while not text.endswith(end):
            readable.clear()
            await asyncio.wait_for(readable.wait(), DEADLINE)
            with contextlib.suppress(BlockingIOError):
                text += os.read(descriptor, 65536)
    finally:
        loop.remove_reader(descriptor)
    return text


def test_at_the_end_a_slow_console_gets_what_it_is_owed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    shown: list[bytes] = []
    line = b"x" * 999 + b"\n"

    async def body() -> None:
        logs = JobLogs(launch(log_dir=str(tmp_path), tee=Std.OUT, prefix="$none"), stdout=writer)
        streams = await logs.open(ASSIGNMENT, [{}])
        assert streams[0].stdout is not None
        write_all(os.dup(streams[0].stdout), 900 * line)
        streams[0].close()
        showing = asyncio.create_task(logs.shown())
        await events_handled()
        assert "MB on stdout" in logs.owes()
        assert not showing.done()
        slow.start()
        await asyncio.wait_for(showing, DEADLINE)
        assert not logs.owes()
        logs.close(success=True)
        os.close(writer)

    with open(reader, "rb") as pipe:
        slow = threading.Thread(target=lambda: shown.append(pipe.read()))
        run_async(body)
        slow.join(DEADLINE)
    assert shown[0].count(line[:-1]) == 900


def test_a_process_that_keeps_a_workers_pipe_open_does_not_hold_up_the_end(tmp_path: Path) -> None:
    terminal = Terminal()

    async def body() -> None:
        source, worker = open_pipe()
        console = Console(terminal.stdout, "stdout")
        stream = Tee(source, file=log_file(tmp_path / "out.log"), console=console, prefix=">")
        os.write(worker, b"last words")
        stream.close()
        console.close()
        os.close(worker)

    run_async(body)
    assert terminal.close()[0] == ">last words\n"


def test_a_pipe_that_ends_is_closed_at_once_while_the_others_go_on(tmp_path: Path) -> None:
    async def body() -> None:
        logs = JobLogs(launch(log_dir=str(tmp_path), tee=Std.OUT), stdout=console)
        streams = await logs.open(ASSIGNMENT, [{}, {}])
        before = len(descriptors())
        streams[0].close()
        await events_handled()
        await logs.disk.call(lambda: None)
        assert len(descriptors()) == before - 3, "the worker's end, ours and the file"
        streams[1].close()
        logs.close(True)

    console = os.open(os.devnull, os.O_WRONLY)
    before = descriptors()
    run_async(body)
    assert descriptors() <= before
    os.close(console)


def test_generations_leave_no_descriptors_behind(tmp_path: Path) -> None:
    before = len(descriptors())
    run_workers(launch(log_dir=str(tmp_path), tee=Std.ALL, stdout_filters=("x",)), BOTH, BOTH, generations=3)
    assert len(descriptors()) == before


@pytest.mark.parametrize(
    ("path", "hint"),
    [("file", "choose another --log-dir"), ("file/below", "a part of this path is a file"), ("/proc/logs", "choose")],
)
def test_a_log_dir_that_cannot_be_made_is_one_line_with_the_path(tmp_path: Path, path: str, hint: str) -> None:
    (tmp_path / "file").touch()
    wanted = str(tmp_path / path)
    with pytest.raises(LogsNotWritable, match=hint) as raised:
        JobLogs(launch(log_dir=wanted))
    assert str(raised.value).startswith(f"cannot write logs under {wanted}")
    assert "\n" not in str(raised.value)


def test_a_full_disk_at_the_start_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:  # noqa: ARG001
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(LogsNotWritable, match=r"No space left on device; free some space, or choose another"):
        JobLogs(launch(log_dir=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_when_a_generation_cannot_be_opened_nothing_stays_open(tmp_path: Path) -> None:
    async def body() -> None:
        before = descriptors()
        with pytest.raises(LogsNotWritable, match=r"attempt_0: No such file or directory"):
            await logs.open(ASSIGNMENT, [{}, {}])
        assert descriptors() <= before

    logs = JobLogs(launch(log_dir=str(tmp_path), tee=Std.ALL))
    Path(logs.directory).rmdir()
    run_async(body)


def test_unknown_logs_specs_are_refused_in_torchs_words() -> None:
    with pytest.raises(ValueError, match=r"Could not find entrypoint under 'torchrun.logs_specs\[nobodys\]' key"):
        JobLogs(launch(specs="nobodys"))


def test_a_users_logs_specs_decide_on_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own default, registered under another name."""
    target = "torch.distributed.elastic.multiprocessing:DefaultLogsSpecs"
    found = (metadata.EntryPoint("mine", target, "torchrun.logs_specs"),)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: found)
    asked = launch(log_dir=str(tmp_path), redirects={0: Std.ERR}, tee=Std.OUT, ranks=frozenset({1}), specs="mine")
    stdout, _, directory, streams = run_workers(asked, BOTH, "echo hi")
    assert directory == tmp_path
    assert stdout == "[trainer1]:hi\n"
    (run,) = tmp_path.iterdir()
    assert tree(run) == {
        "attempt_0/0/stderr.log": "err\n",
        "attempt_0/0/stdout.log": "out\n",
        "attempt_0/1/stdout.log": "hi\n",
    }
    assert streams[0].error_file == str(run / "attempt_0/0/error.json")


@pytest.mark.parametrize("redirects", [Std.NONE, Std.OUT, {1: Std.ALL}])
@pytest.mark.parametrize("teed", [Std.NONE, Std.ERR, {0: Std.ALL}])
@pytest.mark.parametrize("ranks", [frozenset(), frozenset({1})])
def test_every_stream_goes_where_torch_sends_it(
    tmp_path: Path, redirects: Any, teed: Any, ranks: frozenset[int]
) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing import Std as TorchStd

    def theirs(streams: Any) -> Any:
        if isinstance(streams, dict):
            return {rank: TorchStd(int(stream)) for rank, stream in streams.items()}
        return TorchStd(int(streams))

    specs = DefaultLogsSpecs(str(tmp_path / "theirs"), theirs(redirects), theirs(teed), set(ranks) or None)
    expected = specs.reify({0: {"TORCHELASTIC_RUN_ID": "job"}, 1: {}})
    logs = JobLogs(launch(log_dir=str(tmp_path / "ours"), redirects=redirects, tee=teed, ranks=ranks))
    found = logs._layout.destinations(ASSIGNMENT, [{}, {}])
    (their_run,) = (tmp_path / "theirs").iterdir()

    def relative(paths: dict[int, str], run: str) -> dict[int, str]:
        return {rank: path.removeprefix(run) for rank, path in paths.items()}

    for name in ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files"):
        ours = relative(getattr(found, name), logs.directory)
        assert ours == relative(getattr(expected, name), str(their_run)), name
    assert found.filtered_stdout.removeprefix(logs.directory) == expected.filtered_stdout.removeprefix(str(their_run))
