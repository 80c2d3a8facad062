"""One zygote process, as its agent knows it: what it is asked, what it answers, and its end."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from outlast.agent.processes.spawning import start_bound

MESSAGE = 1 << 20
MOST_DESCRIPTORS = 250  # in one message, by the kernel's limit
ROOM = " " * 4096  # for what workers have in their environment on top of what the zygote has
STARTUP = str(Path(__file__).parents[2] / "worker" / "startup")


class UnfitZygote(Exception):
    """A zygote that is not to be forked: the message says why. End it, and do without or take another."""


class ZygoteProcess:
    """A zygote, from its first word to its end. It dies with this process.

    `link` is readable when it says something, or has ended. `taught`: how many of the agent's lessons it has been told.
    `patience`: seconds to wait for a fork; nothing else is done meanwhile.
    """

    def __init__(self, pid: int, link: socket.socket, *, patience: float) -> None:
        self.pid = pid
        self.link = link
        self.taught = 0
        self.importing = ""  # the module that it is at
        self._patience = patience
        link.setblocking(False)

    @classmethod
    def begin(cls, command: Sequence[str], environment: Mapping[str, str], *, patience: float) -> ZygoteProcess:
        """A new one, which has imported nothing. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = start_bound(
                    command,
                    startup(environment, f"zygote {theirs.fileno()}{ROOM}"),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except OSError:
                ours.close()
                raise
        process.returncode = 0  # it is ours to wait for, not subprocess's
        return cls(process.pid, ours, patience=patience)

    def successor(self) -> ZygoteProcess:
        """A fork of it, which has imported all that it has, and been taught the same. Raises `UnfitZygote`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                (pid,) = self._deliver(b"succeed", {"agent": os.getpid()}, theirs.fileno())["pids"]
            except UnfitZygote:
                ours.close()
                raise
        successor = ZygoteProcess(pid, ours, patience=self._patience)
        successor.taught = self.taught
        return successor

    def learn(self, lesson: Mapping[str, object]) -> None:
        """Have it import modules: it answers later, see `hear`."""
        with suppress(BrokenPipeError):  # that it has ended is heard next
            _ask(self.link, b"import", lesson, [])

    def warm(self, how: Mapping[str, object]) -> None:
        """Have it use a GPU, after which it can become a worker, and do nothing else: it answers later, see `hear`."""
        with suppress(BrokenPipeError):  # that it has ended is heard next
            _ask(self.link, b"warm", how, [])

    def become(self, births: Mapping[str, object], news: int, streams: Sequence[int]) -> dict[str, Any]:
        """Have it become the one worker of these births: the answer is as that of `fork`. Raises `UnfitZygote`."""
        return self._deliver(b"become", births, news, streams)

    def hear(self) -> dict[str, Any] | None:
        """What it says; {} if it does not, None if it has ended."""
        try:
            data = self.link.recv(MESSAGE)
        except BlockingIOError:
            return {}
        except OSError:
            return None
        message: dict[str, Any] | None = json.loads(data) if data else None
        return message

    def fork(self, births: Mapping[str, object], news: int, streams: Sequence[int]) -> dict[str, Any]:
        """Have workers forked, children of this process: `pids` in its answer. Raises `UnfitZygote`."""
        return self._deliver(b"fork", births, news, streams)

    def end(self) -> None:
        """Kill it, and with it what an import may have started, and those that it was about to fork."""
        self.link.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)

    def _deliver(
        self, word: bytes, content: Mapping[str, object], first: int, streams: Sequence[int] = ()
    ) -> dict[str, Any]:
        self.link.settimeout(self._patience)
        try:
            answer = self._ask_and_wait(word, content, first, streams)
        except OSError as error:
            raise UnfitZygote(f"it did not answer ({error})") from error
        finally:
            self.link.setblocking(False)
        if answer["doubt"]:
            raise UnfitZygote(answer["doubt"])
        return answer

    def _ask_and_wait(
        self, word: bytes, content: Mapping[str, object], first: int, streams: Sequence[int]
    ) -> dict[str, Any]:
        """Have processes forked: they wait until we know of them, and we wait until each has a session of its own.

        Those that we do not hear of in time end by themselves, as the pipe on which they wait is closed.
        """
        with ExitStack() as stack:
            waiting, go = (stack.enter_context(end) for end in _pipe())
            born, birth = (stack.enter_context(end) for end in _pipe())
            _ask(self.link, word, content, [first, waiting.fileno(), *streams, birth.fileno()])
            birth.close()
            answer: dict[str, Any] = json.loads(self.link.recv(MESSAGE) or b'{"doubt": "it ended"}')
            pids = answer.get("pids", ())
            if not pids:
                return answer
            go.write(bytes(len(pids)))
            if not select.select([born], [], [], self._patience)[0]:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                raise TimeoutError("what it forks does not come to life")
            return answer


def startup(environment: Mapping[str, str], purpose: str) -> dict[str, str]:
    """An environment in which Python runs our `sitecustomize` first, which takes away what is added here."""
    before = environment.get("PYTHONPATH")
    others = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": f"{STARTUP}{os.pathsep}{before}" if before else STARTUP, "OUTLAST_STARTUP": purpose}


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)


def _ask(link: socket.socket, word: bytes, content: Mapping[str, object], descriptors: list[int]) -> None:
    """Say a word; what belongs to it goes in a file in memory, which may be larger than a message."""
    with os.fdopen(os.memfd_create("outlast"), "wb") as file:
        file.write(json.dumps(content).encode())
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        socket.send_fds(link, [word], [file.fileno(), *descriptors])
