"""What distributed.py trains: one `RankRow` per network, mixed precision of bfloat16, AdamW.

To add a row, write its task as a function of ``tiny`` (small sizes) and ``times`` (how many batches
of a rank it draws, one after the other) and name it in `RANK_ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from meta.model.zoo import LlamaConfig, LlamaForCausalLM, causal_lm_loss
from models.cuda_rows import SEED, bert, gpt2, resnet50
from models.task import Task, successors

LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 4608,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
"""A Llama of 0.48 billion parameters."""
TINY_LLAMA = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class RankRow:
    """A network and the batch of each rank.

    Attributes
    ----------
    task: of ``tiny`` and ``times``. block: the name of the class of torch's modules that FSDP2
    shards and torch.compile compiles one by one. images: whether torch's model and inputs are
    channels_last, and batch normalisation, whose statistics are each rank's own, makes the losses
    of several ranks others than those of one with the joined batch. gigabytes: of a device's
    memory, more than one contender takes; how many are there at the same time follows from it.
    """

    task: Callable[[bool, int], Task]
    block: str
    images: bool = False
    gigabytes: float = 8.0


def llama(batch: int, steps: int, tiny: bool, times: int = 1) -> Task:
    """Return a Llama, predicting the next token of random texts."""
    sizes: dict[str, Any] = dict(TINY_LLAMA if tiny else LLAMA)
    if tiny:
        batch, steps = 2, 32
    config = LlamaConfig(**sizes)

    def theirs() -> nn.Module:
        import transformers

        their_config = transformers.LlamaConfig(
            **sizes, use_cache=False, attn_implementation="sdpa"
        )
        module: nn.Module = transformers.LlamaForCausalLM(their_config)
        return module

    def texts() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        ids = torch.randint(3, config.vocab_size, (times * batch, steps), generator=generator)
        return ids, ids

    what = f"Llama 0.5B, B{batch} S{steps}"
    return Task(
        what, theirs, successors, texts, ours=lambda: LlamaForCausalLM(config), loss=causal_lm_loss
    )


RANK_ROWS = {
    "gpt2": RankRow(partial(gpt2, 8, 512, 0.0), "GPT2Block", gigabytes=10),
    "gpt2-medium": RankRow(partial(gpt2, 8, 512, 0.0, medium=True), "GPT2Block", gigabytes=20),
    "bert": RankRow(partial(bert, 12, 32, 128), "BertLayer", gigabytes=10),
    "llama": RankRow(partial(llama, 8, 512), "LlamaDecoderLayer", gigabytes=24),
    "resnet50": RankRow(partial(resnet50, 64), "Bottleneck", images=True, gigabytes=10),
}
"""The rows by the names that ``--rows`` takes."""
