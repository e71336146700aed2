"""Models of timm and transformers that nobody tuned `meta` for, in the sizes in which they are
used, for inference and for training: rows of dynamo_cuda.py.

Parameters are random, of a configuration: nothing is downloaded. Dropout and stochastic depth are
off, so that the contenders' losses can be compared. timm and transformers are imported where they
are asked for. To add a model, write its task as a function of ``tiny`` and name it in `_MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from models.cuda_rows import IGNORED, MASKED, ROWS, SEED
from models.task import Row, TorchTask, classes, successors

PIXELS, TINY_PIXELS = 224, 64
CLASSES = 1000
ORDINARY = 4
"""The first of the tokens that stand for no padding, mask or end of a text."""
TINY_TEXT = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2}


def image_model(
    what: str, name: str, small: dict[str, Any], tiny: bool, batch: int = 64
) -> TorchTask:
    """Return a model of timm that classifies random images. small: what makes it a tiny one."""
    batch, size = (2, TINY_PIXELS) if tiny else (batch, PIXELS)

    def theirs() -> nn.Module:
        import timm

        options = small if tiny else {}
        module: Any = timm.create_model(
            name, pretrained=False, num_classes=CLASSES, drop_path_rate=0.0, **options
        )
        nn.init.normal_(
            module.get_classifier().weight, std=0.02
        )  # zeros, in some: all of their scores were equal
        found: nn.Module = module
        return found

    def images() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(batch, 3, size, size, generator=generator)
        return x, torch.randint(CLASSES, (batch,), generator=generator)

    return TorchTask(f"{what}, B{batch}", theirs, classes, images)


def _of_transformers(model: str, config: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    def theirs() -> nn.Module:
        import transformers

        module: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
        return module

    return theirs


def _tokens(generator: torch.Generator, words: int, *shape: int) -> torch.Tensor:
    return torch.randint(ORDINARY, words, shape, generator=generator)


ROBERTA = {
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
"""RoBERTa-base."""
DEBERTA = {
    "vocab_size": 128100,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_buckets": 256,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
"""DeBERTa-v3-base, which is a DeBERTa-v2."""


def encoder(
    what: str, family: str, sizes: dict[str, Any], batch: int, steps: int, tiny: bool
) -> TorchTask:
    """Return a model of a family ("Roberta", "DebertaV2") that predicts masked words of texts."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if tiny:
        sizes = sizes | TINY_TEXT | {"num_attention_heads": 2, "intermediate_size": 128}
        batch, steps = 2, 16

    def texts() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        ids = _tokens(generator, sizes["vocab_size"], batch, steps)
        masked = torch.rand(ids.shape, generator=generator) < MASKED
        return {"input_ids": ids}, torch.where(masked, ids, IGNORED)

    model = _of_transformers(f"{family}ForMaskedLM", f"{family}Config", sizes | off)
    return TorchTask(f"{what}, B{batch} S{steps}", model, classes, texts)


SMOLLM = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
"""SmolLM-135M, which is a Llama."""
QWEN2 = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""Qwen2-0.5B."""
MISTRAL = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "sliding_window": 256,
}
GEMMA2 = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "query_pre_attn_scalar": 128,
}
"""Its attention has a soft cap, which transformers computes eagerly."""
GPT_NEOX = {
    "vocab_size": 50432,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}


def decoder(
    what: str, family: str, sizes: dict[str, Any], batch: int, steps: int, tiny: bool
) -> TorchTask:
    """Return a model of a family ("Llama", "Qwen2") that predicts the next token of texts."""
    if tiny:
        small = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
        small |= {"head_dim": 16, "sliding_window": 8}
        sizes = sizes | TINY_TEXT | {n: v for n, v in small.items() if n in sizes}
        batch, steps = 2, 16

    def texts() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        ids = _tokens(generator, sizes["vocab_size"], batch, steps)
        return {"input_ids": ids}, ids

    options = {**sizes, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
    model = _of_transformers(f"{family}ForCausalLM", f"{family}Config", options)
    return TorchTask(f"{what}, B{batch} S{steps}", model, successors, texts)


def t5(batch: int, steps: int, answer: int, tiny: bool) -> TorchTask:
    """Return T5-base, answering random texts by random texts."""
    sizes: dict[str, Any] = {"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072}
    sizes |= {"num_layers": 12, "num_heads": 12}
    if tiny:
        sizes = {"vocab_size": 512, "d_model": 64, "d_kv": 32, "d_ff": 128}
        sizes |= {"num_layers": 2, "num_heads": 2}
        batch, steps, answer = 2, 16, 8

    def texts() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        ids = _tokens(generator, sizes["vocab_size"], batch, steps)
        answers = _tokens(generator, sizes["vocab_size"], batch, answer)
        return {"input_ids": ids, "decoder_input_ids": answers}, answers

    off = {"dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0}
    model = _of_transformers("T5ForConditionalGeneration", "T5Config", sizes | off)
    return TorchTask(f"T5-base, B{batch} S{steps}+{answer}", model, successors, texts)


def whisper(batch: int, steps: int, tiny: bool) -> TorchTask:
    """Return Whisper-tiny, writing random texts of 30 seconds of noise."""
    frames = 3000
    sizes: dict[str, Any] = {"vocab_size": 51865, "num_mel_bins": 80, "d_model": 384}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": 4, f"{part}_attention_heads": 6, f"{part}_ffn_dim": 1536}
    if tiny:
        sizes |= {"vocab_size": 512, "d_model": 64, "max_source_positions": 32}
        for part in ("encoder", "decoder"):
            sizes |= {f"{part}_layers": 2, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 128}
        sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        batch, steps, frames = 2, 8, 64

    def speech() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        noise = torch.randn(batch, sizes["num_mel_bins"], frames, generator=generator)
        ids = _tokens(generator, sizes["vocab_size"], batch, steps)
        return {"input_features": noise, "decoder_input_ids": ids}, ids

    off = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    options = {**sizes, **off, "use_cache": False, "decoder_start_token_id": 1}
    model = _of_transformers("WhisperForConditionalGeneration", "WhisperConfig", options)
    return TorchTask(f"Whisper-tiny, B{batch} S{steps}", model, successors, speech)


_CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (16, 32, 64, 128)}
_VIT = {"img_size": TINY_PIXELS, "embed_dim": 64, "depth": 2, "num_heads": 2}
_SWIN = {"img_size": TINY_PIXELS, "window_size": 2, "embed_dim": 32}
_SWIN |= {"depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}
_MIXER = {"img_size": TINY_PIXELS}

_MODELS: dict[str, tuple[Callable[[bool], TorchTask], dict[str, Any]]] = {
    "convnext": (
        partial(image_model, "ConvNeXt-T", "convnext_tiny", _CONVNEXT),
        {"channels_last": True, "gigabytes": 8},
    ),
    "efficientnet": (
        partial(image_model, "EfficientNet-B0", "efficientnet_b0", {}),
        {"channels_last": True, "gigabytes": 7},
    ),
    "vit": (
        partial(image_model, "ViT-B/16", "vit_base_patch16_224", _VIT),
        {"gigabytes": 9},
    ),
    "swin": (
        partial(image_model, "Swin-T", "swin_tiny_patch4_window7_224", _SWIN),
        {"gigabytes": 10},
    ),
    "regnet": (
        partial(image_model, "RegNetY-1.6GF", "regnety_016", {}),
        {"channels_last": True, "gigabytes": 7},
    ),
    "mobilenetv3": (
        partial(image_model, "MobileNetV3-L", "mobilenetv3_large_100", {}, batch=128),
        {"channels_last": True, "gigabytes": 9},
    ),
    "resnext": (
        partial(image_model, "ResNeXt-50", "resnext50_32x4d", {"layers": (1, 1, 1, 1)}),
        {"channels_last": True, "gigabytes": 9},
    ),
    "mixer": (
        partial(image_model, "MLP-Mixer-B/16", "mixer_b16_224", _MIXER),
        {"gigabytes": 9},
    ),
    "deit3": (
        partial(image_model, "DeiT3-S/16", "deit3_small_patch16_224", _VIT),
        {"gigabytes": 6},
    ),
    "roberta": (
        partial(encoder, "RoBERTa-base", "Roberta", ROBERTA, 16, 256),
        {"gigabytes": 9},
    ),
    "deberta": (
        partial(encoder, "DeBERTa-v3-base", "DebertaV2", DEBERTA, 16, 128),
        {"gigabytes": 12},
    ),
    "smollm": (partial(decoder, "SmolLM-135M", "Llama", SMOLLM, 8, 512), {"gigabytes": 11}),
    "qwen2": (partial(decoder, "Qwen2-0.5B", "Qwen2", QWEN2, 4, 256), {"gigabytes": 16}),
    "mistral": (
        partial(decoder, "Mistral, 12 layers", "Mistral", MISTRAL, 4, 1024),
        {"gigabytes": 11},
    ),
    "gemma2": (
        partial(decoder, "Gemma-2, 12 layers", "Gemma2", GEMMA2, 4, 512),
        {"gigabytes": 11},
    ),
    "gptneox": (
        partial(decoder, "GPT-NeoX, 12 layers", "GPTNeoX", GPT_NEOX, 8, 512),
        {"gigabytes": 13},
    ),
    "t5": (partial(t5, 8, 256, 128), {"gigabytes": 9}),
    "whisper": (partial(whisper, 8, 128), {"gigabytes": 5}),
}
"""Tasks, with what is particular of their rows; the memory is that of training."""
INFERENCE_GIGABYTES = 4

STRANGERS = {
    f"{name}-{'train' if training else 'infer'}-bf16": Row(
        task,
        training,
        "bfloat16",
        "adamw",
        1e-4,
        **(more if training else more | {"gigabytes": INFERENCE_GIGABYTES}),
    )
    for name, (task, more) in _MODELS.items()
    for training in (False, True)
}
"""The rows by the names that ``--rows`` takes."""
EVERY_ROW = {**ROWS, **STRANGERS}
"""Those of models_cuda.py, too."""
