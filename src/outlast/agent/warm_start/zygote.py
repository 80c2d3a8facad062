"""The agent's side of the zygote: kept ready in the background, asked for workers, never depended upon.

What workers are seen to import is learned by a successor: a fork of the zygote in service, which takes its place when
it has imported all of it and is fit. Until then, and if it never is, the one in service goes on.

Whatever goes wrong, workers can be started the ordinary way: all that it may cost is time.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import socket
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.agent.processes.worker import Streams
from outlast.agent.warm_start.spares import Spares
from outlast.agent.warm_start.zygote_process import MESSAGE, MOST_DESCRIPTORS, UnfitZygote, ZygoteProcess, startup

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
COMPILER = "torch._inductor.compile_fx"
FAILURES = 8  # in a row, of zygotes that are unfit; more is not worth the trouble
LULL = 2.0  # seconds after a lesson: workers also tell when they end, and then the next ones are due first
HIGH = 128  # a number for the workers' socket that no script expects to be its next one


class Zygote:
    """One node's zygote, replaced whenever it is in doubt or has learned. Made within a running event loop.

    `command` is a worker's. `patience`: seconds to wait for a fork; nothing else is done meanwhile.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        preload: Sequence[str],
        patience: float,
        spares: int = 0,
    ) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._preload = list(preload)
        self._patience = patience
        self._lesson = dict.fromkeys((*FIRST_LESSON, *preload))  # in order, and each once
        self._left_out: dict[str, bool] = {}  # modules, and all that is in them; whether a spare may import them
        self._overshadowed = ""
        self._awake = False
        self._failures = 0
        self._serving: ZygoteProcess | None = None  # it has learned, and is fit
        self._learning: ZygoteProcess | None = None  # it may take the other's place
        self._lull: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()  # one has learned, or has come to nothing
        self._loop = asyncio.get_running_loop()
        self._spares = Spares(spares, environment) if spares else None
        self._restocking: asyncio.TimerHandle | None = None
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with theirs:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self.news = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, min(HIGH, most // 2))
        self._loop.add_reader(self._ours, self._hear_lesson)

    def wake(self) -> None:
        """Start it, if it has not been: it is worth its memory only to a script that uses torch."""
        if not self._awake:
            self._awake = True
            self._prepare()

    def cold(self, environment: Mapping[str, str]) -> dict[str, str]:
        """For a worker that is not forked, but tells like one that is what there is to import: its environment."""
        return startup(environment, f"worker {self.news}")

    def fork(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
        *,
        errand: str = "",
    ) -> list[int] | None:
        """The pids of new workers, children of this process; None where they have to be started the ordinary way.

        `errand`: a module of ours, whose `run` they are for, instead of the script.
        """
        if self._spares is not None and not errand and (pids := self._become(commands, environments, streams)):
            return pids
        serving = self._serving
        if serving is None or 2 * len(commands) + 6 > MOST_DESCRIPTORS:
            return None
        if not errand and any(_program(command) != _program(self._command) for command in commands):
            return None
        births, descriptors = self._births(commands, environments, streams, errand)
        try:
            answer = serving.fork(births, self.news, descriptors)
        except UnfitZygote as doubt:
            log.warning("workers are started the ordinary way: the zygote is unfit, %s", doubt)
            self._discard(serving)
            return None
        self._failures = 0
        self._tell_overshadowed(answer["overshadowed"])
        self._restock_later()
        return answer["pids"] or None

    async def ready(self) -> None:
        """Wait until it can fork, or it is known that it cannot."""
        self.wake()
        while self._serving is None and self._learning is not None:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """End it for good."""
        self._changed.set()
        for timer in (self._lull, self._restocking):
            if timer is not None:
                timer.cancel()
        if self._spares is not None:
            self._spares.close()
        for process in (self._serving, self._learning):
            if process is not None:
                self._end(process)
        self._loop.remove_reader(self._ours)
        self._ours.close()
        os.close(self.news)

    def _births(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
        errand: str = "",
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
        births = {"agent": os.getpid(), "directory": str(Path.cwd()), "beside": _beside(self._command)}
        births |= {"news": self.news, "environment": common, "workers": workers, "errand": errand}
        return births, descriptors

    # -- spares

    def _become(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[Streams],
    ) -> list[int]:
        """The spares, as workers; none where they are not ready, or one of them is not fit."""
        assert self._spares is not None
        same = all(_program(command) == _program(self._command) for command in commands)
        spares = self._spares.take(list(environments)) if same else []
        pids: list[int] = []
        for spare, command, environment, ends in zip(spares, commands, environments, streams, strict=False):
            births, descriptors = self._births([command], [environment], [ends])
            try:
                pids += spare.become(births, self.news, descriptors)["pids"]
            except UnfitZygote as doubt:
                log.warning("the spare workers are not used: %s", doubt)
                break
        if len(pids) < len(spares):
            for spare in spares:
                spare.end()
            return []
        for spare in spares:
            spare.link.close()
        if pids:
            self._restock_later()
        return pids

    def _restock_later(self) -> None:
        """When the workers that were just started have got going: they need the GPU first."""
        if self._spares is not None and self._restocking is None:
            self._restocking = self._loop.call_later(LULL, self._restock)

    def _restock(self) -> None:
        self._restocking = None
        if self._spares is not None and self._serving is not None:
            modules = [name for name in self._lesson if self._left_out.get(self._outer(name))]
            self._spares.stock(self._serving, modules, compiler=COMPILER in self._lesson)

    # -- lessons

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
        self._prepare()

    def _prepare(self) -> None:
        """Have a zygote learn what there is to learn, if there is none that knows it or is at it."""
        known = self._serving.taught if self._serving is not None else -1
        if self._learning is not None or known == len(self._lesson) or self._failures >= FAILURES:
            return
        process = self._another()
        if process is None:
            return
        self._learning = process
        new = list(self._lesson)[process.taught :]
        process.taught = len(self._lesson)
        modules = [name for name in new if not self._outer(name)]
        self._loop.add_reader(process.link, self._hear, process)
        process.learn({"modules": modules, "preload": self._preload, "beside": _beside(self._command)})

    def _another(self) -> ZygoteProcess | None:
        """A fork of the one in service, so that it need not begin from nothing; a new process where there is none."""
        if self._serving is not None:
            try:
                return self._serving.successor()
            except UnfitZygote as doubt:
                log.info("the zygote is unfit, another one is started: %s", doubt)
                self._end(self._serving)
                self._serving = None
                self._failures += 1
        try:
            return ZygoteProcess.begin(self._command, self._environment, patience=self._patience)
        except OSError as error:
            log.warning("no zygote, restarts will be slower: %s", error)
            return None

    def _hear(self, process: ZygoteProcess) -> None:
        message = process.hear()
        if message is None:
            if process.importing:
                self._leave_out(process.importing, "its import ended the zygote")
            self._discard(process)
        elif "importing" in message:
            process.importing = message["importing"]
        elif message:
            process.importing = ""
            self._examine(process, message)

    def _examine(self, process: ZygoteProcess, message: dict[str, Any]) -> None:
        """It has learned: into service with it, if it is fit."""
        for culprit in dict.fromkeys(map(tuple, message["left_out"].values())):
            module, why, bound = culprit
            others = [name for name, because in message["left_out"].items() if tuple(because) == culprit]
            self._leave_out(module, why, others=others, spares=bound)
        for name, why in message["failed"].items():
            self._leave_out(name, why)
        if message["left_out"]:
            self._discard(process)
            return
        former, self._serving, self._learning = self._serving, process, None
        if former is not None:
            self._end(former)
        self._changed.set()
        log.debug("the zygote is ready, after %.1f s of imports", message["took"])
        self._restock_later()
        self._prepare()

    def _leave_out(self, module: str, why: str, *, others: Sequence[str] = (), spares: bool = False) -> None:
        """Do without this module, and the others that import it; `spares` may have them."""
        new = [name for name in (module, *others) if name not in self._left_out]
        self._left_out |= dict.fromkeys(new, spares)
        importers = len(set(new) - {module})
        if new:
            log.info("the zygote skips %s%s: %s", module, f" and {importers} importers" if importers else "", why)

    def _outer(self, module: str) -> str:
        """The module that is left out because of which this one is; "" if it is not."""
        return next((out for out in self._left_out if f"{module}.".startswith(f"{out}.")), "")

    def _tell_overshadowed(self, name: str) -> None:
        if name and name != self._overshadowed:
            log.warning(
                "workers are started the ordinary way: %s beside the script has the name of a module that the zygote"
                " has imported; rename it for fast restarts",
                name,
            )
        self._overshadowed = name

    # -- their ends

    def _discard(self, process: ZygoteProcess) -> None:
        """End one that is of no use, and have another, unless there have been too many."""
        self._end(process)
        if process is self._serving:
            self._serving = None
        else:
            self._learning = None
        self._failures += 1
        if self._failures == FAILURES and self._serving is not None:
            log.warning("the zygote learns nothing more until the next restart: %d attempts were of no use", FAILURES)
        elif self._failures == FAILURES:
            log.warning("no zygote is fit to be forked: restarts will be slower")
        self._prepare()
        self._changed.set()

    def _end(self, process: ZygoteProcess) -> None:
        self._loop.remove_reader(process.link)
        process.end()


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
