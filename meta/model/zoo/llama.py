"""Llama (Touvron et al., arXiv:2302.13971, 2307.09288) and decoders built like it: RMS
normalisation first, rotary positions, grouped-query attention, a gated inner projection. Arrays
have transformers' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from meta import op
from meta.model.layers.basic import Embedding, Linear
from meta.model.layers.norm import RMSNorm
from meta.model.model import Model
from meta.model.trace import trace
from meta.model.zoo.rotary import check_rope, rope_of, rotary_tables
from meta.model.zoo.transformer import (
    Config,
    activation,
    attend,
    bool_mask,
    initialize,
    merge_heads,
    require_dict,
    require_divides,
    split_heads,
)

__all__ = ["LlamaConfig", "LlamaForCausalLM", "LlamaModel"]


@dataclass(frozen=True)
class LlamaConfig(Config):
    """The sizes of a Llama; those of Llama-7B unless given.

    num_key_value_heads: as many as heads unless given. head_dim: hidden_size / heads unless given.
    rope_parameters: ``rope_theta``, ``rope_type`` and its numbers, by transformers' names.

    Raises ArgumentError for numbers of heads that do not divide one another, and for an unknown
    activation or kind of rotary positions.

    >>> config = meta.model.zoo.LlamaConfig(num_attention_heads=32, num_key_value_heads=8)
    >>> config.key_value_heads, config.head_width
    (8, 128)
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}, hash=False
    )
    attention_bias: bool = False
    attention_dropout: float = 0.0
    mlp_bias: bool = False
    head_dim: int | None = None

    fixed: ClassVar = {"model_type": "llama"}

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        require_divides(self.key_value_heads, heads, "num_key_value_heads", "num_attention_heads")
        if self.head_dim is None:
            require_divides(heads, self.hidden_size, "num_attention_heads", "hidden_size")
        require_divides(2, self.head_width, "2", "the width of a head")
        activation(self.hidden_act)
        check_rope(self.rope_parameters)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LlamaConfig:
        """Return the configuration of a ``config.json``, of transformers 4 too, whose files have
        ``rope_theta`` and ``rope_scaling``.
        """
        require_dict(cls.__name__, values)
        values = {**values, "rope_parameters": rope_of(values)}
        return super().from_dict(values)

    @property
    def key_value_heads(self) -> int:
        """The heads of keys and values."""
        given = self.num_key_value_heads
        return self.num_attention_heads if given is None else given

    @property
    def head_width(self) -> int:
        """The features of a head."""
        given = self.head_dim
        return self.hidden_size // self.num_attention_heads if given is None else given


class LlamaAttention(Model):
    """Attention of each token to itself and those before it, several heads per key and value."""

    not_kept = ("rotary_emb.inv_freq",)  # what the configuration says, in older files

    def build(self, config: LlamaConfig) -> None:
        self.heads, self.groups = config.num_attention_heads, config.key_value_heads
        width, inner, bias = config.hidden_size, config.head_width, config.attention_bias
        self.q_proj = Linear(width, self.heads * inner, bias)
        self.k_proj = Linear(width, self.groups * inner, bias)
        self.v_proj = Linear(width, self.groups * inner, bias)
        self.o_proj = Linear(self.heads * inner, width, bias)
        self.dropout_p = config.attention_dropout

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return heads for each rank; those of keys and values are whole where ranks do not divide
        them, as where there are more ranks than these.
        """
        require_divides(ranks, self.heads, "ranks", "num_attention_heads")
        shared = "column" if self.groups % ranks == 0 else "whole"
        return {"q_proj": "column", "k_proj": shared, "v_proj": shared, "o_proj": "row"}

    @trace
    def forward(self, x: Any, cos: Any, sin: Any, mask: Any = None) -> Any:
        """Apply it to [n, steps, width]; cos and sin as `rotary_tables` returns them."""
        query = op.rotary_embedding(split_heads(self.q_proj(x), self.heads), cos, sin)
        key = op.rotary_embedding(split_heads(self.k_proj(x), self.groups), cos, sin)
        value = split_heads(self.v_proj(x), self.groups)
        dropped = self.dropout_p if self.training else 0.0
        y = attend(query, key, value, mask, causal=True, dropout_p=dropped)
        return self.o_proj(merge_heads(y))


class LlamaMLP(Model):
    """A gated inner projection (Shazeer, arXiv:2002.05202): down(act(gate(x)) * up(x))."""

    def build(self, config: LlamaConfig) -> None:
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj, self.up_proj = Linear(width, inner, bias), Linear(width, inner, bias)
        self.down_proj = Linear(inner, width, bias)
        self.hidden_act = config.hidden_act

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return features between the projections for each rank."""
        return {"gate_proj": "column", "up_proj": "column", "down_proj": "row"}

    @trace
    def forward(self, x: Any) -> Any:
        """Apply it to [n, steps, width]."""
        gate = activation(self.hidden_act)(self.gate_proj(x))
        return self.down_proj(op.multiply(gate, self.up_proj(x)))


class LlamaDecoderLayer(Model):
    """One layer of the decoder."""

    def build(self, config: LlamaConfig) -> None:
        self.self_attn, self.mlp = LlamaAttention(config), LlamaMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @trace
    def forward(self, x: Any, cos: Any, sin: Any, mask: Any = None) -> Any:
        """Apply it to [n, steps, width]."""
        x = op.add(x, self.self_attn(self.input_layernorm(x), cos, sin, mask))
        return op.add(x, self.mlp(self.post_attention_layernorm(x)))


class LlamaModel(Model):
    """Embeddings, layers and a last normalisation. Weights of a model with a head load, too.

    >>> sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    >>> config = meta.model.zoo.LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> meta.model.zoo.LlamaModel(config).eval()(meta.array([[5, 1, 4]])).shape
    (1, 3, 8)
    """

    renamed = ((r"^model\.", ""),)
    not_kept = ("lm_head.weight",)

    draws_late = True

    def build(self, config: LlamaConfig) -> None:
        """Make the parts, with initial values as transformers gives them."""
        LlamaConfig.require(config)
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = [LlamaDecoderLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        initialize(self, config.initializer_range)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return words for each rank."""
        return {"embed_tokens": "vocabulary"}

    @trace
    def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> Any:
        """Return the hidden states [n, steps, width].

        input_ids: integers [n, steps]. attention_mask: [n, steps], 0 for padding; see
        `bool_mask` for others. position_ids: [n or 1, steps], 0, 1, ... unless given.
        """
        rope, width = self.config.rope_parameters, self.config.head_width
        cos, sin = rotary_tables(rope, width, input_ids, input_ids.shape[1], position_ids)
        x, mask = self.embed_tokens(input_ids), bool_mask(attention_mask)
        if x.dtype == "float64":  # half precision takes tables of float32
            cos, sin = op.astype(cos, "float64"), op.astype(sin, "float64")
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


class LlamaForCausalLM(Model):
    """A Llama that predicts the next word. The loss is `causal_lm_loss`.

    >>> sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    >>> config = meta.model.zoo.LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> model = meta.model.zoo.LlamaForCausalLM(config).eval()
    >>> model(meta.array([[5, 1, 4], [9, 9, 2]])).shape  # a logit for each word
    (2, 3, 20)
    """

    renamed = ((r"^(embed_tokens|layers|norm)\.", r"model.\1."),)  # of the model without a head

    draws_late = True

    def build(self, config: LlamaConfig) -> None:
        """Make decoder and head; the head's matrix is that of the embeddings, if tied."""
        self.model = LlamaModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        initialize(self.lm_head, config.initializer_range)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return scores of words for each rank."""
        return {"lm_head": "vocabulary"}

    @trace
    def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> Any:
        """Return the scores [n, steps, vocabulary]; arguments as `LlamaModel` takes them."""
        return self.lm_head(self.model(input_ids, attention_mask, position_ids))
