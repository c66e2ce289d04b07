"""Profile a tiny GPT-2 with random weights that the Hugging Face Trainer trains; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from images import arguments, list_files
from perfhooks_transformers import ProfilerCallback

VOCABULARY = 128
LENGTH = 32


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Noise in the form of texts."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train a few steps, show the table of the profiled ones and list the files."""
    args = arguments(__doc__).parse_args()
    profiler = ProfilerCallback(
        schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", with_stack=True, max_trace_mb=None, out=args.out
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)),
        args=TrainingArguments(
            output_dir="trained",
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=RandomTokens(args.steps * args.batch_size),
        callbacks=[profiler],
    )
    trainer.train()

    print(profiler.summary())
    list_files((args.out or Path("trained") / "perf") / "latest")


if __name__ == "__main__":
    main()
