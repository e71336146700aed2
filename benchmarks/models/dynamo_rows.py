"""What dynamo_cpu.py measures: small transformers and convolutional networks of transformers, with
random weights. To add one, write a line in `ROWS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

VOCABULARY, TOKENS, BATCH, PIXELS, CLASSES = 1000, 64, 4, 64, 10
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENIZER = {"bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Row:
    """A model and its inputs.

    Attributes
    ----------
    config, model: names of classes of transformers. options: of the configuration.
    inputs: "tokens", "translation" or "images".
    """

    config: str
    model: str
    options: dict[str, Any]
    inputs: str = "tokens"

    def make(self) -> nn.Module:
        """Return the model, with weights of a seed."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.options)
        module: nn.Module = getattr(transformers, self.model)(config)
        return module

    def batch(self) -> dict[str, torch.Tensor]:
        """Return the model's inputs, random but the same each time."""
        generator = torch.Generator().manual_seed(1)
        if self.inputs == "images":
            return {"pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS, generator=generator)}
        ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS), generator=generator)
        if self.inputs == "translation":
            return {"input_ids": ids, "decoder_input_ids": ids}
        return {"input_ids": ids}


_DECODER = {**SIZES, **TOKENIZER, "use_cache": False}
_IMAGES = {"num_labels": CLASSES}
ROWS = {
    "bert": Row("BertConfig", "BertModel", {**SIZES, **NO_DROPOUT}),
    "roberta": Row("RobertaConfig", "RobertaModel", {**SIZES, **NO_DROPOUT, **TOKENIZER}),
    "electra": Row("ElectraConfig", "ElectraModel", {**SIZES, **NO_DROPOUT, "embedding_size": 64}),
    "distilbert": Row(
        "DistilBertConfig",
        "DistilBertModel",
        {
            "vocab_size": VOCABULARY,
            "dim": 128,
            "n_layers": 4,
            "n_heads": 4,
            "hidden_dim": 512,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    "gpt2": Row(
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 128,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": 128,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            **TOKENIZER,
            "use_cache": False,
        },
    ),
    "llama": Row("LlamaConfig", "LlamaForCausalLM", {**_DECODER, "num_key_value_heads": 2}),
    "qwen2": Row("Qwen2Config", "Qwen2ForCausalLM", {**_DECODER, "num_key_value_heads": 2}),
    "t5": Row(
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 512,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
        "translation",
    ),
    "vit": Row(
        "ViTConfig",
        "ViTForImageClassification",
        {
            **{k: v for k, v in SIZES.items() if k[:5] in ("hidde", "num_h", "num_a", "inter")},
            **NO_DROPOUT,
            **_IMAGES,
            "image_size": PIXELS,
            "patch_size": 8,
        },
        "images",
    ),
    "resnet": Row(
        "ResNetConfig",
        "ResNetForImageClassification",
        {
            "embedding_size": 32,
            "hidden_sizes": [32, 64, 128, 256],
            "depths": [2, 2, 2, 2],
            "layer_type": "basic",
            **_IMAGES,
        },
        "images",
    ),
    "bottleneck": Row(
        "ResNetConfig",
        "ResNetForImageClassification",
        {
            "embedding_size": 32,
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 2, 2],
            **_IMAGES,
        },
        "images",
    ),
    "mobilenet": Row(
        "MobileNetV2Config",
        "MobileNetV2ForImageClassification",
        {"depth_multiplier": 0.5, "classifier_dropout_prob": 0.0, **_IMAGES},
        "images",
    ),
    "convnext": Row(
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {"hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 2, 2], **_IMAGES},
        "images",
    ),
    "regnet": Row(
        "RegNetConfig",
        "RegNetForImageClassification",
        {
            "embedding_size": 32,
            "hidden_sizes": [32, 64, 128, 256],
            "depths": [1, 2, 2, 1],
            "groups_width": 16,
            **_IMAGES,
        },
        "images",
    ),
}


def call_of(
    row: Row, mode: str, compiled: Callable[[nn.Module], Callable[..., Any]]
) -> Callable[[], list[torch.Tensor]]:
    """Return what runs a model once: results of inference, or the loss and gradients of training.

    mode: "infer" or "train". compiled: what makes the model that is called.
    """
    model = row.make().train(mode == "train")
    inputs, run = row.batch(), compiled(model)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def infer() -> list[torch.Tensor]:
        with torch.no_grad():
            return [run(**inputs)[0]]

    def train() -> list[torch.Tensor]:
        for p in parameters:
            p.grad = None
        loss = run(**inputs)[0].square().mean()
        loss.backward()
        unused = torch.zeros(())  # of which compiled models have a gradient of 0
        return [loss.detach(), *(unused if p.grad is None else p.grad for p in parameters)]

    return train if mode == "train" else infer
