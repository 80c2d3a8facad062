"""Steps of optimizers: loss, weights, optimizer state, learning rate, random numbers and samples of each."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

from outlast.worker.probe.plan import ProbeFaults
from outlast.worker.probe.recorder import ProbeRecorder
from outlast.worker.probe.setup_time import SetupClock

LOADING = ("torch/distributed/checkpoint", "outlast/checkpoint")  # makes steps to give an optimizer its state


class StepProbe:
    """Counts the steps of this process, and tells of each."""

    def __init__(self, recorder: ProbeRecorder, faults: ProbeFaults, clock: SetupClock) -> None:
        from outlast.worker.probe.samples import SampleProbe

        self._recorder = recorder
        self._faults = faults
        self._clock: SetupClock | None = clock
        self.samples = SampleProbe(recorder)
        self.number = 0
        self._losses: list[Any] = []
        self._before: dict[str, Any] = {}

    def install_backward(self, autograd: Any) -> None:
        """Hear of losses: `loss.backward()` comes by here, too."""
        backward = autograd.backward

        def watched_backward(tensors: Any, *args: Any, **options: Any) -> Any:
            if getattr(tensors, "numel", lambda: 0)() == 1:
                self._losses.append(tensors.detach())
            return backward(tensors, *args, **options)

        autograd.backward = watched_backward

    def install_optimizer(self, module: ModuleType) -> None:
        """Hear of steps, before and after."""
        module.register_optimizer_step_pre_hook(self._before_step)
        module.register_optimizer_step_post_hook(self._after_step)

    def _before_step(self, optimizer: Any, _args: object, _options: object) -> None:
        import torch

        from outlast.worker.probe.fingerprints import fingerprint, optimizer_tensors, parameters

        if not self._recorder.ours or torch.compiler.is_compiling() or _only_loading():
            return
        self._before = {"rng": fingerprint([torch.get_rng_state()])}
        if self.number == 0:
            state = list(optimizer_tensors(optimizer))
            self._before |= {"before": fingerprint(parameters(optimizer)), "optimizer_before": fingerprint(state)}
            self._before |= {"optimizer_empty": not state}
        self._stop_clock()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            lines = self._clock.stop()
            self._clock = None
            self._recorder.tell("setup", lines=lines, handler=_sigterm())

    def _after_step(self, optimizer: Any, _args: object, _options: object) -> None:
        import torch

        from outlast.worker.probe.fingerprints import fingerprint, norm, optimizer_tensors, parameters

        if not self._recorder.ours or torch.compiler.is_compiling() or _only_loading():
            return
        self.number += 1
        state = list(optimizer_tensors(optimizer))
        losses, self._losses = self._losses, []
        self._recorder.tell(
            "step",
            number=self.number,
            made=time.time(),
            loss=sum(map(float, losses)) / len(losses) if losses else None,
            after=fingerprint(parameters(optimizer)),
            norm=norm(parameters(optimizer)),
            optimizer=fingerprint(state),
            optimizer_stateful=bool(state),
            rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            batches=self.samples.taken(),
            **self._before,
        )
        self._faults.after_step(self.number)


def _only_loading() -> bool:
    """Whether this step is made while a checkpoint is loaded."""
    frame = sys._getframe(2)
    while frame is not None:
        if any(place in frame.f_code.co_filename for place in LOADING):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _sigterm() -> str:
    """What this process does on SIGTERM: "default", "ignored", or "handled"."""
    import signal

    handler = signal.getsignal(signal.SIGTERM)
    return "ignored" if handler is signal.SIG_IGN else "default" if handler is signal.SIG_DFL else "handled"
