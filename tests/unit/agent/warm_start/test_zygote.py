"""A worker forked from a zygote: to its script, and to others, it is what a new process would have been.

Every script here runs three ways: by plain Python, started by the agent, and forked. Nothing needs torch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from outlast.agent.processes.worker import Streams
from outlast.agent.processes.workers import WorkerGroup, be_subreaper
from outlast.agent.warm_start import zygote as agents_side
from outlast.agent.warm_start.zygote import Zygote
from outlast.agent.warm_start.zygote_process import ZygoteProcess
from outlast.system import proc
from outlast.worker import fitness
from processes import alive

DEADLINE = 120.0
FACTS = Path(__file__).parents[3] / "integration" / "scripts" / "warm_facts.py"
T = TypeVar("T")


@dataclass
class End:
    """How a process ended, and what it wrote."""

    code: int
    output: str
    errors: str


@pytest.fixture(autouse=True)
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """This process is the agent; its zygotes begin with a lesson that takes no time."""
    monkeypatch.setattr(agents_side, "FIRST_LESSON", ("json", "random"))
    monkeypatch.setattr(agents_side, "LULL", 0.0)
    monkeypatch.chdir(tmp_path)
    be_subreaper()
    yield
    be_subreaper(False)


class Observed(Zygote):
    """A zygote of which every word is noticed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.heard = asyncio.Event()
        super().__init__(*args, **options)

    def _hear(self, process: ZygoteProcess) -> None:
        super()._hear(process)
        self.heard.set()


class Nursery:
    """One zygote, and the workers that come from it."""

    def __init__(
        self, command: Sequence[str], *, preload: Sequence[str] = (), patience: float = 60.0, spares: int = 0
    ) -> None:
        self.command = command
        self.zygote = Observed(command, os.environ, preload=preload, patience=patience, spares=spares)
        self.forked = 0

    async def ready(self) -> None:
        self.zygote.wake()
        await self.until(self.has_learned)

    def has_learned(self) -> bool:
        serving = self.zygote._serving
        return serving is not None and serving.taught == len(self.zygote._lesson)

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self.zygote.heard.clear()
            await asyncio.wait_for(self.zygote.heard.wait(), DEADLINE)

    @property
    def pid(self) -> int:
        """That of the zygote in service."""
        assert self.zygote._serving is not None
        return self.zygote._serving.pid

    def lose_patience(self) -> None:
        """With the zygote in service, not with the next one: that is to answer, however slow this machine is."""
        assert self.zygote._serving is not None
        self.zygote._serving._patience = 0.2

    async def run(self, *commands: Sequence[str]) -> list[End]:
        """Run workers to their end: forked if the zygote is ready for it, else as new processes."""
        commands = commands or (self.command,)
        exits: dict[int, int] = {}
        ended = asyncio.Event()

        def on_exit(local_rank: int, _pid: int, code: int) -> None:
            exits[local_rank] = code
            if len(exits) == len(commands):
                ended.set()

        def fork(*request: Any) -> list[int] | None:
            pids = self.zygote.fork(*request)
            self.forked += len(pids or ())
            return pids

        files = [Path(f"{name}-{rank}") for rank in range(len(commands)) for name in ("output", "errors")]
        ends = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for file in files]
        group = WorkerGroup.start(
            commands,
            [{**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(len(commands))],
            [Streams(ends[i], ends[i + 1], "") for i in range(0, len(ends), 2)],
            on_exit,
            fork=fork,
            cold=self.zygote.cold,
            pass_fds=[self.zygote.news],
        )
        try:
            await asyncio.wait_for(ended.wait(), DEADLINE)
        finally:
            await group.stop(signal.SIGKILL, 0)
        texts = [file.read_text() for file in files]
        return [End(exits[rank], *texts[2 * rank : 2 * rank + 2]) for rank in range(len(commands))]


def nursery(body: Callable[[Nursery], Coroutine[Any, Any, T]], command: Sequence[str], **options: Any) -> T:
    """Run `body` with a zygote for this command; the zygote is gone afterwards."""

    async def run() -> T:
        made = Nursery(command, **options)
        try:
            return await body(made)
        finally:
            made.zygote.close()

    return asyncio.run(run())


def three_ways(
    command: Sequence[str], before: Callable[[], None] = lambda: None, **options: Any
) -> tuple[End, End, End]:
    """Run a command by plain Python, as a worker that is started, and as one that is forked; `before` comes first."""
    before()
    with open("output", "wb") as output, open("errors", "wb") as errors:
        plain = subprocess.run(command, stdout=output, stderr=errors, start_new_session=True)
    texts = Path("output").read_text(), Path("errors").read_text()

    async def run(made: Nursery) -> tuple[End, End]:
        before()
        (cold,) = await made.run()
        await made.ready()
        before()
        (forked,) = await made.run()
        assert made.forked == 1
        return cold, forked

    return End(plain.returncode, *texts), *nursery(run, command, **options)


def python(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-u", *map(str, arguments)]


# -- what it sees


def as_script(where: Path) -> list[str]:
    return [str(shutil.copy(FACTS, where / "facts.py"))]


def in_another_directory(where: Path) -> list[str]:
    (where / "elsewhere").mkdir()
    shutil.copy(FACTS, where / "elsewhere" / "facts.py")
    return ["./elsewhere/../elsewhere/facts.py"]


def by_symbolic_link(where: Path) -> list[str]:
    in_another_directory(where)
    (where / "link.py").symlink_to("elsewhere/facts.py")
    return ["link.py"]


def in_another_encoding(where: Path) -> list[str]:
    text = FACTS.read_text().replace("without torch", "without torch, à la carte")
    (where / "facts").write_bytes(b"#!/usr/bin/env python\n# -*- coding: latin-1 -*-\n" + text.encode("latin-1"))
    return ["facts"]


def as_module(where: Path) -> list[str]:
    (where / "package" / "inner").mkdir(parents=True)
    (where / "package" / "__init__.py").write_text("name = 'package'")
    (where / "package" / "inner" / "__init__.py").touch()
    text = FACTS.read_text().replace("import builtins ", "from .. import name  # noqa: E402\nimport builtins ", 1)
    (where / "package" / "inner" / "facts.py").write_text(text)
    return ["-m", "package.inner.facts"]


def as_package(where: Path) -> list[str]:
    (where / "package").mkdir()
    shutil.copy(FACTS, where / "package" / "__main__.py")
    return ["-m", "package"]


def as_directory(where: Path) -> list[str]:
    as_package(where)
    return ["package"]


def as_archive(where: Path) -> list[str]:
    with zipfile.ZipFile(where / "archive.zip", "w") as archive:
        archive.write(FACTS, "__main__.py")
    return ["archive.zip"]


def by_run_path(where: Path) -> list[str]:
    return ["-m", "outlast.worker.run_path", *as_script(where)]


WAYS = [
    as_script,
    in_another_directory,
    by_symbolic_link,
    in_another_encoding,
    as_module,
    as_package,
    as_directory,
    as_archive,
    by_run_path,
]


@pytest.mark.parametrize("way", WAYS)
def test_a_script_sees_the_same_however_it_is_run(way: Callable[[Path], list[str]], tmp_path: Path) -> None:
    ends = three_ways(python(*way(tmp_path), "--flag", "a b", ""))
    assert [(end.code, end.errors) for end in ends] == [(0, "")] * 3
    plain, cold, forked = (json.loads(end.output) for end in ends)
    for kind in ("main", "interpreter", "process", "streams"):
        assert differences(plain[kind], cold[kind]) == {}, f"{kind} of a worker that was started"
        assert differences(plain[kind], forked[kind]) == {}, f"{kind} of a worker that was forked"
    for place in (cold["place"], forked["place"]):
        assert place["leads"]
        assert place["parent"] == os.getpid()
        assert place["death_signal"] == signal.SIGKILL


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    assert one.keys() == other.keys()
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def test_its_environment_is_that_of_a_worker_also_to_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    monkeypatch.setenv("BYTES", os.fsdecode(b"\xff\xfe"))
    monkeypatch.delenv("HOME", raising=False)
    _, cold, forked = (json.loads(end.output)["place"] for end in three_ways(python(FACTS)))
    for place in (cold, forked):
        assert place["environment"]["RANK"] == "0"
        assert place["environment"]["PYTHONPATH"] == str(tmp_path / "mine")
        assert place["environment"]["BYTES"] == os.fsdecode(b"\xff\xfe")
        assert not [name for name in place["environment"] if name.startswith("OUTLAST_STARTUP")]
        of_children = dict(entry.split("=", 1) for entry in place["children's environment"].split("\0") if entry)
        assert of_children == place["environment"]
        del place["environment"]["OUTLAST_WORKER_GROUP"]
    assert forked["environment"] == cold["environment"]
    assert {*forked["shown environment"].split("\0")} - {""} >= {f"{k}={v}" for k, v in forked["environment"].items()}


def test_what_an_import_changes_in_the_environment_stays_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(
        "import json, os, changes\n"
        "print(json.dumps([os.environ.get(name) for name in ('NEW', 'OLD', 'GONE', 'RANK')]))\n"
    )
    (tmp_path / "changes.py").write_text(
        "import os; os.environ['NEW'] = 'new'; os.environ['OLD'] += ' and new'; del os.environ['GONE']"
    )
    monkeypatch.setenv("OLD", "old")
    monkeypatch.setenv("GONE", "there")
    for end in three_ways(python("script.py"), preload=["changes"])[1:]:
        assert json.loads(end.output) == ["new", "old and new", None, "0"]


# -- how it ends

ENDINGS = {
    "at its end": "print('done')",
    "with a code": "import sys; sys.exit(3)",
    "with a text": "import sys; sys.exit('text')",
    "with an exception": "def fail():\n    return 1 / 0\n\nfail()",
    "with a chain of exceptions": "try:\n    {}[1]\nexcept KeyError as error:\n    raise ValueError('no') from error",
    "with a syntax error": "def :",
    "with a group": "raise SystemExit" if sys.version_info < (3, 11) else "raise ExceptionGroup('g', [ValueError(1)])",
    "at once": "import os; os._exit(5)",
    "by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "by Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "by an abort": "import os; os.abort()",
    "with a crash that is reported": "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)",
    "with a hook of its own": "import sys; sys.excepthook = lambda *what: print(what[1]); raise ValueError('mine')",
    "with a thread that exits": "import sys, threading; t = threading.Thread(target=sys.exit); t.start(); t.join()",
    "with a thread that fails": "import threading; threading.Thread(target=lambda: 1 / 0, name='t').start()",
    "after its threads": "import threading; threading.Timer(0.05, print, ['late']).start(); print('early')",
    "with handlers, once and in order": "import atexit; [atexit.register(print, n) for n in range(3)]; print('end')",
    "with a handler that fails": "import atexit; atexit.register(lambda: 1 / 0)",
    "with a warning": "import warnings; warnings.warn('careful')",
    "with a log line": "import logging; logging.warning('careful'); logging.getLogger('x').error('bad')",
    "in the middle of a line": "import sys; sys.stdout.write('no end'); sys.stderr.write('none either')",
    "on a closed stream": "import sys; sys.stdout.close()",
    "with its stack": "import traceback; traceback.print_stack()",
    "without its file": "import os; os.remove(__file__); raise ValueError",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_it_ends_as_plain_python_does(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"

    def write() -> None:
        script.write_text(ENDINGS[how])

    plain, cold, forked = (without_ids(end) for end in three_ways(python(script), before=write))
    assert cold == plain
    assert forked == plain


def without_ids(end: End) -> End:
    """What a crash report says but for the number of the thread, and which extensions are loaded."""
    errors = re.sub(r"0x[0-9a-f]{8,}", "0x…", end.errors)
    return End(end.code, end.output, re.sub(r"\nExtension modules: .*", "", errors))


# -- what it is made of


def test_no_two_workers_share_random_numbers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os, random, secrets, tempfile, uuid\n"
        "key = bytes(multiprocessing.current_process().authkey).hex()\n"
        "print(random.random(), secrets.token_hex(), uuid.uuid4(), next(tempfile._get_candidate_names()), key)\n"
    )

    async def run(made: Nursery) -> list[str]:
        await made.ready()
        ends = [*await made.run(made.command, made.command), *await made.run(made.command, made.command)]
        assert made.forked == 4
        return [end.output for end in ends]

    modules = ["random", "secrets", "tempfile", "uuid", "multiprocessing.process"]
    columns = zip(*(line.split() for line in nursery(run, python(script), preload=modules)), strict=True)
    assert [len(set(column)) for column in columns] == [4] * 5


def test_each_worker_has_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys; print(sys.argv, sys.orig_argv, open('/proc/self/cmdline').read().split('\\0'))"
    )
    commands = [python("script.py", "--rank", rank, "last") for rank in ("0", "1", "a rank that is longer")]

    async def run(made: Nursery) -> list[End]:
        await made.ready()
        ends = await made.run(*commands)
        assert made.forked == 3
        return ends

    forked = nursery(run, commands[0])
    plain = [subprocess.run(command, capture_output=True, text=True).stdout for command in commands]
    assert [end.output for end in forked[:2]] == plain[:2]
    # Only what others see of it is bound to the room that there is.
    assert forked[2].output.split("]")[:2] == plain[2].split("]")[:2]


def test_the_users_own_modules_are_as_they_are_now(tmp_path: Path) -> None:
    """Also those that an earlier worker has imported, and the script itself."""
    script, sibling = tmp_path / "script.py", tmp_path / "sibling.py"

    async def run(made: Nursery) -> list[str]:
        await made.ready()
        seen = []
        for version in range(3):
            script.write_text(f"import sibling; print({version}, sibling.version)")
            sibling.write_text(f"version = {version}")
            seen += [end.output for end in await made.run()]
        assert made.forked == 3
        return seen

    script.touch()
    assert nursery(run, python(script)) == ["0 0\n", "1 1\n", "2 2\n"]


def test_the_users_own_modules_are_kept_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    script, sibling = tmp_path / "elsewhere" / "script.py", tmp_path / "elsewhere" / "sibling.py"
    script.write_text("import sys; print('sibling' in sys.modules); import sibling; print(sibling.version)")
    sibling.write_text("version = 1")

    async def run(made: Nursery) -> str:
        await made.ready()
        sibling.write_text("version = 2")
        (end,) = await made.run()
        assert made.forked == 1
        return end.output

    assert nursery(run, python(script), preload=["sibling"]) == "True\n1\n"


@pytest.mark.parametrize("name", ["random.py", "json/__init__.py"])
def test_a_file_with_the_name_of_a_module_that_the_zygote_has_is_found_all_the_same(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, sibling = tmp_path / "script.py", tmp_path / name
    script.write_text(f"import {name.partition('.')[0].partition('/')[0]} as it; print(it.__file__)")
    sibling.parent.mkdir(exist_ok=True)
    sibling.touch()

    async def run(made: Nursery) -> list[str]:
        await made.ready()
        ends = [*await made.run(), *await made.run()]
        assert made.forked == 0
        return [end.output for end in ends]

    assert nursery(run, python(script)) == [f"{sibling}\n"] * 2
    assert len([line for line in caplog.messages if "beside the script has the name" in line]) == 1


def test_a_sitecustomize_of_the_users_is_run_in_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import os; rank = os.environ.get('RANK')")
    (tmp_path / "script.py").write_text("import sys; m = sys.modules['sitecustomize']; print(m.rank, m.__file__)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    _, cold, forked = three_ways(python("script.py"))
    assert cold.output == forked.output == f"0 {tmp_path / 'mine' / 'sitecustomize.py'}\n"


# -- what it learns while it serves


def teach(made: Nursery, *modules: str) -> None:
    """As a worker does that has imported them."""
    os.write(made.zygote.news, zlib.compress("\n".join(modules).encode()))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where modules lie that the zygote can import: `slow` takes as long as nobody writes into the fifo `released`."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "quick.py").touch()
    (mine / "slow.py").write_text("import os; open(os.path.join(os.path.dirname(__file__), 'released')).read()")
    (mine / "bad.py").write_text("import os; os.environ['RANK']")
    os.mkfifo(mine / "released")
    monkeypatch.setenv("PYTHONPATH", str(mine))
    (tmp_path / "script.py").write_text("import sys; print(*({'bad', 'quick', 'slow'} & set(sys.modules)))")
    return mine


def is_at(made: Nursery, module: str) -> Callable[[], bool]:
    return lambda: made.zygote._learning is not None and made.zygote._learning.importing == module


def test_workers_are_forked_also_while_it_learns(mine: Path) -> None:
    async def run(made: Nursery) -> None:
        await made.ready()
        former = made.pid
        teach(made, "slow")
        await made.until(is_at(made, "slow"))
        (end,) = await made.run()
        assert (made.forked, end.output, made.pid) == (1, "quick\n", former)
        (mine / "released").write_text("")
        await made.ready()
        assert made.pid != former
        assert not alive(former)
        assert sorted((await made.run())[0].output.split()) == ["quick", "slow"]
        assert made.forked == 2

    nursery(run, python("script.py"), preload=["quick"])


def test_what_it_should_not_have_learned_costs_the_one_that_tried_and_not_the_one_in_service(mine: Path) -> None:
    async def run(made: Nursery) -> None:
        await made.ready()
        former = made.pid
        teach(made, "bad", "slow")
        await made.until(is_at(made, "slow"))  # it goes on, to find out what else it cannot have
        assert made.pid == former
        (mine / "released").write_text("")
        await made.until(lambda: set(made.zygote._left_out) == {"bad"})
        await made.until(is_at(made, "slow"))  # another one
        assert made.pid == former
        (mine / "released").write_text("")
        await made.until(lambda: made.pid != former)
        assert sorted((await made.run())[0].output.split()) == ["quick", "slow"]
        assert made.forked == 1

    nursery(run, python("script.py"), preload=["quick"])


def test_the_one_that_learns_outlives_the_one_in_service(mine: Path) -> None:
    async def run(made: Nursery) -> None:
        await made.ready()
        former = made.pid
        teach(made, "slow")
        await made.until(is_at(made, "slow"))
        os.kill(former, signal.SIGKILL)
        await made.until(lambda: made.zygote._serving is None)
        assert [end.output for end in await made.run()] == ["\n"]  # started the ordinary way
        (mine / "released").write_text("")
        await made.ready()
        assert sorted((await made.run())[0].output.split()) == ["quick", "slow"]
        assert made.forked == 1

    nursery(run, python("script.py"), preload=["quick"])


def test_after_too_many_attempts_the_one_in_service_stays_as_it_is(
    mine: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_side, "FAILURES", 2)
    for name in ("bad_1", "bad_2", "bad_3"):
        (mine / f"{name}.py").write_text("import os; os._exit(0)")

    async def run(made: Nursery) -> None:
        await made.ready()
        former = made.pid
        teach(made, "bad_1", "bad_2", "bad_3")
        await made.until(lambda: made.zygote._failures == 2)
        assert made.zygote._learning is None
        assert [end.output for end in await made.run()] == ["quick\n"]
        assert (made.forked, made.pid) == (1, former)
        teach(made, "slow")  # after a restart it is tried again
        await made.until(is_at(made, "slow"))
        assert set(made.zygote._left_out) == {"bad_1", "bad_2", "bad_3"}

    nursery(run, python("script.py"), preload=["quick"])
    assert "the zygote learns nothing more until the next restart" in caplog.text


@pytest.mark.usefixtures("mine")
def test_a_zygote_that_does_not_answer_has_no_successor(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run(made: Nursery) -> None:
        await made.ready()
        former = made.pid
        made.lose_patience()
        os.kill(former, signal.SIGSTOP)
        teach(made, "quick")
        await made.until(lambda: made.zygote._serving is not None and made.pid != former)
        assert not alive(former)
        assert [end.output for end in await made.run()] == ["quick\n"]
        assert made.forked == 1

    nursery(run, python("script.py"))
    assert "the zygote is unfit, another one is started: it did not answer" in caplog.text


# -- what it does not trust


UNFIT = {
    "leaves a thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=[1000], daemon=True).start()",
        "left a thread",
    ),
    "leaves a process": ("import subprocess; child = subprocess.Popen(['sleep', '1000'])", "left a process"),
    "reads its rank": ("import os; main = os.getenv('LOCAL_RANK', '0') == '0'", "reads LOCAL_RANK"),
    "raises": ("raise RuntimeError('not today')", "RuntimeError: not today"),
    "exits": ("raise SystemExit('not today')", "SystemExit: not today"),
    "exits at once": ("import os; os._exit(0)", "ended the zygote"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "ended the zygote"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "ended the zygote"),
    "is not there": (None, "No module named 'odd'"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_module_that_makes_a_fork_unsafe_is_left_out(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, why = UNFIT[what]
    (tmp_path / "mine" / "odd").mkdir(parents=True)
    if code is not None:
        (tmp_path / "mine" / "odd" / "__init__.py").write_text(code)
        (tmp_path / "mine" / "odd" / "inner.py").touch()
    (tmp_path / "mine" / "even.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    caplog.set_level(logging.INFO)
    (tmp_path / "script.py").write_text("import sys; print(*({'even', 'odd', 'odd.inner'} & set(sys.modules)))")

    async def run(made: Nursery) -> str:
        await made.ready()
        (end,) = await made.run()
        assert made.forked == 1
        return end.output

    if code is None:
        (tmp_path / "mine" / "odd").rmdir()
    assert nursery(run, python("script.py"), preload=["odd", "odd.inner", "even"]) == "even\n"
    said = [line for line in caplog.messages if line.startswith("the zygote skips odd:")]
    assert len(said) == 1
    assert why in said[0]


def test_the_module_that_is_to_blame_is_found_with_all_that_import_it_in_one_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    (mine / "packed").mkdir(parents=True)
    leaves_a_thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    modules = {
        "outer": "import inner, even",
        "inner": "import packed.bad",
        "packed/__init__": "",
        "packed/bad": leaves_a_thread,
        "packed/good": "",
        "another": "try:\n    import packed.bad\nexcept Exception:\n    pass",
        "later": "def f():\n    import packed.bad",
        "even": "",
        "ranked": "import os; os.environ['RANK']",
    }
    for name, code in modules.items():
        (mine / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(mine))
    monkeypatch.setattr(agents_side, "FAILURES", 2)
    caplog.set_level(logging.INFO)
    names = [name.replace("/__init__", "").replace("/", ".") for name in modules]
    (tmp_path / "script.py").write_text(f"import sys; print(*sorted({set(names)} & set(sys.modules)))")

    async def run(made: Nursery) -> str:
        await made.ready()
        (end,) = await made.run()
        assert made.forked == 1
        assert {name for name, spares in made.zygote._left_out.items() if spares} == {
            "outer",
            "inner",
            "packed.bad",
            "another",
        }
        return end.output

    assert nursery(run, python("script.py"), preload=names) == "even later packed packed.good\n"
    assert "the zygote skips packed.bad and 3 importers: it left a thread running" in caplog.messages
    assert any(line.startswith("the zygote skips ranked: it reads RANK") for line in caplog.messages)


def test_those_who_are_known_to_keep_a_rank_get_their_own(tmp_path: Path) -> None:
    keeper = tmp_path / "torchmetrics" / "utilities" / "prints.py"
    keeper.parent.mkdir(parents=True)
    keeper.write_text("import os\ndef rank_zero_only(): ...\nrank_zero_only.rank = int(os.getenv('LOCAL_RANK', 0))\n")
    (tmp_path / "script.py").write_text("from torchmetrics.utilities.prints import *; print(rank_zero_only.rank)")

    async def run(made: Nursery) -> list[str]:
        await made.ready()
        ends = await made.run(made.command, made.command)
        assert made.forked == 2
        return [end.output for end in ends]

    assert nursery(run, python("script.py"), preload=["torchmetrics.utilities.prints"]) == ["0\n", "1\n"]


def test_a_thread_that_knows_about_forks_is_no_reason_to_leave_a_module_out(tmp_path: Path) -> None:
    (tmp_path / "arrow.py").write_text(
        "import ctypes, threading, time\n"
        "there = threading.Event()\n"
        "def allocate():\n"
        "    ctypes.CDLL(None).prctl(15, b'jemalloc_bg_thd', 0, 0, 0)\n"
        "    there.set()\n"
        "    time.sleep(1000)\n"
        "threading.Thread(target=allocate, daemon=True).start()\n"
        "there.wait()\n"
    )
    (tmp_path / "script.py").write_text("import sys; print('arrow' in sys.modules)")

    async def run(made: Nursery) -> str:
        await made.ready()
        (end,) = await made.run()
        assert made.forked == 1
        return end.output

    assert nursery(run, python("script.py"), preload=["arrow"]) == "True\n"


def test_an_open_accelerator_makes_a_process_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitness.unfit() in ("", "it left a thread running", "it left a process running")
    monkeypatch.setattr(fitness, "_threads", list)
    monkeypatch.setattr(proc, "children", lambda _: [])
    assert fitness.unfit() == ""
    monkeypatch.setattr(fitness, "DEVICES", ("/dev/null",))  # as /dev/nvidia0 is, on a machine that has one
    with open("/dev/null"):
        assert fitness.unfit() == "it opened /dev/null"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_start_without_a_zygote_that_is_gone_or_does_not_answer(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "script.py").write_text("print('at work')")

    async def run(made: Nursery) -> None:
        await made.ready()
        first = made.pid
        made.lose_patience()
        os.kill(first, number)
        ends = await made.run(made.command, made.command)
        assert [(end.code, end.output) for end in ends] == [(0, "at work\n")] * 2
        assert made.forked == 0
        await made.ready()
        assert made.pid != first
        await made.run()
        assert made.forked == 1

    nursery(run, python("script.py"))
    assert "workers are started the ordinary way: the zygote is unfit" in caplog.text


def test_a_zygote_that_dies_while_nobody_needs_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()

    async def run(made: Nursery) -> None:
        await made.ready()
        first = made.pid
        os.kill(first, signal.SIGKILL)
        await made.until(lambda: made.zygote._serving is None)
        await made.ready()
        assert made.pid != first
        await made.run()
        assert made.forked == 1

    nursery(run, python("script.py"))


def test_workers_that_were_forked_too_late_never_begin(tmp_path: Path) -> None:
    """The agent has given up on them, and started others in their place."""
    (tmp_path / "script.py").write_text("import os; open(f'worker-{os.getpid()}', 'w')")

    async def run(made: Nursery) -> None:
        await made.ready()
        serving = made.zygote._serving
        assert serving is not None
        with serving.link as link:
            serving.link = Deaf(link)
            made.zygote._loop.remove_reader(link)
        await made.run()
        assert made.forked == 0

    nursery(run, python("script.py"))
    assert len(list(tmp_path.glob("worker-*"))) == 1


class Deaf(socket.socket):
    """A link on which no answer is heard, though the zygote gives one."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(fileno=os.dup(link.fileno()))

    def recv(self, *_: Any) -> bytes:
        assert b"pids" in super().recv(1 << 20)
        raise TimeoutError("timed out")


def test_what_a_worker_forks_is_found_when_the_worker_is_gone(tmp_path: Path) -> None:
    """A daemon without a parent, in a session of its own, that never was another program."""
    (tmp_path / "script.py").write_text(
        "import os, time\n"
        "reading, writing = os.pipe()\n"
        "if child := os.fork():\n"
        "    os.waitpid(child, 0)\n"
        "    print(os.read(reading, 20).decode())\n"
        "    raise SystemExit\n"
        "os.setsid()\n"
        "if os.fork():\n"
        "    os._exit(0)\n"
        "os.write(writing, str(os.getpid()).encode())\n"
        "time.sleep(1000)\n"
    )

    async def run(made: Nursery) -> int:
        await made.ready()
        (end,) = await made.run()
        assert made.forked == 1
        return int(end.output)

    assert not alive(nursery(run, python("script.py")))
