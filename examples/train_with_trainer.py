"""The `Trainer` of transformers with the backend "meta".

    python examples/train_with_trainer.py

A small Llama learns sequences of several lengths, which are padded. The last batch of an epoch is
smaller than the others, gradients are accumulated and clipped, and each epoch ends with an
evaluation and a checkpoint, from the first of which a second run goes on.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from meta.interop.accelerate import register_backend

WORDS, ROWS = 64, 22
STEPS = 3  # of an epoch: batches of 4, 4, 4, 4, 4 and 2, two of which are a step


def sequences() -> list[torch.Tensor]:
    """Sequences that count upwards, of 4 to 24 words."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 25, (ROWS,), generator=generator).tolist()
    starts = torch.randint(WORDS, (ROWS,), generator=generator).tolist()
    return [
        (start + torch.arange(length)) % (WORDS - 1) + 1
        for start, length in zip(starts, lengths, strict=True)
    ]


def pad(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    words = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    mask = (words != 0).long()
    return {"input_ids": words, "attention_mask": mask, "labels": words.where(mask.bool(), -100)}


def train(backend: str | None, folder: Path, resume: bool = False, **options: Any) -> list[float]:
    """Train two epochs, or go on with the second; return the losses of steps and evaluations."""
    set_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    register_backend()
    arguments = TrainingArguments(
        str(folder),
        torch_compile=backend is not None,
        torch_compile_backend=backend,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    data = sequences()
    trainer = Trainer(
        model,
        arguments,
        data_collator=pad,
        train_dataset=data,
        eval_dataset=data[:7],
    )
    checkpoint = str(folder / f"checkpoint-{STEPS}") if resume else None
    trainer.train(resume_from_checkpoint=checkpoint)
    history = trainer.state.log_history
    return [row[name] for row in history for name in ("loss", "eval_loss") if name in row]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(*(f"{loss:.4f}" for loss in train("meta", Path(folder))))
