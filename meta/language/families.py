"""Families of decoders, as transformers writes them: their ``config.json`` as our configuration,
and where their tensors go.

A family says what differs from Llama's. Names are those of modules: each has a ``weight`` and maybe
a ``bias``. Where ours is several of theirs, these stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.language.config import DecoderConfig, Experts
from meta.model.zoo.rotary import rope_of

Values = Mapping[str, Any]
"""A ``config.json``."""
Names = Mapping[str, str | tuple[str, ...]]
"""Modules of theirs by ours; ``{i}`` is the number of a layer."""
Change = Callable[[torch.Tensor, DecoderConfig], torch.Tensor]


def _same(tensor: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    return tensor


def transposed(tensor: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """Return a matrix (in, out) as (out, in)."""
    return tensor.T.contiguous() if tensor.ndim == 2 else tensor


def _by_head(tensor: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """Return query, key and value one after the other, which were so in each head."""
    parts = tensor.view(config.heads, 3, config.head_width, *tensor.shape[1:])
    return parts.transpose(0, 1).reshape(tensor.shape)


def from_zero(tensor: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """Return weights that were stored as what they are more than 1, in float32: half precision has
    more digits beside 0.
    """
    return tensor.float() + 1.0


_LLAMA: Names = {
    "embed_tokens": "model.embed_tokens",
    "norm": "model.norm",
    "lm_head": "lm_head",
    "layers.{i}.before_attention": "model.layers.{i}.input_layernorm",
    "layers.{i}.before_mlp": "model.layers.{i}.post_attention_layernorm",
    "layers.{i}.attention.qkv_proj": (
        "model.layers.{i}.self_attn.q_proj",
        "model.layers.{i}.self_attn.k_proj",
        "model.layers.{i}.self_attn.v_proj",
    ),
    "layers.{i}.attention.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.{i}.attention.k_norm": "model.layers.{i}.self_attn.k_norm",
    "layers.{i}.attention.o_proj": "model.layers.{i}.self_attn.o_proj",
    "layers.{i}.mlp.up_proj": ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj"),
    "layers.{i}.mlp.down_proj": "model.layers.{i}.mlp.down_proj",
}
_AFTER: Names = {
    **_LLAMA,
    "layers.{i}.after_attention": "model.layers.{i}.post_attention_layernorm",
    "layers.{i}.after_mlp": "model.layers.{i}.post_feedforward_layernorm",
}
_PHI3: Names = {
    **_LLAMA,
    "layers.{i}.attention.qkv_proj": "model.layers.{i}.self_attn.qkv_proj",
    "layers.{i}.mlp.up_proj": "model.layers.{i}.mlp.gate_up_proj",
}
_QWEN_EXPERTS: Names = {
    **_LLAMA,
    "layers.{i}.mlp.router": "model.layers.{i}.mlp.gate",
    "layers.{i}.mlp.up": (
        "model.layers.{i}.mlp.experts.{e}.gate_proj",
        "model.layers.{i}.mlp.experts.{e}.up_proj",
    ),
    "layers.{i}.mlp.down": "model.layers.{i}.mlp.experts.{e}.down_proj",
    "layers.{i}.mlp.shared_gate": "model.layers.{i}.mlp.shared_expert_gate",
    "layers.{i}.mlp.shared.up_proj": (
        "model.layers.{i}.mlp.shared_expert.gate_proj",
        "model.layers.{i}.mlp.shared_expert.up_proj",
    ),
    "layers.{i}.mlp.shared.down_proj": "model.layers.{i}.mlp.shared_expert.down_proj",
}
_MIXTRAL: Names = {
    **_LLAMA,
    "layers.{i}.mlp.router": "model.layers.{i}.block_sparse_moe.gate",
    "layers.{i}.mlp.up": (
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3",
    ),
    "layers.{i}.mlp.down": "model.layers.{i}.block_sparse_moe.experts.{e}.w2",
}
_GPT2: Names = {
    "embed_tokens": "transformer.wte",
    "embed_positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "lm_head": "lm_head",
    "layers.{i}.before_attention": "transformer.h.{i}.ln_1",
    "layers.{i}.before_mlp": "transformer.h.{i}.ln_2",
    "layers.{i}.attention.qkv_proj": "transformer.h.{i}.attn.c_attn",
    "layers.{i}.attention.o_proj": "transformer.h.{i}.attn.c_proj",
    "layers.{i}.mlp.up_proj": "transformer.h.{i}.mlp.c_fc",
    "layers.{i}.mlp.down_proj": "transformer.h.{i}.mlp.c_proj",
}
_NEOX: Names = {
    "embed_tokens": "gpt_neox.embed_in",
    "norm": "gpt_neox.final_layer_norm",
    "lm_head": "embed_out",
    "layers.{i}.before_attention": "gpt_neox.layers.{i}.input_layernorm",
    "layers.{i}.before_mlp": "gpt_neox.layers.{i}.post_attention_layernorm",
    "layers.{i}.attention.qkv_proj": "gpt_neox.layers.{i}.attention.query_key_value",
    "layers.{i}.attention.o_proj": "gpt_neox.layers.{i}.attention.dense",
    "layers.{i}.mlp.up_proj": "gpt_neox.layers.{i}.mlp.dense_h_to_4h",
    "layers.{i}.mlp.down_proj": "gpt_neox.layers.{i}.mlp.dense_4h_to_h",
}


def _windows(v: Values, sliding: bool) -> tuple[int | None, ...]:
    """Return the window of each layer: of those of the type "sliding_attention" where the file says
    types, else of all, where attention is sliding.
    """
    layers: int = v["num_hidden_layers"]
    window: int | None = v.get("sliding_window")
    types = v.get("layer_types")
    if types is None:
        return ((window or None) if sliding else None,) * layers
    known = ("full_attention", "sliding_attention")
    if not set(types) <= set(known) or len(types) != layers:
        raise ArgumentError(
            "this decoder has layers of another type", expected=" or ".join(known), found=types
        )
    return tuple(window if kind == known[1] else None for kind in types)


def _ends(v: Values) -> tuple[int, ...]:
    end = v.get("eos_token_id")
    return () if end is None else tuple(end) if isinstance(end, list | tuple) else (end,)


def _llama(v: Values, **differs: Any) -> DecoderConfig:
    """Return the configuration of a decoder of Llama's kind, but for what differs."""
    layers, heads = v["num_hidden_layers"], v["num_attention_heads"]
    width = v.get("head_dim") or v["hidden_size"] // heads
    rope = rope_of(v)
    biases = ("qkv", "output") if v.get("attention_bias") else ()
    how = {
        "vocab_size": v["vocab_size"],
        "hidden_size": v["hidden_size"],
        "inner": v["intermediate_size"],
        "heads": heads,
        "key_value_heads": v.get("num_key_value_heads") or heads,
        "head_width": width,
        "windows": (None,) * layers,
        "rotary": (rope,) * layers,
        "rotary_width": int(width * rope.get("partial_rotary_factor", 1.0)),
        "experts": (None,) * layers,
        "scale": width**-0.5,
        "eps": v.get("rms_norm_eps", 1e-6),
        "max_positions": v.get("max_position_embeddings", 2048),
        "biases": biases + (("mlp",) if v.get("mlp_bias") else ()),
        "activation": v.get("hidden_act", "silu"),
        "tied": bool(v.get("tie_word_embeddings", False)),
        "end_tokens": _ends(v),
    }
    return DecoderConfig(**{**how, **differs})


def _qwen2(v: Values, **differs: Any) -> DecoderConfig:
    windows = _windows(v, bool(v.get("use_sliding_window")))
    if v.get("layer_types") is None:  # those from max_window_layers on
        first = v.get("max_window_layers", 0)
        windows = tuple(w if i >= first else None for i, w in enumerate(windows))
    biases = ("qkv",) if v.get("qkv_bias", True) else ()
    return _llama(v, **{"windows": windows, "biases": biases, **differs})


def _qwen3(v: Values, **differs: Any) -> DecoderConfig:
    biases = ("qkv", "output") if v.get("attention_bias") else ()
    return _qwen2(v, **{"query_key_norm": "head", "biases": biases, **differs})


def _qwen_experts(v: Values) -> tuple[Experts | None, ...]:
    """Return the experts of each layer; some have a feed-forward layer instead."""
    one = Experts(
        v.get("num_experts") or v["num_local_experts"],
        v["num_experts_per_tok"],
        v["moe_intermediate_size"],
        bool(v.get("norm_topk_prob", False)),
        v.get("shared_expert_intermediate_size", 0),
    )
    plain, step = v.get("mlp_only_layers") or (), v.get("decoder_sparse_step", 1)
    return tuple(
        one if i not in plain and (i + 1) % step == 0 else None
        for i in range(v["num_hidden_layers"])
    )


def _gemma(v: Values, **differs: Any) -> DecoderConfig:
    if v.get("use_bidirectional_attention"):
        raise ArgumentError("this is no decoder", found="use_bidirectional_attention=True")
    differs = {
        "norms": ("before", "after"),
        "scale": v.get("query_pre_attn_scalar", 256) ** -0.5,
        "score_cap": v.get("attn_logit_softcapping"),
        "logit_cap": v.get("final_logit_softcapping"),
        "activation": v.get("hidden_activation") or "gelu_pytorch_tanh",
        "embedding_scale": math.sqrt(v["hidden_size"]),
        "tied": bool(v.get("tie_word_embeddings", True)),
        **differs,
    }
    return _llama(v, **differs)


def _every(v: Values, period: int) -> tuple[int | None, ...]:
    """Return windows of all layers but each ``period``-th, where the file does not say types."""
    windows = _windows(v, True)
    if v.get("layer_types") is not None:
        return windows
    return tuple(None if (i + 1) % period == 0 else w for i, w in enumerate(windows))


def _gemma2(v: Values) -> DecoderConfig:
    return _gemma(v, windows=_every(v, 2))


def _gemma3(v: Values) -> DecoderConfig:
    windows = _every(v, v.get("sliding_window_pattern") or v.get("_sliding_window_pattern") or 6)
    found = v.get("rope_parameters")
    if found is None:  # of transformers 4
        local = {"rope_type": "default", "rope_theta": v.get("rope_local_base_freq", 1e4)}
        found = {"full_attention": rope_of(v, 1e6), "sliding_attention": local}
    of = [found["full_attention" if w is None else "sliding_attention"] for w in windows]
    rotary = tuple(rope_of({**v, "rope_parameters": one}) for one in of)
    plain = {**v, "rope_parameters": rotary[0]}
    return _gemma(plain, windows=windows, rotary=rotary, query_key_norm="head")


def _phi3(v: Values) -> DecoderConfig:
    rope = rope_of(v)
    rope.setdefault("partial_rotary_factor", v.get("partial_rotary_factor", 1.0))
    return _llama({**v, "rope_parameters": rope}, windows=_windows(v, True))


def _olmo2(v: Values) -> DecoderConfig:
    return _llama(v, norms=("after",), query_key_norm="all")


def _mixtral(v: Values) -> DecoderConfig:
    one = Experts(v["num_local_experts"], v["num_experts_per_tok"], v["intermediate_size"])
    experts = (one,) * v["num_hidden_layers"]
    return _llama(v, windows=_windows(v, True), experts=experts)


def _gpt2(v: Values) -> DecoderConfig:
    if v.get("scale_attn_by_inverse_layer_idx") or v.get("add_cross_attention"):
        raise ArgumentError(
            "this GPT-2 is built another way",
            expected="scale_attn_by_inverse_layer_idx and add_cross_attention off",
        )
    layers, width = v["n_layer"], v["n_embd"]
    llama = {
        **v,
        "num_hidden_layers": layers,
        "num_attention_heads": v["n_head"],
        "num_key_value_heads": None,
        "hidden_size": width,
        "intermediate_size": v.get("n_inner") or 4 * width,
        "max_position_embeddings": v["n_positions"],
        "hidden_act": v.get("activation_function", "gelu_new"),
        "tie_word_embeddings": v.get("tie_word_embeddings", True),
    }
    scaled = v.get("scale_attn_weights", True)
    return _llama(
        llama,
        rotary=(None,) * layers,
        positions=v["n_positions"],
        norm="layer",
        eps=v.get("layer_norm_epsilon", 1e-5),
        biases=("qkv", "output", "mlp"),
        gated=False,
        scale=(width // v["n_head"]) ** -0.5 if scaled else 1.0,
    )


def _neox(v: Values) -> DecoderConfig:
    rope = rope_of({"rope_theta": v.get("rotary_emb_base", 1e4), **v})
    rope.setdefault("partial_rotary_factor", v.get("rotary_pct", 0.25))
    biases = ("qkv", "output") if v.get("attention_bias", True) else ()
    return _llama(
        {**v, "rope_parameters": rope, "num_key_value_heads": None},
        norm="layer",
        eps=v.get("layer_norm_eps", 1e-5),
        parallel=bool(v.get("use_parallel_residual", True)),
        biases=(*biases, "mlp"),
        activation=v.get("hidden_act", "gelu"),
        gated=False,
    )


@dataclass(frozen=True)
class Family:
    """How a family's configuration and tensors become ours.

    changes: what is done to a tensor, by the end of our module's name. ignored: ends of names that
    carry nothing here.
    """

    config: Callable[[Values], DecoderConfig]
    names: Names
    changes: Mapping[str, Change] = field(default_factory=dict)
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)

    def change_of(self, module: str) -> Change:
        """Return what is done to the tensors of a module of ours."""
        return next((c for end, c in self.changes.items() if module.endswith(end)), _same)


_NORMS = (
    "norm", "before_attention", "after_attention", "before_mlp", "after_mlp",
)  # fmt: skip
_GEMMA_NORMS: Mapping[str, Change] = dict.fromkeys(_NORMS, from_zero)
_GEMMA_NAMES: Names = {
    **_AFTER,
    "layers.{i}.before_mlp": "model.layers.{i}.pre_feedforward_layernorm",
}
_CONV1D: Mapping[str, Change] = dict.fromkeys(("_proj",), transposed)
_MASKS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
_NEOX_IGNORED = (*_MASKS, "rotary_emb.inv_freq")

FAMILIES: Mapping[str, Family] = {
    "gemma2": Family(_gemma2, _GEMMA_NAMES, _GEMMA_NORMS),
    "gemma3_text": Family(_gemma3, _GEMMA_NAMES, _GEMMA_NORMS),
    "gpt2": Family(_gpt2, _GPT2, _CONV1D, _MASKS),
    "gpt_neox": Family(_neox, _NEOX, {"qkv_proj": _by_head}, _NEOX_IGNORED),
    "llama": Family(_llama, _LLAMA),
    "mistral": Family(lambda v: _llama(v, windows=_windows(v, True)), _LLAMA),
    "mixtral": Family(_mixtral, _MIXTRAL),
    "olmo2": Family(_olmo2, _AFTER),
    "phi3": Family(_phi3, _PHI3),
    "qwen2": Family(_qwen2, _LLAMA),
    "qwen2_moe": Family(lambda v: _qwen2(v, experts=_qwen_experts(v)), _QWEN_EXPERTS),
    "qwen3": Family(_qwen3, _LLAMA),
    "qwen3_moe": Family(lambda v: _qwen3(v, experts=_qwen_experts(v)), _QWEN_EXPERTS),
}
"""Families by transformers' ``model_type``."""


def family_of(values: Values) -> Family:
    """Return the family of a ``config.json``; ArgumentError for one that is not known."""
    kind = values.get("model_type")
    if kind not in FAMILIES:
        raise ArgumentError(
            f"there is no decoder of model_type {kind!r}",
            expected=", ".join(FAMILIES),
            hint=nearest(str(kind), FAMILIES),
        )
    return FAMILIES[str(kind)]
