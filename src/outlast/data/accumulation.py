"""`Accumulation`: one optimizer step per global batch, however many micro batches a rank needs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from outlast.data.batch import BatchPlan


class Accumulation:
    """Gradients over the micro batches of a global batch; ranks exchange them once, and then the optimizer steps.

        accumulation = outlast.Accumulation(model, optimizer, loader.plan, scheduler=scheduler)
        for batch, weights in loader:
            with accumulation:
                (losses(model, batch) * weights).sum().backward()
            if accumulation.stepped:
                save(...)

    Forward and backward both belong in the block. `loader` is an `ElasticLoader` with a `global_batch`: its weights
    scale the loss already. `model`: of DDP, of FSDP, or a plain one. `scheduler` steps with the optimizer, and
    `before_step` is called before it (to clip gradients). `steps` counts global batches: it grows at the same pace on
    every world size, and so does the learning rate's schedule.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        plan: BatchPlan,
        *,
        scheduler: Any = None,
        before_step: Callable[[], object] | None = None,
    ) -> None:
        self.steps = 0
        self.stepped = False  # whether the newest block was the last one of its global batch
        self._model = model
        self._optimizer = optimizer
        self._plan = plan
        self._scheduler = scheduler
        self._before_step = before_step
        self._micro_step = 0
        self._silence: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> Accumulation:
        if self._micro_step == 0:
            self._optimizer.zero_grad()
        self.stepped = False
        self._silence = self._quiet(last=self._micro_step + 1 == self._plan.micro_steps)
        self._silence.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._silence.__exit__(kind, error, trace)
        if kind is not None:
            self.reset()  # a batch that failed is not stepped; its gradients are forgotten
            return
        self._micro_step += 1
        if self._micro_step < self._plan.micro_steps:
            return
        self._micro_step = 0
        if self._before_step is not None:
            self._before_step()
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self.steps += 1
        self.stepped = True

    def reset(self) -> None:
        """Forget the micro batches since the last step: for a loop that was left between two steps, whose loader gives
        them out again.
        """
        self._micro_step = 0

    def state_dict(self) -> dict[str, Any]:
        """How many global batches were trained, for the checkpoint. Optimizer and scheduler have their own."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting there."""
        self.steps = int(state["steps"])
        self.reset()

    def _quiet(self, *, last: bool) -> AbstractContextManager[Any]:
        """Before the last micro batch, ranks keep their gradients to themselves."""
        if callable(switch := getattr(self._model, "set_requires_gradient_sync", None)):  # FSDP2
            switch(last)
        elif not last and callable(no_sync := getattr(self._model, "no_sync", None)):  # DDP
            silence: AbstractContextManager[Any] = no_sync()
            return silence
        return nullcontext()
