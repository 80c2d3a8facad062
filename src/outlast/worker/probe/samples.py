"""Which samples a script takes from torch's DataLoaders, in the order in which it takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from outlast.worker.probe.fingerprints import fingerprint
from outlast.worker.probe.recorder import ProbeRecorder
from outlast.worker.probe.user_code import calling_line

QUEUE = "_outlast_probe_queue"  # of an iterator: indices that were given out and not yet come back as a batch


class SampleProbe:
    """What was taken since the last step."""

    def __init__(self, recorder: ProbeRecorder) -> None:
        self._recorder = recorder
        self._taken: list[list[str]] = []

    def taken(self) -> list[list[str]]:
        """The batches since the last time, for training alone: evaluation has no gradients."""
        taken, self._taken = self._taken, []
        return taken

    def install(self, module: ModuleType) -> None:
        """Watch the loaders of `torch.utils.data.dataloader`."""
        loader, iterator = module.DataLoader, module._BaseDataLoaderIter
        made, next_index, next_batch = loader.__init__, iterator._next_index, iterator.__next__

        def watched_init(self_: Any, *args: Any, **options: Any) -> None:
            made(self_, *args, **options)
            self._tell_loader(self_)

        def watched_index(self_: Any) -> Any:
            index = next_index(self_)
            self_.__dict__.setdefault(QUEUE, deque()).append(index)
            return index

        loader.__init__ = watched_init
        iterator._next_index = watched_index
        iterator.__next__ = self._taking(next_batch)

    def _taking(self, next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched_next(iterator: Any) -> Any:
            batch = next_batch(iterator)
            queue = iterator.__dict__.get(QUEUE)
            index = queue.popleft() if queue else None
            if torch.is_grad_enabled() and self._recorder.ours:
                self._taken.append(_names(index, batch))
            return batch

        return watched_next

    def _tell_loader(self, loader: Any) -> None:
        sampler = getattr(loader, "sampler", None)
        kind = type(sampler).__name__
        self._recorder.tell(
            "loader",
            line=calling_line(),
            sampler=kind,
            seeded=kind != "RandomSampler" or getattr(sampler, "generator", None) is not None,
        )


def _names(index: Any, batch: Any) -> list[str]:
    """The samples of a batch by their index, or, where there is none, by what is in them."""
    indices = index if isinstance(index, list | tuple) and not hasattr(index, "_fields") else [index]
    if any(each is None for each in indices):
        return [f"#{fingerprint(_tensors(batch))}"]
    return [str(getattr(each, "sample", each))[:60] for each in indices]


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
