"""A barrier that names the ranks that do not come, instead of hanging with the rest.

    for batch in batches:
        outlast.health_check(timeout=60, every=100)

Over the store of the process group, not over a collective: a collective in which a rank is missing hangs itself. A rank
that comes says so and is counted; the last one opens the door for all. Whoever is first to lose patience shuts it, with
the names of the missing: both are one `compare_set`, so all ranks come to the same verdict, late ones as well.

That is three small messages per rank to rank 0's store, and a look at the door now and then: asked, not waited for,
because a wait would keep the store from every other thread of the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

PREFIX = "outlast/health"
PAUSES = (0.0005, 0.05)  # seconds between two looks, at least and at most
OPEN = "open"


class RanksMissing(RuntimeError):
    """Not all ranks came to a health check in time: `missing` says where they are, by rank.

    Let it end this worker: a job that lost a rank cannot go on, and Outlast starts it again. Or catch it to save first.
    """

    def __init__(self, missing: Mapping[int, str], timeout: float) -> None:
        self.missing = dict(missing)
        named = ", ".join(f"{rank} ({where})" if where else str(rank) for rank, where in sorted(self.missing.items()))
        plural = "s" if len(self.missing) > 1 else ""
        super().__init__(f"rank{plural} {named} did not come to the health check within {timeout:g} s")


class HealthChecks:
    """The health checks of one process group, in order. There is one per process; more are for tests."""

    def __init__(self, store: Any, rank: int, size: int, *, where: str, ranks_per_node: int = 0) -> None:
        self.store = store
        self._rank, self._size, self._where = rank, size, where
        self._per_node = ranks_per_node
        self._round = 0

    def check(self, timeout: float) -> None:
        """Wait for all ranks; raises `RanksMissing`."""
        self._round += 1
        store, door, count = self.store, self._key("door"), self._key("count")
        deadline = time.monotonic() + timeout
        store.set(f"{PREFIX}/rank/{self._rank}", json.dumps([self._round, self._where]))
        if store.add(count, 1) == self._size:
            store.compare_set(door, "", OPEN)
        pause, longest = PAUSES
        while not store.check([door]):
            left = deadline - time.monotonic()
            if left <= 0:
                store.compare_set(door, "", json.dumps(self._missing()))
                break
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, longest)
        verdict = store.get(door).decode()
        if verdict != OPEN:
            raise RanksMissing({int(rank): where for rank, where in json.loads(verdict).items()}, timeout)
        if self._rank == 0 and self._round > 1:
            # All have come to this round, so nobody looks at the door of the one before.
            for what in ("door", "count"):
                store.delete_key(self._key(what, self._round - 1))

    def _missing(self) -> dict[int, str]:
        missing = {}
        for rank in range(self._size):
            key = f"{PREFIX}/rank/{rank}"
            number, where = json.loads(self.store.get(key)) if self.store.check([key]) else (0, "")
            if number < self._round:
                missing[rank] = where or self._guess(rank)
        return missing

    def _guess(self, rank: int) -> str:
        """Where a rank is that never came to any check: by the order in which ranks are given out."""
        return f"node {rank // self._per_node}" if self._per_node else ""

    def _key(self, what: str, number: int | None = None) -> str:
        return f"{PREFIX}/{number or self._round}/{what}"


_checks: HealthChecks | None = None
_calls = 0


def health_check(timeout: float = 60.0, *, every: int = 1) -> None:
    """Make sure that all ranks are there, every so many calls. All ranks must call it alike, as with any barrier.

    Raises `RanksMissing`, on every rank that waits, with the ranks that did not come within `timeout` seconds and their
    nodes. Nothing happens without a process group.

        for batch in batches:
            outlast.health_check(timeout=60, every=100)
    """
    global _calls
    _calls += 1
    if _calls % every:
        return
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    checks = _of_group(distributed)
    try:
        checks.check(timeout)
    except distributed.DistNetworkError as error:
        raise RanksMissing({0: f"its store is gone: {str(error).partition(chr(10))[0]}"}, timeout) from error


def forget() -> None:
    """Count calls from 0, as new processes do, with which this one goes on."""
    global _checks, _calls
    _checks, _calls = None, 0


def _of_group(distributed: Any) -> HealthChecks:
    """The checks of the process group that there is now."""
    global _checks
    store = distributed.distributed_c10d._get_default_store()
    if _checks is None or _checks.store is not store:
        _checks = HealthChecks(
            store,
            distributed.get_rank(),
            distributed.get_world_size(),
            where=os.uname().nodename,
            ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "0")),
        )
    return _checks
