"""`outlast.Checkpointer`: what a training script sees of all this."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from outlast.checkpoint.storage.storage import address, refuse_dangling, storage_of
from outlast.checkpoint.trainer.interval import Every, Interval
from outlast.checkpoint.trainer.rank_group import RankGroup
from outlast.checkpoint.trainer.restorer import Restorer
from outlast.checkpoint.trainer.saver import Saver
from outlast.checkpoint.trainer.worker_memory import WorkerMemory
from outlast.worker.boundary import LastBoundary, boundaries
from outlast.worker.session import session


class Checkpointer:
    """Saves the state of a training at the speed of memory, and finds the newest good one again.

        ckpt = outlast.Checkpointer("checkpoints/", keep_last=3)
        state = {"model": model, "optim": optimizer, "epoch": 0}
        start = ckpt.restore(state)                     # 0 if there is none
        for step in range(start + 1, steps + 1):
            ...
            ckpt.save(step, state, durable=step % 1000 == 0)
        ckpt.wait()

    The path may be `s3://bucket/prefix` or `gs://…`, with `outlast[stores]`.

    All ranks call it alike. Values may be models, optimizers, anything with `state_dict` and `load_state_dict`,
    tensors, numbers, and dictionaries and lists of these; what is another one on each rank under the same names is
    wrapped in `outlast.PerRank`. `every` makes `save` do nothing but every so many steps (10),
    every so often ("30s", "5m", a timedelta), or as seldom as is wise ("auto"); those with `durable=True` apart. On a
    GPU, what the optimizer steps is copied while training goes on, and its next step waits for it; `overlap=False`
    makes `save` wait instead.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        every: Every = None,
        overlap: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(keep_last, int) or isinstance(keep_last, bool) or keep_last < 1:
            raise ValueError(f"keep_last must be a number of checkpoints, at least 1, not {keep_last!r}")
        self._directory = address(path)
        refuse_dangling(self._directory)
        storage_of(self._directory)  # what is missing for it is said now
        self._ranks = RankGroup(process_group)
        self._interval = Interval(every)
        self._memory = WorkerMemory(self._directory, overlap=overlap)
        self._saver = Saver(self._directory, self._ranks, self._memory, keep_last=keep_last, overlap=overlap)
        self._restorer = Restorer(self._directory, self._ranks, self._memory)
        if process_group is None:  # else others may save at other times
            boundaries.expect()

    def save(
        self, step: int, state: Mapping[str, Any] | Callable[[], Mapping[str, Any]], *, durable: bool = False
    ) -> bool:
        """Take a snapshot: returns when the state may be changed again; whether it was the turn of this step.

        A state that is dear to put together may be given as a function, which is called when it is the turn. Call
        `save` at every step in any case.

        With `durable` it is written to disk as well, in the background: `wait` awaits that. When saves come faster than
        the disk takes them, the newest is written and those before it are not.
        """
        self._memory.refuse_stale()
        step = _step(step)
        halt = boundaries.reach() if self._ranks.group is None else None
        due = durable or self._interval.due(step)
        if not due and halt is None:
            self._saver.skip()
            return False
        begun = time.monotonic()
        with session.waiting("save"):
            self._saver.land()
            state = _mapping(state() if callable(state) else state)
            durable = durable or (halt is not None and halt.durable and not self._saver.apart)
            planned = self._saver.save(step, state, durable=durable, at_once=durable or halt is not None)
        if due and self._interval.timed:  # all ranks come here, also those that do not halt
            lived, failures = self._memory.history()
            measured = self._interval.measure(
                step, begun=begun, ended=time.monotonic(), lived=lived, failures=failures, planned=planned
            )
            self._interval.agree(step, self._ranks.gather(measured, f"save({step})"))
        if halt is not None:
            self._halt(halt, step)
        return True

    def restore(
        self,
        state: Mapping[str, Any],
        *,
        step: int | None = None,
        source: str | os.PathLike[str] | None = None,
        strict: bool = True,
    ) -> int:
        """Load the newest good state, from memory or disk, and return its step; 0, changing nothing, if there is none.

        `step` asks for that one and no other. `source` is a checkpoint's own directory, also one that DCP or Hugging
        Face's Trainer wrote, or a file: of torch.save, safetensors or Lightning.
        Raises ValueError in one line if there are checkpoints but no good one, or if the state does not fit: a model or
        an optimizer with more, fewer or other parameters, groups or dtypes than were saved. `strict=False` loads what
        both have, and leaves the rest as it is.
        """
        self._memory.refuse_stale()
        _mapping(state)
        step = None if step is None else _step(step)
        self._saver.land()
        self._interval.begin_anew()
        if source is not None:
            restored = self._restorer.restore_from(address(source), state, strict=strict)
            self._saver.follow(restored.save)
            return restored.step
        with session.waiting("restore"):
            found = self._restorer.restore(state, step, strict=strict)
        if found is None:
            session.go_on_after(0)
            return 0
        self._saver.follow(found.save, found.mark)
        session.go_on_after(found.step)
        return found.step

    def wait(self) -> None:
        """Await that the last durable save is on disk. Collective. Raises OSError if it is not."""
        self._memory.refuse_stale()
        self._saver.land()
        self._compare_last_durable()
        outcome = self._memory.writer.wait() if self._memory.writes else None
        outcomes = [each for each in self._ranks.gather(outcome, "wait()") if each is not None]
        for each in outcomes:
            if each.problem:
                raise OSError(each.problem)
        if outcomes and not any(each.path for each in outcomes):  # whoever wrote the last part would have committed
            raise OSError(
                f"step {outcomes[0].step} is not on disk: every rank that is here has written its part to "
                f"{self._directory}, and others are missing: all ranks must save the same steps to one directory"
            )

    def _compare_last_durable(self) -> None:
        """Raise OSError if ranks wait for different saves, or some for none: it would never be there."""
        told = self._ranks.gather(self._saver.durable, "wait()")
        for rank, theirs in enumerate(told):
            if theirs != told[0]:
                first, other = (f"of step {each.step}" if each is not None else "none" for each in (told[0], theirs))
                skipped = " (after another number of saves)" if first == other else ""
                raise OSError(
                    f"the last durable save of rank 0 is {first}, and that of rank {rank} is {other}{skipped}: all "
                    "ranks must call save at the same steps, with the same durable="
                )

    def close(self) -> None:
        """Await what is to be on disk, and let go of the memory."""
        self._saver.land()
        if self._memory.writes:
            self._memory.writer.wait()
        self._saver.close()
        self._memory.close()

    def _halt(self, halt: LastBoundary, step: int) -> None:
        """A change is planned, and all ranks save at this step for it: await that it is safe, and the end."""
        with session.pause_monitoring():
            outcome = self._memory.writer.wait() if halt.durable else None
            safe = not halt.durable or not (self._saver.apart or (outcome is not None and outcome.problem))
            boundaries.seal(step if safe else None)


def _mapping(state: Any) -> Mapping[str, Any]:
    """Raises TypeError for what is no dictionary."""
    if not isinstance(state, Mapping):
        raise TypeError(f'the state must be a dictionary, as {{"model": model}}, not {type(state).__name__}')
    return state


def _step(step: int) -> int:
    """A step as it is saved: any kind of integer, NumPy's and torch's too. Raises TypeError, ValueError."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step must be an integer, not {step!r}")
    try:
        number = operator.index(step)
    except TypeError:  # a tensor or an array of something else
        raise TypeError(f"step must be an integer, not {step!r}") from None
    if number < 0:  # no checkpoint has such a name
        raise ValueError(f"step must be 0 or more, not {number}")
    return number
