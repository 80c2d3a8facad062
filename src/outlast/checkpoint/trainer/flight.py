"""Copies out of a GPU that go on while training does.

A snapshot is copied on a stream of its own. The next forward and backward pass only read what is being copied: what
overwrites it is the optimizer's next step. So that step is made to wait for the copy, on the GPU, and the host waits
for nothing. The slot is sealed when the copy is done.

Never wrong, rather than always fast. It is done only for what an optimizer of the saved state steps, and only while
torch tells of its steps: an optimizer that was captured in a CUDA graph, or compiled, makes steps that nobody hears of.
Everything else is copied before `save` returns: running averages of a forward pass, other models. If something was
changed nevertheless before the step, its version number gives it away: that snapshot is not sealed, and from then on
all saves wait for their copies.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from outlast.checkpoint.trainer.layout import Pair

log = logging.getLogger("outlast")


class Runway:
    """Launches the copies of one Checkpointer, one at a time."""

    def __init__(self) -> None:
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )  # that were heard of, since the last save
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._flight: _Flight | None = None
        self._listens = False
        self._grounded = False  # for good

    @property
    def flies(self) -> bool:
        """Whether copies go on while training does."""
        return bool(self._streams) and not self._grounded

    def ready(self, state: Mapping[str, Any]) -> frozenset[int]:
        """The addresses of tensors that nothing but a step that we hear of is going to change."""
        optimizers = [value for value in state.values() if isinstance(value, Optimizer)]
        if not optimizers or self._grounded or not torch.cuda.is_initialized():
            return frozenset()
        if not self._listens:
            self._listen()
        heard = [each for each in optimizers if self._steps.pop(each, 0) and not _captured(each)]
        return frozenset(address for each in heard for address in _stepped(each))

    def launch(self, pairs: Sequence[Pair], arrived: Callable[[], None]) -> None:
        """Begin to copy, and return. `arrived` is called by another thread when all is there."""
        waiting = {value.device for _, value in pairs}
        for device in waiting:
            stream = self._streams.get(device) or self._streams.setdefault(device, torch.cuda.Stream(device))
            stream.wait_stream(torch.cuda.current_stream(device))
        for place, value in pairs:
            with torch.cuda.stream(self._streams[value.device]):
                place.copy_(value, non_blocking=True)
        self._flight = _Flight([value for _, value in pairs], [self._streams[each] for each in waiting], arrived)

    def land(self) -> None:
        """Await the copy that is under way, if there is one."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        flight.land()
        if flight.spoiled:
            self._grounded = True
            log.warning(
                "the state was changed between a save and the next step of its optimizer: that snapshot does not "
                "count, and from now on saves return when they are copied (Checkpointer(overlap=False) from the start)"
            )

    def _listen(self) -> None:
        self._listens = True
        me = weakref.ref(self)

        def before_step(optimizer: Optimizer, *_: object) -> None:
            # A step that is compiled is not heard of: to look around would break the graph, or forbid it.
            if not torch.compiler.is_compiling() and (runway := me()) is not None:
                runway._before_step(optimizer)

        weakref.finalize(self, register_optimizer_step_pre_hook(before_step).remove)

    def _before_step(self, optimizer: Optimizer) -> None:
        if torch.cuda.is_current_stream_capturing():
            self._grounded = True  # its replays come without a word
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if self._flight is not None:
            self._flight.hold_back()


class _Flight:
    """One copy under way."""

    def __init__(
        self, values: list[torch.Tensor], streams: Sequence[torch.cuda.Stream], arrived: Callable[[], None]
    ) -> None:
        self.spoiled = False
        self._values = values  # nobody else may use their memory meanwhile
        self._versions = [value._version for value in values]
        self._events = [torch.cuda.Event(blocking=True) for _ in streams]
        for event, stream in zip(self._events, streams, strict=True):
            event.record(stream)
        self._devices = [stream.device for stream in streams]
        self._arrived = arrived
        self._judged = False  # whether it was spoiled; what is changed later is not changed before it was copied
        self._lock = threading.Lock()
        self._problem: BaseException | None = None
        # Awaited when Python ends: the last snapshot of a script counts.
        self._thread = threading.Thread(target=self._await, name="outlast-copy")
        self._thread.start()

    def hold_back(self) -> None:
        """What comes next on the GPU overwrites what is being copied."""
        self._judge()
        if torch.cuda.is_current_stream_capturing():
            self._thread.join()
            return
        for device, event in zip(self._devices, self._events, strict=True):
            torch.cuda.current_stream(device).wait_event(event)

    def land(self) -> None:
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _judge(self) -> None:
        with self._lock:
            if not self._judged:
                self._judged = True
                changed = (v._version != known for v, known in zip(self._values, self._versions, strict=True))
                self.spoiled = any(changed)

    def _await(self) -> None:
        try:
            for event in self._events:
                event.synchronize()
            self._judge()
            if not self.spoiled:
                self._arrived()
        except BaseException as error:  # noqa: BLE001  (raised by `land`, in the script's own thread)
            self._problem = error


def _captured(optimizer: Optimizer) -> bool:
    """Whether its steps are meant for a CUDA graph."""
    return any(group.get("capturable") for group in optimizer.param_groups)


def _stepped(optimizer: Optimizer) -> list[int]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    local = (each._local_tensor if isinstance(each, DTensor) else each for each in (*parameters, *kept))
    return [each.data_ptr() for each in local]
