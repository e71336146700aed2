"""GGUF files that the library gguf wrote, against transformers' models with the numbers that it
reads out of their blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import meta
from meta import language
from meta.base.errors import FormatError
from tests.language.folders import written
from tests.language.test_layouts import agrees

RNG = np.random.default_rng(0)
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}


def name_of(name: str) -> str:
    """Return GGUF's name of a tensor of transformers'."""
    module, _, kind = name.rpartition(".")
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if module in whole:
        return f"{whole[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def blocks_of(w: np.ndarray, kind: str) -> np.ndarray:
    """Return blocks for a matrix; of kinds that gguf only reads, blocks of random numbers."""
    type_ = gguf.GGMLQuantizationType[kind]
    if kind in ("Q8_0", "Q4_0"):
        return np.asarray(gguf.quantize(w, type_))
    size = {"Q4_K": 144, "Q6_K": 210}[kind]
    blocks = RNG.integers(0, 256, (len(w), w.shape[1] // 256, size), dtype=np.uint8)
    scale = RNG.uniform(1e-4, 3e-4, blocks.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    if kind == "Q4_K":
        blocks[..., 0:2], blocks[..., 2:4] = scale, scale
        blocks[0, :, 4], blocks[1, :, 4], blocks[1, :, 8] = (
            0,
            0,
            0,
        )  # groups of which nothing varies
    else:
        blocks[..., 192:208] = RNG.integers(0, 9, blocks[..., 192:208].shape)
        blocks[..., 208:] = scale
    return blocks.reshape(len(w), -1)


def turned(w: np.ndarray, heads: int) -> np.ndarray:
    """Return rows of Llama's queries or keys as llama.cpp has them: of each head, element i of the
    first half, then that of the second half.
    """
    rows = [h * 2 * half + s * half + i for half in (len(w) // heads // 2,)
            for h in range(heads) for i in range(half) for s in (0, 1)]  # fmt: skip
    return w[rows]


def write(path: Path, model: Any, kind: str, factors: list[float] | None = None) -> None:
    """Write a model of transformers, and give it what the blocks stand for."""
    config, arch = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(2)
    if factors:
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array, own = tensor.numpy(), heads.get(name.split("_proj")[0][-1:])
        swapped = arch == "llama" and "_proj" in name and own is not None
        data = turned(array, own) if swapped else array
        if array.ndim == 1:
            writer.add_tensor(name_of(name), data)
            continue
        blocks, type_ = blocks_of(data, kind), gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name_of(name), blocks, raw_dtype=type_)
        whole = gguf.dequantize(blocks, type_)
        if swapped:
            whole = whole[np.argsort(turned(np.arange(len(whole)), own))]
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.asarray(whole)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("family", "kind", "differs"),
    [
        ("llama2", "Q8_0", {}),
        ("llama2", "Q4_K", {"num_key_value_heads": 4}),
        ("llama-biases", "Q4_0", {"attention_bias": False, "mlp_bias": False}),
        ("qwen2", "Q6_K", {"tie_word_embeddings": True}),
        ("qwen3", "Q4_0", {}),
    ],
)
def test_a_file(tmp_path: Path, family: str, kind: str, differs: dict[str, Any]) -> None:
    model = written(tmp_path, family, **{**SIZES, **differs})
    file = tmp_path / "model.gguf"
    write(file, model, kind)
    decoder = language.load(file)
    one, theirs = decoder.layers[1].mlp.down_proj, model.model.layers[1].mlp.down_proj.weight
    assert one.weight.dtype == ("uint8" if kind[1] == "4" else "int8")
    found = meta.dequantize_weight(one.weight, one.scales, one.zeros).torch()
    assert (found - theirs).abs().max() < 1e-5 * theirs.abs().max()
    assert isinstance(decoder.lm_head, meta.model.QuantizedLinear)
    assert decoder.end_tokens == (2,)
    agrees(decoder, model)


def test_frequencies_of_a_tensor(tmp_path: Path) -> None:
    """As Llama 3.1's are: transformers computes the divisors out of four numbers."""
    model = written(tmp_path, "llama3", **SIZES)
    plain = 5e5 ** -(np.arange(16) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).tolist()
    write(tmp_path / "model.gguf", model, "Q8_0", factors)
    agrees(language.load(tmp_path / "model.gguf"), model)


def test_what_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUX" + bytes(64))
    with pytest.raises(FormatError, match="no GGUF file"):
        language.load(file)
    writer = gguf.GGUFWriter(file, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(FormatError, match="architecture 'mamba'"):
        language.load(file)
    model = written(tmp_path, "qwen2", **SIZES)
    write(file, model, "Q8_0")
    whole = file.read_bytes()
    for name, match in (("ffn_norm", "lacks a tensor"), ("attn_q", "in different ways")):
        file.write_bytes(
            whole.replace(b"blk.1.%s.w" % name.encode(), b"blk.1.%s.x" % name.encode())
        )
        with pytest.raises(FormatError, match=match):
            language.load(file)
