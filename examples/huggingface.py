"""Hugging Face's Trainer, made to outlast its workers: start it with `outlast run` (or torchrun).

    pip install transformers accelerate
    outlast run --nproc-per-node=2 --max-restarts=3 examples/huggingface.py --steps 200

A tiny language model with random weights learns to count: nothing is downloaded. The Trainer saves every few steps,
and whoever starts next goes on from the last checkpoint.
"""

import argparse
import os
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

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


def last_checkpoint(output: Path) -> str | None:
    """The newest whole checkpoint: the Trainer may have been killed while it wrote one (its state comes last)."""
    whole = [path.parent for path in output.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.partition("-")[2]))) if whole else None


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--save-every", type=int, default=20)
    options.add_argument("--output", type=Path, default=Path("counting"))
    args = options.parse_args()

    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=args.output,
            max_steps=args.steps,
            save_steps=args.save_every,
            save_total_limit=2,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            use_cpu=not torch.cuda.is_available(),
            ddp_backend="nccl" if torch.cuda.is_available() else "gloo",
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=Counting(),
        callbacks=[Steps()],
    )
    last = last_checkpoint(args.output)
    if trainer.is_world_process_zero():
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        print(f"training from {last or 'the beginning'} (restarts so far: {restarts})", flush=True)
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
