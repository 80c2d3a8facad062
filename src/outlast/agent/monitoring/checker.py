"""A node's part in a check: starts the processes of a probe, times their phases, and puts together what they say.

checker = Checker(launch, settings, zygote=…, found=…)
checker.begin(probe)              # `found` is called with its findings, once; a newer probe drops an older one
await checker.stop()
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from outlast.agent.postmortem.kernel import KernelLog
from outlast.agent.processes.worker import Streams
from outlast.agent.processes.workers import WorkerGroup
from outlast.agent.warm_start.zygote import Zygote
from outlast.checks.plan import LIMITS, MARK, NETWORK, START, VARIABLE, CheckPlan, Word
from outlast.launch import Launch
from outlast.protocol.checks import Findings, Probe
from outlast.protocol.fields import LONGEST_REASON, UNREADABLE
from outlast.settings.settings import Settings
from outlast.system import own_process
from outlast.system.clock import now
from outlast.system.tasks import Tasks
from outlast.workloads.torch_job import TorchWorkload

log = logging.getLogger("agent")

ERRAND = "outlast.checks.process"
# Not -m: see the coordinator's.
PROGRAM = own_process.program(f"{ERRAND}:run")
NOISE = 5  # lines of what others print, that are kept for a process that dies

_decoder = msgspec.json.Decoder(Word)


class Process:
    """What is known of one process of a probe."""

    def __init__(self) -> None:
        self.phase = ""
        self.done = False
        self.failed = ""
        self.certain = False
        self.noise: list[str] = []
        self.unread = b""
        self.timer: asyncio.TimerHandle | None = None

    @property
    def together(self) -> bool:
        """Whether it is at the phase that depends on others."""
        return self.phase == NETWORK


class Checker:
    """The checks of one node, one probe at a time. Made within a running event loop."""

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        *,
        zygote: Callable[[], Zygote | None],
        found: Callable[[Findings], None],
    ) -> None:
        self._launch = launch
        self._settings = settings
        self._zygote = zygote
        self._found = found
        self._trial: Trial | None = None
        self._newest = (0, 0)
        self._answer: Findings | None = None
        self._tasks = Tasks()

    def begin(self, probe: Probe) -> bool:
        """Carry out a probe; False for one that is known: its findings, if there are any, are told again."""
        this = (probe.term, probe.number)
        if this <= self._newest:
            if this == self._newest and self._answer is not None:
                self._found(self._answer)
            return False
        self._newest, self._answer = this, None
        self.drop()
        self._trial = Trial(probe, self._launch, self._settings)
        self._tasks.start(self._carry_out(self._trial))
        return True

    async def _carry_out(self, trial: Trial) -> None:
        try:
            findings = await trial.run(self._zygote())
        finally:
            await trial.close()
        if trial is self._trial and findings is not None:
            self._trial, self._answer = None, findings
            self._found(findings)

    def joined(self) -> None:
        """The node is part of the job: where nodes are checked, the processes for that are made ready.

        Not before: a coordinator that starts here is waited for, and needs the CPU.
        """
        zygote = self._zygote()
        if zygote is not None and (self._settings.network_check or self._launch.check_only):
            zygote.wake()

    def drop(self) -> None:
        """What is under way is not wanted any more."""
        if self._trial is not None:
            self._trial.drop()
            self._trial = None

    async def stop(self) -> None:
        """Wait until nothing of it is left."""
        self.drop()
        await self._tasks.wait()

    def reap_orphans(self) -> None:
        if self._trial is not None and self._trial.group is not None:
            self._trial.group.reap_orphans()


class Trial:
    """One probe, from the start of its processes to their end."""

    def __init__(self, probe: Probe, launch: Launch, settings: Settings) -> None:
        self.group: WorkerGroup | None = None
        self._probe = probe
        self._launch = launch
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[bool] = self._loop.create_future()  # False: it was dropped
        self._processes = [Process() for _ in range(launch.nproc)]
        self._figures: dict[str, float] = {}
        self._facts: dict[str, str] = {}
        self._warnings: dict[str, None] = {}
        self._place = ""
        self._pipes: list[int] = []
        self._timer: asyncio.TimerHandle | None = None  # for all of it
        self._kernel = KernelLog()

    async def run(self, zygote: Zygote | None) -> Findings | None:
        """What comes of it; None if it was dropped."""
        if zygote is not None:
            await self._warm(zygote)
        if self._over.done():
            return None
        try:
            self._start(zygote)
        except (OSError, ValueError) as error:
            return self._findings(f"its check cannot be started: {error}")
        return self._findings() if await self._over else None

    async def _warm(self, zygote: Zygote) -> None:
        """A zygote that is about to be ready is worth waiting for: processes of our own would import the same."""
        ready = self._loop.create_task(zygote.ready())
        self._over.add_done_callback(lambda _: ready.cancel())
        await asyncio.wait({ready})

    def drop(self) -> None:
        if not self._over.done():
            self._over.set_result(False)

    async def close(self) -> None:
        """End its processes, and take away what they used."""
        for timer in (self._timer, *(process.timer for process in self._processes)):
            if timer is not None:
                timer.cancel()
        if self.group is not None:
            await self.group.stop(signal.SIGKILL, 0)
        for pipe in self._pipes:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        self._pipes.clear()
        if self._place:
            shutil.rmtree(self._place, ignore_errors=True)
        self._kernel.close()

    def _start(self, zygote: Zygote | None) -> None:
        self._place = tempfile.mkdtemp(prefix="outlast-check-")
        ranks = range(self._launch.nproc)
        environments = [self._environment(rank) for rank in ranks]
        streams: list[Streams] = []
        try:
            for rank in ranks:
                reading, writing = os.pipe()
                os.set_blocking(reading, False)
                self._pipes.append(reading)
                self._loop.add_reader(reading, self._hear, rank, reading)
                streams.append(Streams(writing, writing, error_file=""))
                self._arm(self._processes[rank], START, "to begin")
        except OSError:
            for ends in streams:
                ends.close()
            raise
        fork = partial(zygote.fork, errand=ERRAND) if zygote is not None else None
        command = (sys.executable, "-u", "-c", PROGRAM)
        self.group = WorkerGroup.start([command] * len(ranks), environments, streams, self._exited, fork=fork)

    def _environment(self, local_rank: int) -> dict[str, str]:
        probe, nproc = self._probe, self._launch.nproc
        plan = CheckPlan(
            number=probe.number,
            local_rank=local_rank,
            local_size=nproc,
            rank=probe.first_rank + local_rank,
            size=probe.world_size,
            address=probe.master_addr,
            port=probe.master_port,
            meeting=str(Path(self._place, "store")),
            limit=probe.limit,
            accelerator=self._settings.accelerator,
            path=self._settings.check_path,
            perf=probe.perf,
        )
        return {
            **TorchWorkload(self._launch, self._settings).shared_environment(os.environ),
            "RANK": str(plan.rank),
            "LOCAL_RANK": str(local_rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": str(plan.size),
            "LOCAL_WORLD_SIZE": str(nproc),
            VARIABLE: msgspec.json.encode(plan).decode(),
        }

    # -- what processes say

    def _hear(self, rank: int, pipe: int) -> None:
        process = self._processes[rank]
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(pipe)
            return
        *lines, process.unread = (process.unread + data).split(b"\n")
        for line in lines:
            # A library may have printed half a line before it.
            noise, _, word = line.partition(MARK)
            if noise.strip():
                process.noise = [*process.noise[1 - NOISE :], noise.decode(errors="replace")[:300]]
            if word:
                with suppress(*UNREADABLE):  # no word of ours
                    self._said(process, _decoder.decode(word))

    def _said(self, process: Process, word: Word) -> None:
        for name, figure in word.figures.items():
            self._figures[name] = min(figure, self._figures.get(name, figure))
        self._facts |= word.facts
        if word.warning:
            self._warnings[word.warning] = None
        if word.failed:
            self._fail(process, f"{process.phase}: {word.failed}", certain=word.certain)
        elif word.phase == "done":
            process.done = True
            if process.timer is not None:
                process.timer.cancel()
            if all(each.done for each in self._processes):
                self._end()
        elif word.phase:
            process.phase = word.phase
            if self._timer is None:
                self._timer = self._loop.call_later(self._probe.limit, self._late_in_all)
            log.debug("check %d: %s", self._probe.number, word.phase)
            self._arm(process, min(self._probe.limit, LIMITS[word.phase]), f"for {word.phase}")

    def _arm(self, process: Process, limit: float, what: str) -> None:
        if process.timer is not None:
            process.timer.cancel()
        process.timer = self._loop.call_later(limit, self._late, process, f"more than {limit:g} s {what}")

    def _late(self, process: Process, what: str) -> None:
        self._fail(process, f"it took {what}")

    def _late_in_all(self) -> None:
        for process in [process for process in self._processes if not process.done]:
            self._fail(process, f"it took more than {self._probe.limit:g} s in all, and was at {process.phase}")

    def _exited(self, local_rank: int, _pid: int, exit_code: int) -> None:
        process = self._processes[local_rank]
        self._hear_all(local_rank)
        if process.done or process.failed or self._over.done():
            return
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        said = f" ({process.noise[-1]})" if process.noise else ""
        process.phase, phase = "", process.phase  # its end is its own, whomever it was waiting for
        self._fail(process, f"its check {how} in phase {phase or 'start'}{said}")

    def _hear_all(self, local_rank: int) -> None:
        """What it said before it ended may not have been read yet."""
        pipe = self._pipes[local_rank] if local_rank < len(self._pipes) else None
        if pipe is not None:
            self._hear(local_rank, pipe)

    def _fail(self, process: Process, why: str, *, certain: bool = False) -> None:
        process.failed, process.certain = process.failed or why, process.certain or certain
        self._end()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(True)

    def _findings(self, alone: str = "") -> Findings:
        xids = [line for line in self._kernel.read() if "Xid" in line]
        if xids:
            alone = alone or f"the kernel says: {xids[0]}"
        own = [process for process in self._processes if process.failed and not process.together]
        others = [process for process in self._processes if process.failed and process.together]
        return Findings(
            self._probe.term,
            self._probe.number,
            alone=(alone or (own[0].failed if own else ""))[:LONGEST_REASON],
            certain=any(process.certain for process in own),
            together=(others[0].failed if others else "")[:LONGEST_REASON],
            figures=self._figures,
            facts={name: fact[:255] for name, fact in self._facts.items()},
            warnings=tuple(warning[:LONGEST_REASON] for warning in self._warnings)[:64],
            clock=now(),
            wall=time.time(),
        )
