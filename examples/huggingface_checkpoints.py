"""Hugging Face's Trainer, with Outlast's checkpoints: start it with `outlast run` (or torchrun).

    pip install transformers accelerate
    outlast run --nproc-per-node=2 --max-restarts=3 examples/huggingface_checkpoints.py --steps 200

A tiny language model with random weights learns to count: nothing is downloaded. Every step is saved in memory, and
every few steps on disk; whoever starts next goes on from the newest.
"""

import argparse
import os
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import outlast
from outlast.integrations.huggingface import TrainerCheckpoints

WORDS, LENGTH = 64, 32


class Counting(Dataset):
    """Sequences that count upwards, each from a number of its own."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(LENGTH) + index) % WORDS
        return {"input_ids": numbers, "labels": numbers}


class Steps(TrainerCallback):
    """One line for every step, from rank 0."""

    def on_step_end(self, _args, state, _control, **_):
        if state.is_world_process_zero:
            print(f"step {state.global_step} of {state.max_steps}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--save-every", type=int, default=20)
    options.add_argument("--output", type=Path, default=Path("counting-checkpoints"))
    args = options.parse_args()

    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    checkpoints = TrainerCheckpoints(outlast.Checkpointer(args.output, keep_last=2), durable_every=args.save_every)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=args.output,
            max_steps=args.steps,
            save_strategy="no",
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            use_cpu=not torch.cuda.is_available(),
            ddp_backend="nccl" if torch.cuda.is_available() else "gloo",
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=Counting(),
        callbacks=[checkpoints, Steps()],
    )
    if trainer.is_world_process_zero():
        print(f"restarts so far: {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", flush=True)
    checkpoints.train(trainer)


if __name__ == "__main__":
    main()
