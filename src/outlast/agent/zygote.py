"""The agent's side of the zygote: kept ready in the background, asked for workers, never depended upon.

Whatever goes wrong with it, workers can be started the ordinary way: all that it may cost is time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from outlast.agent.workers import Streams, before_exec

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
FORK_TIMEOUT = 5.0  # seconds; then the workers are started the ordinary way
REPLACEMENTS = 8  # of a zygote that is unfit; more is not worth the trouble
MESSAGE = 1 << 20
MOST_DESCRIPTORS = 250  # in one message, by the kernel's limit
PADDING = " " * 4096  # room for the workers' own command lines in the list of processes


class Zygote:
    """One node's zygote, replaced whenever it is in doubt. Made within a running event loop."""

    def __init__(self, python: str, environment: Mapping[str, str], preload: Sequence[str] = ()) -> None:
        self._python = python
        self._environment = dict(environment)
        self._lesson = dict.fromkeys((*FIRST_LESSON, *preload))  # in order, and each once
        self._left_out: set[str] = set()  # packages
        self._replaced = 0
        self._ready = False
        self._importing = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._ours, self.news = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)
        self._loop.add_reader(self._ours, self._hear_lesson)

    def wake(self) -> None:
        """Start it, if it has not been: it is worth its memory only to a script that uses torch."""
        if self._process is None and not self._replaced:
            self._start()

    def cold(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command of a worker that is not forked, but tells like one that is what there is to import."""
        return (self._python, "-u", "-m", "outlast.worker.cold", str(self.news.fileno()), *command)

    def fork(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
    ) -> list[int] | None:
        """The pids of new workers, children of this process; None where they have to be started the ordinary way."""
        if not self._ready or self._link is None or 2 * len(commands) + 2 > MOST_DESCRIPTORS:
            return None
        request, descriptors = self._request(commands, environments, streams)
        link = self._link
        self._loop.remove_reader(link)
        link.settimeout(FORK_TIMEOUT)
        try:
            _ask(link, b"fork", request, descriptors)
            answer = json.loads(link.recv(MESSAGE) or b"{}")
        except OSError as error:
            answer = {"doubt": f"it did not answer ({error})"}
        if "pids" in answer:
            link.setblocking(False)
            self._loop.add_reader(link, self._hear)
            pids: list[int] = answer["pids"]
            return pids
        log.warning("workers are started the ordinary way: the zygote is unfit, %s", answer.get("doubt", "it ended"))
        self._replace()
        return None

    def _request(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
    ) -> tuple[dict[str, object], list[int]]:
        common = dict(set.intersection(*(set(environment.items()) for environment in environments)))
        descriptors = [self.news.fileno(), 1, 2]
        workers = []
        for command, environment, ends in zip(commands, environments, streams, strict=True):
            worker: dict[str, object] = {"command": list(command)}
            worker["environment"] = {k: v for k, v in environment.items() if common.get(k) != v}
            for name, descriptor in (("stdout", ends.stdout), ("stderr", ends.stderr)):
                if descriptor is None:
                    worker[name] = 1 if name == "stdout" else 2
                else:
                    worker[name] = len(descriptors)
                    descriptors.append(descriptor)
            workers.append(worker)
        request: dict[str, object] = {"agent": os.getpid(), "directory": str(Path.cwd()), "news": 0}
        request |= {"environment": common, "workers": workers}
        return request, descriptors

    def close(self) -> None:
        """End it for good."""
        self._replaced = REPLACEMENTS
        self._end()
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self.news.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [self._python, "-u", "-m", "outlast.worker.zygote", str(theirs.fileno()), PADDING],
                    env=self._environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    preexec_fn=before_exec(os.getpid()),
                )
            except OSError as error:
                ours.close()
                log.warning("no zygote, restarts will be slower: %s", error)
                return
        ours.setblocking(False)
        self._link, self._importing = ours, "torch"
        self._loop.add_reader(ours, self._hear)
        self._teach(list(self._lesson))

    def _teach(self, modules: list[str]) -> None:
        assert self._link is not None
        wanted = [name for name in modules if name.partition(".")[0] not in self._left_out]
        self._ready = False
        _ask(self._link, b"import", wanted, [])

    def _hear_lesson(self) -> None:
        """A worker tells which installed modules it has imported."""
        modules = json.loads(zlib.decompress(self._ours.recv(MESSAGE)))
        new = [name for name in modules if name not in self._lesson]
        self._lesson.update(dict.fromkeys(new))
        self.wake()
        if new and self._ready:
            self._teach(new)

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
        for name, why in message["failed"].items():
            log.debug("the zygote cannot import %s: %s", name, why)
        if message["doubt"]:
            self._leave_out(message["culprit"].partition(".")[0], message["doubt"])
            self._replace()
            return
        self._ready = True
        log.debug("the zygote is ready, after %.1f s of imports", message["took"])

    def _leave_out(self, package: str, why: str) -> None:
        self._left_out.add(package)
        log.info("the zygote leaves out %s: %s", package, why)

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
            self._process.kill()
            self._process.wait()
            self._process = None


def _ask(link: socket.socket, word: bytes, content: object, descriptors: list[int]) -> None:
    """Say a word; what belongs to it goes in a file in memory, which may be larger than a message."""
    with os.fdopen(os.memfd_create("outlast"), "wb") as file:
        file.write(json.dumps(content).encode())
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        socket.send_fds(link, [word], [file.fileno(), *descriptors])
