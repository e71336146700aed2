"""Tiny models of transformers, written as folders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from meta import language
from tests.language.tokenizers_of_bytes import byte_tokenizer

WINDOW = 24
COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GEMMA = {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 20}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama3": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3Text", {**GEMMA, "sliding_window_pattern": 2}),
    "phi3": ("Phi3", {"sliding_window": WINDOW}),
    "phi3-partial": ("Phi3", {"partial_rotary_factor": 0.5, "sliding_window": None}),
    "gpt2": (
        "GPT2",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    ),
    "gpt-neox": ("GPTNeoX", {"rotary_pct": 0.5}),
    "gpt-neox-serial": ("GPTNeoX", {"use_parallel_residual": False}),
    "olmo2": ("Olmo2", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "Qwen2Moe",
        {**EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [0]},
    ),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
}
"""Transformers' classes, and what differs from `COMMON`."""


def written(folder: Path, name: str, kind: str = "", **differs: Any) -> Any:
    """Write a model with random weights to a folder and return it. kind: of the class, with which
    ``name`` need not be one of `FAMILIES`.
    """
    family, own = FAMILIES.get(name, (kind, {}))
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **own, **differs})
    heads = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
    model = getattr(transformers, heads.get(family, f"{family}ForCausalLM"))(config).eval()
    with torch.no_grad():  # norms and biases that are no 1 and 0
        for tensor in model.parameters():
            if tensor.ndim == 1:
                tensor += 0.2 * torch.randn(tensor.shape)
    model.set_attn_implementation("eager")
    model.save_pretrained(folder)
    return model


def of_bytes(folder: Path, name: str, **differs: Any) -> Path:
    """Write a model whose tokens are the 256 bytes, with its tokenizer; return the folder."""
    written(folder, name, **{"vocab_size": 256, **differs})
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def resembling(decoder: language.Decoder) -> language.Decoder:
    """Return a model that often, not always, chooses what the other does."""
    found, rng = copy.deepcopy(decoder), np.random.default_rng(0)
    state = {n: a.numpy() for n, a in decoder.state_dict().items()}
    found.load_state_dict(
        {n: a + 0.02 * rng.normal(size=a.shape).astype("float32") for n, a in state.items()}
    )
    return found


def prompts(*lengths: int) -> list[list[int]]:
    """Return prompts of random tokens."""
    torch.manual_seed(sum(lengths))
    return [torch.randint(3, COMMON["vocab_size"], (n,)).tolist() for n in lengths]


def reference(model: Any, prompt: list[int], tokens: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return what transformers finds most probable at each token, computed without a cache, and the
    logarithms of the probabilities of the tokens.
    """
    with torch.no_grad():
        scores = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    of = torch.tensor(tokens)[:, None]
    return scores.argmax(-1).tolist(), scores.double().log_softmax(-1).gather(1, of)[:, 0]
