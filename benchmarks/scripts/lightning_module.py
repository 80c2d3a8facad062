"""Lightning's Trainer with a compiled module: `lightning_module.py MARKS`."""

from __future__ import annotations

from typing import Any

import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

from marks import note

cuda = torch.cuda.is_available()
width, layers = (1024, 12) if cuda else (64, 2)


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        return self.model(batch).square().mean()

    def on_train_batch_end(self, *_: Any) -> None:
        note(self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


module = Model()
module.model.compile()
data = torch.utils.data.DataLoader(torch.randn(64, 128, width), batch_size=8)
pl.Trainer(
    accelerator="gpu" if cuda else "cpu",
    devices="auto" if cuda else 1,
    strategy="ddp",
    max_epochs=-1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(module, data)
