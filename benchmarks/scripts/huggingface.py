"""Hugging Face's Trainer with a small GPT-2 and `torch_compile`: `huggingface.py MARKS`."""

from __future__ import annotations

import tempfile

import torch
from marks import note
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Steps(TrainerCallback):
    def on_step_end(self, _arguments: object, state: object, _control: object, **_: object) -> None:
        note(state.global_step)  # type: ignore[attr-defined]


cuda = torch.cuda.is_available()
size = {"n_embd": 768, "n_layer": 12, "n_head": 12} if cuda else {"n_embd": 64, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=128, **size))
data = [{"input_ids": torch.randint(0, 1000, (128,)), "labels": torch.randint(0, 1000, (128,))} for _ in range(64)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=100_000,
    per_device_train_batch_size=8,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    logging_strategy="no",
    torch_compile=True,
    use_cpu=not cuda,
    ddp_backend="nccl" if cuda else "gloo",
)
Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Steps()]).train()
