"""The callback with Outlast's checkpoints, in one process. Needs Lightning and torchdata: else it is skipped."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import outlast

lightning = pytest.importorskip("lightning.pytorch")
loaders = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning's about torch, and about few workers
EPOCHS, BATCHES = 3, 4


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        self.seen.append(batch.tolist())
        loss: torch.Tensor = self.layer(batch.float().view(-1, 1)).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


class Fail(lightning.Callback):  # type: ignore[misc, name-defined]
    def __init__(self, step: int | None) -> None:
        self._step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self._step:
            raise RuntimeError("failed")


def fit(path: Path, *, fail_at: int | None = None) -> Model:
    """One life of a training."""
    from outlast.integrations.lightning_checkpoints import LightningCheckpoints

    torch.manual_seed(0)
    model, checkpointer = Model(), outlast.Checkpointer(path)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[LightningCheckpoints(checkpointer, durable_every=1), Fail(fail_at)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    with pytest.raises(RuntimeError, match="failed") if fail_at is not None else nullcontext():
        trainer.fit(model, loaders.StatefulDataLoader(range(2 * BATCHES), batch_size=2, shuffle=True))
    checkpointer.close()
    return model


def test_a_training_that_fails_after_the_last_step_of_an_epoch_goes_on_with_the_next(tmp_path: Path) -> None:
    """Lightning takes the loader where it was, at its end, for one that begins: an epoch without data. And counts wrong
    from then on, so that the next time an epoch would be trained twice.
    """
    truth = fit(tmp_path / "truth")
    assert len(truth.seen) == EPOCHS * BATCHES
    seen = []
    for fail_at in (BATCHES, 2 * BATCHES, None):
        model = fit(tmp_path / "failed", fail_at=fail_at)
        seen += model.seen
    assert seen == truth.seen
    assert torch.equal(model.layer.weight, truth.layer.weight)
    assert fit(tmp_path / "failed").seen == []  # it is done
