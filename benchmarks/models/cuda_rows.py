"""What models_cuda.py measures: one `Row` per line of its table, each a `Task` and how it is run.
Models of torch alone are in `cuda_strangers`.

To add a row, write its task as a function of ``tiny`` (small sizes, for a look at whether all of it
runs) and name it in `ROWS`. Dropout is off, so that the libraries' losses can be compared, but in
one row, whose first losses are still as close as half precision is. transformers and torchvision
are imported where they are asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import meta
from meta.model.zoo import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ResNet,
    ResNetConfig,
    causal_lm_loss,
    masked_lm_loss,
)
from models.task import Row, Task, classes, successors

MASKED, SEED = 0.15, 1
IGNORED = -100


def bert(layers: int, batch: int, steps: int, tiny: bool, times: int = 1) -> Task:
    """Return BERT-base, of so many layers, predicting masked words of random texts: as many in each
    text. times: how many such batches, in one.
    """
    sizes: dict[str, Any] = {"num_hidden_layers": 2 if tiny and layers > 1 else layers}
    if tiny:
        sizes |= {"vocab_size": 512, "hidden_size": 64, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 128}
        batch, steps = 2, 16
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**sizes, **off)

    def theirs() -> nn.Module:
        import transformers

        their_config = transformers.BertConfig(**sizes, **off, attn_implementation="sdpa")
        module: nn.Module = transformers.BertForMaskedLM(their_config)
        return module

    def texts() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        ids = torch.randint(1, config.vocab_size, (times * batch, steps), generator=generator)
        order = torch.rand(ids.shape, generator=generator).argsort(1)
        return ids, torch.where(order < MASKED * steps, ids, IGNORED)

    what = f"BERT, {layers} layer{'s' * (layers > 1)}, B{batch} S{steps}"
    return Task(
        what, theirs, classes, texts, ours=lambda: BertForMaskedLM(config), loss=masked_lm_loss
    )


def gpt2(
    batch: int, steps: int, dropped: float, tiny: bool, times: int = 1, medium: bool = False
) -> Task:
    """Return GPT-2, predicting the next token of random texts, with a share dropped. times: how
    many such batches, in one.
    """
    sizes: dict[str, Any] = {"n_embd": 1024, "n_layer": 24, "n_head": 16} if medium else {}
    if tiny:
        sizes = {"vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 32}
        batch, steps = 2, 32
    shares = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropped)
    config = GPT2Config(**sizes, **shares)

    def theirs() -> nn.Module:
        import transformers

        tokens = {"bos_token_id": 0, "eos_token_id": 0}
        their_config = transformers.GPT2Config(
            **sizes, **shares, **tokens, use_cache=False, attn_implementation="sdpa"
        )
        module: nn.Module = transformers.GPT2LMHeadModel(their_config)
        return module

    def texts() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        ids = torch.randint(config.vocab_size, (times * batch, steps), generator=generator)
        return ids, ids

    what = f"GPT-2 {'medium' if medium else 'small'}, B{batch} S{steps}"
    what += f", dropout {dropped}" * (dropped > 0)
    return Task(
        what, theirs, successors, texts, ours=lambda: GPT2LMHeadModel(config), loss=causal_lm_loss
    )


def resnet50(batch: int, tiny: bool, times: int = 1) -> Task:
    """Return ResNet-50 with random images. times: how many such batches, in one."""
    layers, size = ((1, 1, 1, 1), 32) if tiny else ((3, 4, 6, 3), 224)
    config = ResNetConfig(layers, bottleneck=True)

    def theirs() -> nn.Module:
        from torchvision.models import resnet

        module: nn.Module = resnet.ResNet(resnet.Bottleneck, list(layers))
        return module

    def images() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(times * batch, 3, size, size, generator=generator)
        return x, torch.randint(config.num_classes, (times * batch,), generator=generator)

    def loss(found: Any, labels: Any) -> Any:
        return meta.cross_entropy(found, labels)

    return Task(
        f"ResNet-50, B{batch}", theirs, classes, images, ours=lambda: ResNet(config), loss=loss
    )


ROWS = {
    "bert1-train-fp16": Row(partial(bert, 1, 8, 128), True, "float16"),
    "bert-train-fp16": Row(partial(bert, 12, 32, 128), True, "float16", memory=0.9, first_call=0.2),
    "bert-train-tf32": Row(partial(bert, 12, 32, 128), True, "tf32"),
    "gpt2-train-bf16": Row(
        partial(gpt2, 8, 512, 0.0), True, "bfloat16", "adamw", 1e-4, gigabytes=8
    ),
    "gpt2-dropout-train-bf16": Row(
        partial(gpt2, 8, 512, 0.1),
        True,
        "bfloat16",
        "adamw",
        1e-4,
        gigabytes=8,
        time=0.85,
        memory=1.0,
    ),
    "resnet50-train-fp16": Row(partial(resnet50, 64), True, "float16", channels_last=True),
    "resnet50-train-tf32": Row(partial(resnet50, 64), True, "tf32", channels_last=True),
    "resnet50-infer-tf32": Row(partial(resnet50, 64), False, "tf32", channels_last=True),
    "resnet50-infer-fp16": Row(partial(resnet50, 64), False, "float16", channels_last=True),
    "resnet50-infer1-fp16": Row(partial(resnet50, 1), False, "float16", channels_last=True),
    "bert-infer1-fp16": Row(partial(bert, 12, 1, 128), False, "float16"),
}
"""The rows by the names that ``--rows`` takes."""
