"""What is made of a worker's end: the failure that the coordinator hears of, with its evidence, cause and strategy.

inquest.begin(assignment, watch, streams)     # when the workers of a generation have been started
failure = inquest.failure(local_rank, pid, exit_code)
failure = inquest.judged(failure, first=True)

To look at the GPUs and to ask the user's extension takes a moment. Until then the failure is pending.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from outlast.agent.monitoring.watch import Watch
from outlast.agent.output.summary import read_failure
from outlast.agent.postmortem import gpus
from outlast.agent.postmortem.evidence import Witness, timed
from outlast.agent.postmortem.extension import Extension
from outlast.agent.postmortem.verdicts import Judge
from outlast.agent.processes.workers import Streams
from outlast.core.node.inputs import Decided
from outlast.diagnosis.evidence import Evidence
from outlast.failover import FailureInfo
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Assignment
from outlast.system.clock import now
from outlast.system.tasks import Tasks

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
        feed: Callable[[Decided], None],
        tasks: Tasks,
    ) -> None:
        self._node = node
        self._job = job
        self._judge = judge
        self._extension = extension
        self._feed = feed
        self._tasks = tasks
        self._witness = Witness()
        self._assignment: Assignment | None = None
        self._watch: Watch | None = None
        self._streams: Sequence[Streams] = ()

    def begin(self, assignment: Assignment, watch: Watch | None = None, streams: Sequence[Streams] = ()) -> None:
        """A generation begins; without a board and files, if its workers could not be started."""
        self._assignment, self._watch, self._streams = assignment, watch, streams
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
        failure = read_failure(
            self._streams[local_rank].error_file if written else "",
            node=self._node,
            host=socket.gethostname(),
            rank=self._assignment.first_rank + local_rank,
            local_rank=local_rank,
            pid=pid,
            exit_code=exit_code,
            at=time.time(),
        )
        words = self._watch.last_words(local_rank) if self._watch is not None else None
        return timed(failure, words, now())

    def judged(self, failure: Failure, *, first: bool) -> Failure:
        """With its cause and what was seen of it; briefly, if it is not the first one here."""
        assert self._assignment is not None
        watch, place = self._watch, self._assignment
        words = watch.last_words(failure.local_rank) if watch is not None else None
        reading = watch.reading(failure.local_rank) if watch is not None else None
        evidence = self._witness.evidence(failure, words, reading)
        if not first:
            failure = replace(failure, message=failure.message[-TEXT_OF_LATER_FAILURES:], error="")
        log_file = self._witness.log_of(failure.local_rank)
        judged = partial(self._judge.judged, failure, log=log_file, first=first, restarts=place.restart_count)
        failure = judged(evidence)
        concerned = first and gpus.concerned(evidence)
        if not concerned and (not first or self._extension is None):
            return failure
        self._tasks.start(self._consider(failure, place, evidence if concerned else None, judged))
        return replace(failure, pending=True)

    async def _consider(
        self, failure: Failure, place: Assignment, of_gpus: Evidence | None, judged: Callable[[Evidence], Failure]
    ) -> None:
        """While the workers are being ended: look at the GPUs, and let the user's extension decide."""
        try:
            if of_gpus is not None:
                failure = judged(replace(of_gpus, gpus=await gpus.states()))
            if self._extension is not None:
                info = FailureInfo.of(failure, job=self._job, generation=place.generation, restarts=place.restart_count)
                strategy = await self._extension.ask(info)
                if strategy is not None:
                    failure = replace(failure, strategy=strategy, decided=f"decided by {self._extension.reference}")
        finally:
            self._feed(Decided(place.generation, failure))  # whatever happens here: the whole job waits for it
