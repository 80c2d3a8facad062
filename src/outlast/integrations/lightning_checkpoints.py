"""Lightning with Outlast's checkpoints: saves at the speed of memory, and goes on from the newest.

    from outlast.integrations.lightning_checkpoints import LightningCheckpoints as Checkpoints

    saving = Checkpoints(outlast.Checkpointer("checkpoints/", every=10), durable_every=1000)
    trainer = Trainer(callbacks=[saving], enable_checkpointing=False)
    trainer.fit(model, data)                # goes on from the newest state, if there is one

What Lightning itself puts into a checkpoint is saved, and every rank's random numbers. Lightning does not skip data
that was trained: have a loader with a state (torchdata's StatefulDataLoader), and it goes on in the middle of an epoch.
For one device and DDP; strategies that shard the state have checkpoints of their own.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.integrations.lightning import callback_class
from outlast.integrations.random_numbers import random_numbers, set_random_numbers


class LightningCheckpoints(callback_class()):  # type: ignore[misc]
    """Saves after every step, as often as the checkpointer's `every` says; to disk every `durable_every` steps.

    The state at the end of the training is written to disk in any case.
    """

    def __init__(self, checkpointer: Checkpointer, *, durable_every: int = 0) -> None:
        super().__init__()
        self._checkpointer = checkpointer
        self._durable_every = durable_every
        self._saved = self._on_disk = 0  # the newest step that was
        self._numbers: dict[str, Any] | None = None  # to go on with, of this rank
        self._epoch_ended = self._loaders_ended = False  # with the step that was restored

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if trainer.strategy.restore_checkpoint_after_setup:
            kind = type(trainer.strategy).__name__
            raise ValueError(f"{kind} is not known to Outlast's checkpoints: use Lightning's, or another strategy")
        state: dict[str, Any] = {"lightning": None, "ranks": None}
        self._saved = self._on_disk = self._checkpointer.restore(state)
        if self._saved == 0:
            return
        mine = state["ranks"].get(str(trainer.global_rank), {})  # nothing, if there are more ranks than there were
        self._numbers = mine.get("random")
        loaded = state["lightning"] | {"loops": mine.get("loops", state["ranks"]["0"]["loops"])}
        loop = loaded["loops"]["fit_loop"]
        self._epoch_ended = loop["epoch_loop.batch_progress"]["is_last_batch"]
        self._loaders_ended = self._epoch_ended and bool(loop["state_dict"].get("combined_loader"))
        for optimizer in loaded["optimizer_states"]:
            optimizer["state"] = {int(key): value for key, value in optimizer["state"].items()}
        connector = trainer._checkpoint_connector

        def resume_start(*_: Any, **__: Any) -> None:
            """Instead of reading the file that `fit` was given: once."""
            connector._loaded_checkpoint = loaded
            del connector.resume_start

        connector.resume_start = resume_start

    def on_train_start(self, trainer: Any, _module: Any) -> None:
        if self._numbers is not None:
            set_random_numbers(self._numbers)
        if self._epoch_ended:
            self._begin_epoch(trainer.fit_loop)
            self._epoch_ended = False

    def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, index: int) -> None:
        if self._numbers is not None and index > 0:  # a loader that begins in its middle has used some
            set_random_numbers(self._numbers)
        self._numbers = None

    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, _index: int) -> None:
        step = trainer.global_step
        if step == self._saved:
            return  # gradients are being accumulated
        self._save(trainer, durable=self._durable_every > 0 and step % self._durable_every == 0)
        self._saved = step

    def on_train_end(self, trainer: Any, _module: Any) -> None:
        if self._on_disk != trainer.global_step:
            self._save(trainer, durable=True)
        self._checkpointer.wait()

    def _begin_epoch(self, loop: Any) -> None:
        """Lightning has closed the epoch that was at its end, but goes on as if in its middle: with the loaders where
        they were, at their end, and without counting the next epoch.
        """
        with suppress(StopIteration):
            while self._loaders_ended and loop.epoch_loop.restarted_on_train_batch_end:
                next(loop._data_fetcher)
        iter(loop._data_fetcher)
        loop.reset_restart_stage()

    def _save(self, trainer: Any, durable: bool) -> None:
        self._checkpointer.save(trainer.global_step, partial(self._state, trainer), durable=durable)
        if durable:
            self._on_disk = trainer.global_step

    def _state(self, trainer: Any) -> dict[str, Any]:
        whole = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        mine = {"loops": whole.pop("loops"), "random": random_numbers()}  # loaders are in the loops
        return {"lightning": whole, "ranks": {str(trainer.global_rank): mine}}
