"""Weights that are rounded as a folder is read: against transformers' models with weights rounded
by NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import language
from meta.base.errors import ArgumentError, TypeInferError
from meta.language import Quantization
from tests.language.folders import prompts, reference, written

WIDE = {"intermediate_size": 64}
ROUNDED = ("_proj", "c_attn", "c_proj", "c_fc", "query_key_value", "dense", "_h", "_4h")


def rounded(w: np.ndarray, how: Quantization) -> np.ndarray:
    """Return what the definition of `quantize_weight` makes of a matrix."""
    groups = w.reshape(len(w), -1, how.group or w.shape[1]).astype(np.float32)
    most = {"int8": 127, "int4": 7}[how.kind]
    if how.symmetric:
        scale = np.abs(groups).max(2, keepdims=True) / np.float32(most)
        scale = np.where(scale == 0, 1, scale)  # of a token that only pads
        return (np.rint(groups / scale) * scale).reshape(w.shape)
    low, high = (f(groups, 2, keepdims=True) for f in (np.min, np.max))
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    least, most = {"int8": (-128, 127), "int4": (0, 15)}[how.kind]
    scale = (high - low) / np.float32(most - least)
    zero = np.rint(least - low / scale)
    number = np.clip(np.rint(groups / scale + zero), least, most)
    return ((number - zero) * scale).reshape(w.shape)


def round_weights(model: Any, how: Quantization) -> None:
    """Round the weights of a model of transformers, of which GPT-2's lie the other way."""
    for name, module in model.named_modules():
        head = how.head and name == "lm_head"
        if not (head or name.endswith(ROUNDED)):
            continue
        across = type(module).__name__ == "Conv1D"
        w = module.weight.detach().numpy()
        found = torch.from_numpy(rounded(w.T if across else w, how))
        module.weight = torch.nn.Parameter(found.T.clone() if across else found)


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("llama2", Quantization("int8")),
        ("llama3", Quantization("int4", 32, head=True)),
        ("qwen2", Quantization("int4", 32, symmetric=False)),
        ("gemma2", Quantization("int8", 16, symmetric=False)),
        ("gpt2", Quantization("int4", 16)),
        ("gpt-neox", Quantization("int8", 32, head=True)),
    ],
)
def test_a_rounded_decoder_is_transformers_with_rounded_weights(
    tmp_path: Path, family: str, how: Quantization
) -> None:
    model = written(tmp_path, family, **({} if family == "gpt2" else WIDE))
    round_weights(model, how)
    decoder = language.load(tmp_path, quantize=how)
    (prompt,) = prompts(20)
    found = language.generate(decoder, prompt, max_new_tokens=12, end_tokens=(), temperature=1.0)
    _, logprobs = reference(model, prompt, found.tokens.tolist())
    assert (logprobs - torch.from_numpy(found.logprobs)).abs().max() < 2e-4
    inner = decoder.layers[1].mlp.down_proj
    assert inner.weight.dtype == {"int8": "int8", "int4": "uint8"}[how.kind]
    assert isinstance(decoder.lm_head, meta.model.QuantizedLinear) == how.head


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["int8", "int4", "float8"])
@pytest.mark.long
def test_kinds_by_name(tmp_path: Path, kind: str, dtype: str) -> None:
    written(tmp_path, "qwen3", hidden_size=64, intermediate_size=128)
    decoder = language.load(tmp_path, quantize=kind, dtype=dtype)
    one = decoder.layers[0].mlp.up_proj
    assert one.weight.dtype == {"int8": "int8", "int4": "uint8", "float8": "float8_e4m3fn"}[kind]
    assert decoder.embed_tokens.weight.dtype == dtype
    (prompt,), how = prompts(12), {"max_new_tokens": 6, "end_tokens": ()}
    found, wide = (
        language.generate(one, prompt, **how)
        for one in (decoder, language.load(tmp_path, quantize=kind))
    )
    most = 0.2 if dtype == "bfloat16" else 1e-4
    assert abs(found.logprobs[0] - wide.logprobs[0]) < most


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    written(tmp_path, "llama2", **WIDE)
    decoder = language.load(tmp_path, quantize=Quantization("int4", 32, symmetric=False))
    meta.model.save_weights(decoder, tmp_path / "rounded.safetensors")
    other = language.load(tmp_path)
    meta.model.quantize(
        other, "int4", group=32, symmetric=False, where=lambda path, _: path != "lm_head"
    )
    with meta.no_grad():
        for array in other.state().values():
            array[...] = 0
    meta.model.load_weights(other, tmp_path / "rounded.safetensors")
    for name, array in decoder.state().items():
        assert (other.state()[name].numpy() == array.numpy()).all(), name


def test_what_is_not_rounded(tmp_path: Path) -> None:
    written(tmp_path / "a", "llama2", intermediate_size=48)
    with pytest.raises(ArgumentError, match="no such quantised weights"):
        language.load(tmp_path / "a", quantize="int5")
    with pytest.raises(TypeInferError, match="groups do not divide") as caught:
        language.load(tmp_path / "a", quantize=Quantization("int4", 32))
    assert "layers.0.mlp.down_proj" in str(caught.value)
    written(tmp_path / "b", "mixtral")
    with pytest.raises(ArgumentError, match="experts have no products"):
        language.load(tmp_path / "b", quantize="int8")
