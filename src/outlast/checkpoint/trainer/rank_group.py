"""The ranks that save and restore together: what they tell each other, and who keeps the others waiting.

A collective that one rank does not come to hangs without a word. So each rank notes in the group's store what it is
about to do: whoever has waited for some seconds says which ranks have not come, and ranks that do different things at
the same time find out.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from outlast.worker import generations

log = logging.getLogger("outlast")

PATIENCE = 10.0  # seconds of waiting after which it is said for whom
ALONE = 60.0  # seconds after which a rank that plans anew takes it that it is the only one
LONGEST_PAUSE = 0.5  # seconds between two looks at the store

# The last collectives, and what they were about. Who lets go of them last is else a thread of the process group's; if
# the script ends at that moment, as it may after `wait`, that thread cannot have Python any more, and aborts.
_KEPT: list[Any] = []
generations.at_end(_KEPT.clear)


class RankGroup:
    """A process group, or all ranks; one rank where torch.distributed is not used."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self._count = 0  # of meetings

    @property
    def together(self) -> bool:
        """Whether there can be others."""
        return bool(dist.is_available() and dist.is_initialized())

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group) if self.together else 0

    @property
    def world(self) -> int:
        return dist.get_world_size(self.group) if self.together else 1

    def gather(self, value: Any, what: str) -> list[Any]:
        """What every rank says, by rank. Raises ValueError if others are about something else than `what`."""
        if not self.together:
            return [value]
        self._count += 1
        with self._watched(what):
            told = self._gather((what, value))
        others = {rank: its for rank, (its, _) in enumerate(told) if its != what}
        if others:
            rank, its = next(iter(others.items()))
            raise ValueError(f"rank {self.rank} calls {what}, and rank {rank} calls {its}: all ranks must call alike")
        return [value for _, value in told]

    def await_all(self, what: str, why: str) -> None:
        """Wait, without a collective, until all ranks are here. Raises ValueError if they do not come: that is `why`.

        A rank that alone enters a collective meets whatever the others do next, and nobody knows what comes of it.
        """
        store = _store() if self.together else None
        if store is None or self.world == 1:
            return
        self._count += 1
        here = f"{self._prefix}/meeting/{self._count}"
        with self._watched(what):
            deadline, pause, there = time.monotonic() + ALONE, 0.001, store.add(here, 1)
            while there < self.world:
                if time.monotonic() > deadline:
                    raise ValueError(f"{why}, and the other ranks have not planned {what} again for {ALONE:.0f} s")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                there = store.add(here, 0)

    @property
    def _prefix(self) -> str:
        return f"outlast/{self.group.group_name if self.group is not None else 'all'}"

    @contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """Say for whom this rank waits, should it be long."""
        store = _store()
        if store is None or self.world == 1:
            yield
            return
        store.set(f"{self._prefix}/{self.rank}", f"{self._count} {what}")
        timer = threading.Timer(PATIENCE, self._say_who_is_missing, (store, self._count, what))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _say_who_is_missing(self, store: dist.Store, count: int, what: str) -> None:
        last: dict[int, str] = {}
        for rank in range(self.world):
            key = f"{self._prefix}/{rank}"
            number, _, called = store.get(key).decode().partition(" ") if store.check([key]) else ("0", "", "nothing")
            if int(number) < count:
                last[rank] = called
        if not last or self.rank != min(set(range(self.world)) - last.keys()):
            return  # another one says so
        few = "; ".join(f"rank {rank} last called {called}" for rank, called in list(last.items())[:4])
        more = f"; and {len(last) - 4} more" if len(last) > 4 else ""
        log.error(
            "%s on rank %d has waited %.0f s for %d of %d ranks (%s%s): all ranks must call it, and not only one of "
            "them, with the same keys and shapes",
            *(what, self.rank, PATIENCE, len(last), self.world, few, more),
        )

    def _gather(self, value: Any) -> list[Any]:
        """torch's all_gather_object, but for `_KEPT`."""
        config = str(dist.get_backend_config(self.group))
        device = "cpu" if "cpu:" in config else f"cuda:{torch.cuda.current_device()}"
        text = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = [int(size) for size in self._all_gather(torch.tensor([len(text)], device=device))]
        mine = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
        mine[: len(text)] = text
        theirs = self._all_gather(mine)
        texts = (bytes(each[:length].tolist()) for each, length in zip(theirs, lengths, strict=True))
        return [pickle.loads(each) for each in texts]  # noqa: S301  (of this job's own ranks, as torch does it)

    def _all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        theirs = [torch.empty_like(mine) for _ in range(self.world)]
        work = dist.all_gather(theirs, mine, self.group, async_op=True)
        _KEPT[:] = [*_KEPT[-1:], (work, mine, theirs)]
        work.wait()
        return theirs


def _store() -> dist.Store | None:
    """The one that the ranks met in; None with a backend that has none (MPI)."""
    return _get_default_store()
