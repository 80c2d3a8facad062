"""Hugging Face's Trainer with Outlast's checkpoints: saves at the speed of memory, and goes on from the newest.

    from outlast.integrations.huggingface import TrainerCheckpoints as Checkpoints

    checkpoints = Checkpoints(outlast.Checkpointer("checkpoints/", every=10), durable_every=1000)
    trainer = Trainer(..., callbacks=[checkpoints])      # with save_strategy="no"
    checkpoints.train(trainer)                           # instead of trainer.train()

Model, optimizer, schedule, scaler, the Trainer's own state, what its callbacks have counted (early stopping) and every
rank's random numbers are saved; the Trainer skips the data that was trained, as it does with its own checkpoints. For
one process, DDP and FSDP2; not for DeepSpeed.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.integrations.random_numbers import random_numbers, set_random_numbers

try:
    from transformers import TrainerCallback
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "outlast.integrations.huggingface needs transformers and accelerate: pip install transformers accelerate",
        name=error.name,
    ) from error

# What the Trainer calls when it goes on from a directory: there is nothing but its own state in ours.
_LOADS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "_load_scaler")


class TrainerCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Saves after every step, as often as the checkpointer's `every` says; to disk every `durable_every` steps.

    The last step is written to disk in any case.
    """

    def __init__(self, checkpointer: Checkpointer, *, durable_every: int = 0) -> None:
        self._checkpointer = checkpointer
        self._durable_every = durable_every
        self._trainer: Any = None
        self._on_disk = 0  # the newest step that was
        self._log: tuple[int, str] = (-1, "[]")

    def train(self, trainer: Any, **options: Any) -> Any:
        """`trainer.train()`, from the newest state if there is one. Raises what `Checkpointer.restore` does."""
        if self not in trainer.callback_handler.callbacks:
            raise ValueError("give it to the Trainer, too: Trainer(..., callbacks=[checkpoints])")
        self._trainer = trainer
        known: dict[str, Any] = {"trainer": None}
        step = self._on_disk = self._checkpointer.restore(known)
        if step == 0:
            return trainer.train(**options)
        self._load_callbacks(json.loads(known["trainer"]).get("stateful_callbacks") or {})
        with tempfile.TemporaryDirectory(prefix="outlast-") as directory:
            (Path(directory) / TRAINER_STATE_NAME).write_text(known["trainer"])
            with self._loading(step):
                return trainer.train(resume_from_checkpoint=directory, **options)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if self._trainer is None:
            raise ValueError("start the training with checkpoints.train(trainer), not with trainer.train()")
        durable = self._durable_every > 0 and state.global_step % self._durable_every == 0
        last = state.global_step >= state.max_steps
        self._save(state.global_step, durable=durable or last)

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if self._on_disk != state.global_step:  # it was stopped early
            self._save(state.global_step, durable=True)
        self._checkpointer.wait()

    def _save(self, step: int, *, durable: bool) -> None:
        self._checkpointer.save(step, self._state, durable=durable)
        if durable:
            self._on_disk = step

    def _state(self) -> dict[str, Any]:
        return {
            **self._objects(),
            "trainer": self._own_state(),
            "random": {str(self._trainer.args.process_index): random_numbers()},
        }

    def _objects(self) -> dict[str, Any]:
        trainer = self._trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate's wrapper is around it
        found = {"model": trainer.model, "optim": optimizer, "schedule": trainer.lr_scheduler}
        scaler = trainer.accelerator.scaler
        return found if scaler is None else {**found, "scaler": scaler}

    def _own_state(self) -> str:
        """As the Trainer writes it; what it has logged grows, and is put into words only when it has."""
        state = self._trainer.state
        if self._log[0] != len(state.log_history):
            self._log = len(state.log_history), json.dumps(state.log_history)
        rest = dataclasses.asdict(dataclasses.replace(state, log_history=[]))
        rest["stateful_callbacks"] = rest["stateful_callbacks"] | self._callback_states()
        return f'{json.dumps(rest)[:-1]}, "log_history": {self._log[1]}}}'

    def _callback_states(self) -> dict[str, list[Any]]:
        """By class, as the Trainer has them in its own checkpoints."""
        found: dict[str, list[Any]] = {}
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                found.setdefault(type(callback).__name__, []).append(callback.state())
        return found

    def _load_callbacks(self, stored: Mapping[str, Any]) -> None:
        """Give the callbacks that are there what those of their class had. The Trainer would replace them."""
        left = {name: list(its) if isinstance(its, list) else [its] for name, its in stored.items()}
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState) and left.get(type(callback).__name__):
                for name, value in left[type(callback).__name__].pop(0)["attributes"].items():
                    setattr(callback, name, value)

    @contextmanager
    def _loading(self, step: int) -> Iterator[None]:
        """Have the Trainer get what it asks its checkpoint for from us."""
        trainer = self._trainer
        numbers: dict[str, Any] = {"random": None}

        def nothing(*_: Any, **__: Any) -> None:
            pass

        def load(*_: Any, **__: Any) -> None:
            self._checkpointer.restore({**self._objects()}, step=step)

        def load_random(*_: Any, **__: Any) -> None:
            self._checkpointer.restore(numbers, step=step)
            mine = (numbers["random"] or {}).get(str(trainer.args.process_index))
            if mine is not None:  # else there are more ranks than there were
                set_random_numbers(mine)

        given = dict(zip(_LOADS, (nothing, load, load_random, nothing), strict=True))
        missing = [name for name in _LOADS if not hasattr(trainer, name)]
        if missing:
            raise ValueError(f"this version of transformers is not known here: its Trainer has no {missing[0]}")
        if 0 < trainer.args.max_steps <= step and hasattr(trainer, "_run_epoch"):
            given["_run_epoch"] = nothing  # all is trained, and the Trainer looks at that only after one step more
        for name, function in given.items():
            setattr(trainer, name, function)
        try:
            yield
        finally:
            for name in given:
                delattr(trainer, name)
