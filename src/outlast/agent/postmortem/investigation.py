"""What is made of a worker's end: the failure that the coordinator hears of, with its evidence, cause and strategy.

inquest.begin(assignment, watch, streams)     # when the workers of a generation have been started
failure = inquest.failure(local_rank, pid, exit_code)
failure = inquest.judged(failure, first=True)

To read files, to look at the GPUs and to ask the user's extension takes a moment. Until then the failure is pending.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Sequence

from msgspec.structs import replace

from outlast.agent.monitoring.watch import Watch
from outlast.agent.output.disk import Disk
from outlast.agent.output.summary import read_error_file, seen_failure
from outlast.agent.postmortem import gpus
from outlast.agent.postmortem.evidence import Witness, timed
from outlast.agent.postmortem.extension import Extension
from outlast.agent.postmortem.verdicts import Judge
from outlast.agent.processes.worker import Streams
from outlast.board.readings import LastWords, Reading
from outlast.core.node.inputs import Decided
from outlast.core.recovery.failures import KEPT
from outlast.diagnosis.evidence import Evidence
from outlast.failover import FailureInfo
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Assignment
from outlast.system.clock import now
from outlast.system.tasks import Tasks

log = logging.getLogger("agent")

OOM_KILLS = "oom_kill in the memory cgroup rose by {} while this worker ran"  # the catalogue knows this line
PATIENCE = 3.0  # seconds for the disk to give a failed worker's last lines
TEXT_OF_LATER_FAILURES = 2048  # characters; the first one keeps all of its text


class Investigation:
    """Of the failures on one node, over all generations."""

    def __init__(
        self,
        node: str,
        job: str,
        judge: Judge,
        extension: Extension | None,
        *,
        disk: Disk,
        feed: Callable[[Decided], None],
        tasks: Tasks,
        names: Sequence[str] = (),
    ) -> None:
        self._node = node
        self._job = job
        self._judge = judge
        self._extension = extension
        self._disk = disk
        self._feed = feed
        self._tasks = tasks
        self._names = names  # of tasks, in a job with roles
        self._witness = Witness()
        self._assignment: Assignment | None = None
        self._watch: Watch | None = None
        self._streams: Sequence[Streams] = ()
        self._error_files: dict[int, str] = {}  # of failures here, by local rank
        self._read = 0  # failures of this generation whose files were looked into

    def begin(self, assignment: Assignment, watch: Watch | None = None, streams: Sequence[Streams] = ()) -> None:
        """A generation begins; without a board and files, if its workers could not be started."""
        self._assignment, self._watch, self._streams = assignment, watch, streams
        self._error_files, self._read = {}, 0
        self._witness.begin(streams)

    def prepare(self) -> None:
        """Read what is needed, so that nobody waits for it when something has failed."""
        self._judge.prepare()

    def end(self) -> None:
        """The board is going to be closed."""
        self._watch = None

    def close(self) -> None:
        self._witness.close()

    def failure(self, local_rank: int, pid: int, exit_code: int, *, written: bool = True) -> Failure:
        """What has happened. `written`: it may have left an error file."""
        assert self._assignment is not None
        failure = seen_failure(
            node=self._node,
            host=socket.gethostname(),
            rank=self._assignment.first_rank + local_rank,
            local_rank=local_rank,
            pid=pid,
            exit_code=exit_code,
            at=time.time(),
        )
        if self._names:
            failure = replace(failure, task=self._names[local_rank])
        if written and self._streams[local_rank].error_file:
            self._error_files[local_rank] = self._streams[local_rank].error_file
        return timed(failure, self._words(local_rank), now())

    def judged(self, failure: Failure, *, first: bool, oom_kills: int = 0) -> Failure:
        """With its cause and what was seen of it; briefly, if it is not the first one here.

        `oom_kills`: how many of its processes were killed at its own memory limit.
        """
        assert self._assignment is not None
        local_rank, place = failure.local_rank, self._assignment
        words = self._words(local_rank)
        reading = self._watch.reading(local_rank) if self._watch is not None else None
        log_file = self._witness.log_of(local_rank)

        def judged(failure: Failure, evidence: Evidence) -> Failure:
            if oom_kills:
                evidence = replace(evidence, kernel=(OOM_KILLS.format(oom_kills), *evidence.kernel))
            if not first:
                failure = replace(failure, message=failure.message[-TEXT_OF_LATER_FAILURES:], error="")
            return self._judge.judged(failure, evidence, log=log_file, first=first, restarts=place.restart_count)

        evidence = self._witness.evidence(failure, words, reading)
        found = judged(failure, evidence)
        # No more are told to the coordinator, and each costs a message.
        files = self._read < KEPT and (local_rank in self._error_files or log_file)
        asks = first and (self._extension is not None or gpus.concerned(evidence))
        if not files and not asks:
            return found
        self._read += 1
        self._tasks.start(self._consider(found, place, self._look(failure, words, reading), judged, first))
        return replace(found, pending=True)

    def _words(self, local_rank: int) -> LastWords | None:
        return self._watch.last_words(local_rank) if self._watch is not None else None

    async def _consider(
        self,
        found: Failure,
        place: Assignment,
        look: Coroutine[None, None, tuple[Failure, Evidence]],
        judged: Callable[[Failure, Evidence], Failure],
        first: bool,
    ) -> None:
        """While the workers are being ended: read files, look at the GPUs, let the user's extension decide."""
        try:
            failure, evidence = await look
            found = judged(failure, evidence)
            if first and gpus.concerned(evidence):
                found = judged(failure, replace(evidence, gpus=await gpus.states()))
            if first and self._extension is not None:
                info = FailureInfo.of(
                    found,
                    job=self._job,
                    generation=place.generation,
                    restarts=place.restart_count,
                    node_rank=place.group_rank,
                )
                strategy = await self._extension.ask(info)
                if strategy is not None:
                    found = replace(found, strategy=strategy, decided=f"decided by {self._extension.reference}")
        finally:
            self._feed(Decided(place.generation, found))  # whatever happens here: the whole job waits for it

    async def _look(
        self, failure: Failure, words: LastWords | None, reading: Reading | None
    ) -> tuple[Failure, Evidence]:
        """What the worker has left in its files, if their disk answers."""
        seen = failure
        lines: tuple[str, ...] = ()
        error_file = self._error_files.get(failure.local_rank, "")

        def read() -> tuple[Failure, tuple[str, ...]]:
            known = read_error_file(seen, error_file) if error_file else seen
            return known, self._witness.tail(seen.local_rank)

        try:
            failure, lines = await asyncio.wait_for(self._disk.call(read), PATIENCE)
        except asyncio.TimeoutError:
            log.warning("rank %d: judged without its log and error file, whose disk does not answer", failure.rank)
        failure = timed(failure, words, now())
        return failure, self._witness.evidence(failure, words, reading, lines)
