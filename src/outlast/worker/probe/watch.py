"""Puts the probe together."""

from __future__ import annotations

import atexit
import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

from outlast.worker import imports
from outlast.worker.probe.files import FileProbe
from outlast.worker.probe.plan import ProbeFaults
from outlast.worker.probe.recorder import ProbeRecorder
from outlast.worker.probe.setup_time import SetupClock
from outlast.worker.probe.user_code import calling_line

DATALOADER, OPTIMIZER = "torch.utils.data.dataloader", "torch.optim.optimizer"


def watch(directory: str) -> None:
    """Tell of this process in that directory from now on."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    generation = int(os.environ["OUTLAST_GENERATION"])
    recorder = ProbeRecorder(Path(directory), rank, generation)
    recorder.tell("born", rank=rank, world=world, generation=generation, pid=os.getpid())
    faults, clock = ProbeFaults(recorder), SetupClock()
    _watch_handlers(recorder)
    atexit.register(recorder.tell, "end")

    def torch_is_here(torch: ModuleType) -> None:
        from outlast.worker.probe.steps import StepProbe

        steps = StepProbe(recorder, faults, clock)
        files = FileProbe(recorder, faults, lambda: steps.number)
        files.install_torch(torch)
        steps.install_backward(torch.autograd)
        imports.after(OPTIMIZER, steps.install_optimizer)
        imports.after(DATALOADER, steps.samples.install)
        imports.after("torch.distributed.checkpoint", files.install_dcp)
        imports.after("outlast.checkpoint.trainer.checkpointer", files.install_checkpointer)

    imports.after("torch", torch_is_here)


def _watch_handlers(recorder: ProbeRecorder) -> None:
    """Remember the line that says what happens on SIGTERM."""
    set_handler = signal.signal

    def watched_signal(number: int, handler: Any) -> Any:
        if number == signal.SIGTERM and (line := calling_line()):
            recorder.tell("handler", line=line, ignored=handler is signal.SIG_IGN)
        return set_handler(number, handler)

    signal.signal = watched_signal  # type: ignore[assignment]
