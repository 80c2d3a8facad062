"""Hugging Face's Trainer inside a restartable function, its model outside: `in_place_huggingface.py FOLDER FAULTS`."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import outlast
from outlast.integrations.huggingface import TrainerCheckpoints

FOLDER, FAULTS = sys.argv[1], int(sys.argv[2])
STEPS, FAULT_AT = 6, 3
WORDS, LENGTH = 16, 8


class Counting(Dataset[Any]):
    """Sequences that count upwards, each from a number of its own."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(LENGTH) + index) % WORDS
        return {"input_ids": numbers, "labels": numbers}


class FailsOnce(TrainerCallback):
    """On rank 1, after a step that all have saved."""

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        rank = torch.distributed.get_rank()
        print(f"rank {rank} pid {os.getpid()} makes step {state.global_step}", flush=True)
        torch.distributed.barrier()
        if (rank, state.global_step) == (1, FAULT_AT) and int(os.environ["OUTLAST_GENERATION"]) <= FAULTS:
            raise ValueError("an error of the test's")


torch.manual_seed(0)
ids = {"bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, **ids))


@outlast.restartable
def train() -> None:
    checkpoints = TrainerCheckpoints(outlast.Checkpointer(FOLDER), durable_every=100)
    arguments = TrainingArguments(
        output_dir=FOLDER,
        max_steps=STEPS,
        save_strategy="no",
        per_device_train_batch_size=8,
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        report_to="none",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[checkpoints, FailsOnce()])
    checkpoints.train(trainer)


train()
# In one write: `print` makes two, and the other rank's may come between them.
sums = [each.double().sum().item() for each in model.parameters()]
sys.stdout.write(f"rank {os.environ['RANK']} ends with {sums}\n")
