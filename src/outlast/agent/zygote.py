"""The agent's side of the zygote: kept ready in the background, asked for workers, never depended upon.

Whatever goes wrong with it, workers can be started the ordinary way: all that it may cost is time.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import resource
import select
import signal
import socket
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from outlast.agent.workers import Streams, start_bound

log = logging.getLogger("agent")

# What every training imports, and what its first optimizer step imports on top.
FIRST_LESSON = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",
    "numpy",
)
REPLACEMENTS = 8  # in a row, of a zygote that is unfit; more is not worth the trouble
MESSAGE = 1 << 20
MOST_DESCRIPTORS = 250  # in one message, by the kernel's limit
LULL = 2.0  # seconds after a lesson: workers also tell when they end, and then the next ones are due first
HIGH = 128  # a number for the workers' socket that no script expects to be its next one
ROOM = " " * 4096  # for what workers have in their environment on top of what the zygote has
STARTUP = str(Path(__file__).parents[1] / "worker" / "startup")


class Zygote:
    """One node's zygote, replaced whenever it is in doubt. Made within a running event loop.

    `command` is a worker's. `patience`: seconds to wait for a fork; nothing else is done meanwhile.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, preload: Sequence[str], patience: float
    ) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._preload = list(preload)
        self._patience = patience
        self._lesson = dict.fromkeys((*FIRST_LESSON, *preload))  # in order, and each once
        self._taught = 0  # how many of these the present zygote has been told
        self._left_out: set[str] = set()  # modules, and all that is in them
        self._overshadowed = ""
        self._awake = False
        self._replaced = 0
        self._ready = False
        self._importing = ""
        self._lull: asyncio.TimerHandle | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with theirs:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self.news = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, min(HIGH, most // 2))
        self._loop.add_reader(self._ours, self._hear_lesson)

    def wake(self) -> None:
        """Start it, if it has not been: it is worth its memory only to a script that uses torch."""
        if not self._awake:
            self._awake = True
            self._start()

    def cold(self, environment: Mapping[str, str]) -> dict[str, str]:
        """For a worker that is not forked, but tells like one that is what there is to import: its environment."""
        return _startup(environment, f"worker {self.news}")

    def fork(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
    ) -> list[int] | None:
        """The pids of new workers, children of this process; None where they have to be started the ordinary way."""
        link = self._link
        if not self._ready or link is None or 2 * len(commands) + 6 > MOST_DESCRIPTORS:
            return None
        if any(_program(command) != _program(self._command) for command in commands):
            return None
        self._loop.remove_reader(link)
        link.settimeout(self._patience)
        try:
            answer = self._deliver(link, *self._request(commands, environments, streams))
        except OSError as error:
            answer = {"doubt": f"it did not answer ({error})"}
        if answer["doubt"]:
            log.warning("workers are started the ordinary way: the zygote is unfit, %s", answer["doubt"])
            self._replace()
            return None
        link.setblocking(False)
        self._loop.add_reader(link, self._hear)
        self._replaced = 0
        self._tell_overshadowed(answer["overshadowed"])
        return answer["pids"] or None

    def _request(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
    ) -> tuple[dict[str, Any], list[int]]:
        first, *others = environments
        common = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
        descriptors = [1, 2]
        workers = []
        for command, environment, ends in zip(commands, environments, streams, strict=True):
            worker: dict[str, object] = {"command": list(command)}
            worker["environment"] = {k: v for k, v in environment.items() if k not in common}
            for name, descriptor in (("stdout", ends.stdout), ("stderr", ends.stderr)):
                if descriptor is None:
                    worker[name] = 0 if name == "stdout" else 1
                else:
                    worker[name] = len(descriptors)
                    descriptors.append(descriptor)
            workers.append(worker)
        request = {"agent": os.getpid(), "directory": str(Path.cwd()), "beside": _beside(self._command)}
        request |= {"news": self.news, "environment": common, "workers": workers}
        return request, descriptors

    def _deliver(self, link: socket.socket, request: dict[str, Any], streams: list[int]) -> dict[str, Any]:
        """Have workers forked: they wait until we know of them, and we wait until each has a session of its own.

        Those that we do not hear of in time end by themselves, as the pipe on which they wait is closed.
        """
        with ExitStack() as stack:
            waiting, go = (stack.enter_context(end) for end in _pipe())
            born, birth = (stack.enter_context(end) for end in _pipe())
            _ask(link, b"fork", request, [self.news, waiting.fileno(), *streams, birth.fileno()])
            birth.close()
            answer: dict[str, Any] = json.loads(link.recv(MESSAGE) or b'{"doubt": "it ended"}')
            if not answer.get("pids"):
                return answer
            go.write(bytes(len(answer["pids"])))
            if not select.select([born], [], [], self._patience)[0]:
                for pid in answer["pids"]:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                raise TimeoutError("its workers do not come to life")
            return answer

    def close(self) -> None:
        """End it for good."""
        if self._lull is not None:
            self._lull.cancel()
        self._end()
        self._loop.remove_reader(self._ours)
        self._ours.close()
        os.close(self.news)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = start_bound(
                    self._command,
                    _startup(self._environment, f"zygote {theirs.fileno()}{ROOM}"),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except OSError as error:
                ours.close()
                log.warning("no zygote, restarts will be slower: %s", error)
                return
        ours.setblocking(False)
        self._link, self._taught = ours, 0
        self._loop.add_reader(ours, self._hear)
        self._teach()

    def _teach(self) -> None:
        """Have it import what it has not been told of yet."""
        assert self._link is not None
        new = list(self._lesson)[self._taught :]
        self._taught = len(self._lesson)
        self._ready = False
        modules = [name for name in new if not any(f"{name}.".startswith(f"{out}.") for out in self._left_out)]
        lesson = {"modules": modules, "preload": self._preload, "beside": _beside(self._command)}
        with suppress(BrokenPipeError):  # that it has ended is heard next
            _ask(self._link, b"import", lesson, [])

    def _hear_lesson(self) -> None:
        """A worker tells which installed modules it has imported."""
        try:
            modules = zlib.decompress(self._ours.recv(MESSAGE)).decode().split()
        except (zlib.error, ValueError):
            return  # a script that wrote into a descriptor that it does not know
        self._lesson.update(dict.fromkeys(modules))
        self.wake()
        if self._lull is None:
            self._lull = self._loop.call_later(LULL, self._after_lull)

    def _after_lull(self) -> None:
        self._lull = None
        if self._ready and self._taught < len(self._lesson):
            self._teach()

    def _hear(self) -> None:
        assert self._link is not None
        try:
            data = self._link.recv(MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self._importing:
                self._leave_out(self._importing, "its import ended the zygote")
            self._replace()
            return
        message = json.loads(data)
        if "importing" in message:
            self._importing = message["importing"]
            return
        self._importing = ""
        if message["doubt"]:
            self._leave_out(message["culprit"], message["doubt"])
        for name, why in message["failed"].items():
            self._leave_out(name, why)
        if message["doubt"]:
            self._replace()
            return
        log.debug("the zygote is ready, after %.1f s of imports", message["took"])
        self._ready = True
        if self._taught < len(self._lesson):
            self._teach()

    def _leave_out(self, module: str, why: str) -> None:
        if module not in self._left_out:
            self._left_out.add(module)
            log.info("the zygote leaves out %s: %s", module, why)

    def _tell_overshadowed(self, name: str) -> None:
        if name and name != self._overshadowed:
            log.warning(
                "workers are started the ordinary way: %s beside the script has the name of a module that the zygote"
                " has imported; rename it for fast restarts",
                name,
            )
        self._overshadowed = name

    def _replace(self) -> None:
        self._end()
        self._replaced += 1
        if self._replaced < REPLACEMENTS:
            self._start()
        elif self._replaced == REPLACEMENTS:
            log.warning("no zygote is fit to be forked: restarts will be slower")

    def _end(self) -> None:
        self._ready, self._importing = False, ""
        if self._link is not None:
            self._loop.remove_reader(self._link)
            self._link.close()
            self._link = None
        if self._process is not None:
            # With it go those that it was about to fork, and what an import may have started.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            with suppress(ChildProcessError):
                while True:
                    os.waitpid(-self._process.pid, 0)
            self._process = None


def _startup(environment: Mapping[str, str], purpose: str) -> dict[str, str]:
    """An environment in which Python runs our `sitecustomize` first, which takes away what is added here."""
    before = environment.get("PYTHONPATH")
    others = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": f"{STARTUP}{os.pathsep}{before}" if before else STARTUP, "OUTLAST_STARTUP": purpose}


def _program(command: Sequence[str]) -> tuple[str, ...]:
    """What of a worker's command line decides what is run: all but the arguments."""
    return tuple(command[: 4 if command[2] == "-m" else 3])


def _beside(command: Sequence[str]) -> str:
    """The directory from which a worker's script imports first; "" if there is none."""
    if os.environ.get("PYTHONSAFEPATH"):
        return ""
    if command[2] == "-m":
        return str(Path.cwd())
    script = Path(command[2]).resolve()
    return str(script if script.is_dir() else script.parent)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)


def _ask(link: socket.socket, word: bytes, content: object, descriptors: list[int]) -> None:
    """Say a word; what belongs to it goes in a file in memory, which may be larger than a message."""
    with os.fdopen(os.memfd_create("outlast"), "wb") as file:
        file.write(json.dumps(content).encode())
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        socket.send_fds(link, [word], [file.fileno(), *descriptors])
