"""GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): a decoder
that normalises first. Arrays have transformers' names and layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from meta import op, random
from meta.model import init
from meta.model.init import parameter
from meta.model.layers.basic import Dropout, Embedding, Linear
from meta.model.layers.norm import LayerNorm
from meta.model.model import Model
from meta.model.trace import trace
from meta.model.zoo.transformer import (
    Config,
    activation,
    attend,
    bool_mask,
    embed_positions,
    initialize,
    merge_heads,
    require_divides,
    split_heads,
)

__all__ = ["GPT2Config", "GPT2LMHeadModel", "GPT2Model"]


@dataclass(frozen=True)
class GPT2Config(Config):
    """The sizes of a GPT-2; those of the smallest one unless given.

    Raises ArgumentError for heads that do not divide ``n_embd``, and for an unknown activation.

    >>> config = meta.model.zoo.GPT2Config(n_layer=2, n_embd=128, n_head=4)
    >>> config.n_layer, config.n_positions, config.vocab_size
    (2, 1024, 50257)
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    fixed: ClassVar = {"model_type": "gpt2", "add_cross_attention": False}

    def __post_init__(self) -> None:
        require_divides(self.n_head, self.n_embd, "n_head", "n_embd")
        activation(self.activation_function)


class Conv1D(Model):
    """y = x w + b on the last axis: a linear layer whose ``weight`` is (in, out)."""

    feature_axes: ClassVar = {"weight": (1, 0), "bias": (0, None)}

    def build(self, out_features: int, in_features: int) -> None:
        """Make weight, normal of deviation 0.02, and bias = 0."""
        self.weight = init.drawn(random.normal, (in_features, out_features), mean=0.0, std=0.02)
        self.bias = parameter(op.zeros((out_features,)))

    @trace
    def forward(self, x: Any) -> Any:
        """Apply it to (..., in_features)."""
        y = op.matmul(op.reshape(x, (-1, x.shape[-1])), self.weight)
        return op.add(op.reshape(y, (*x.shape[:-1], self.weight.shape[1])), self.bias)


class GPT2Attention(Model):
    """Attention of each token to itself and those before it."""

    not_kept = ("bias", "masked_bias")  # the causal mask, in older files

    def build(self, config: GPT2Config, layer_idx: int) -> None:
        """Make the projections; the first one is of query, key and value side by side."""
        self.heads, width = config.n_head, config.n_embd
        self.scale = (width // self.heads) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer_idx + 1
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)
        self.dropout_p, self.resid_dropout = config.attn_pdrop, Dropout(config.resid_pdrop)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return heads for each rank; query, key and value are joined in one layer."""
        require_divides(ranks, self.heads, "ranks", "n_head")
        return {"c_attn": ("column", 3), "c_proj": "row"}

    @trace
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Apply it to [n, steps, width]."""
        parts = op.split(self.c_attn(x), 3, -1)
        q, k, v = (split_heads(part, self.heads) for part in parts)
        dropped = self.dropout_p if self.training else 0.0
        y = attend(q, k, v, mask, causal=True, scale=self.scale, dropout_p=dropped)
        return self.resid_dropout(self.c_proj(merge_heads(y)))


class GPT2MLP(Model):
    """Two projections with an activation between."""

    def build(self, config: GPT2Config) -> None:
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc, self.c_proj = Conv1D(inner, config.n_embd), Conv1D(config.n_embd, inner)
        self.activation_function = config.activation_function
        self.dropout = Dropout(config.resid_pdrop)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return features between the projections for each rank."""
        return {"c_fc": "column", "c_proj": "row"}

    @trace
    def forward(self, x: Any) -> Any:
        """Apply it to [n, steps, width]."""
        return self.dropout(self.c_proj(activation(self.activation_function)(self.c_fc(x))))


class GPT2Block(Model):
    """One layer of the decoder."""

    def build(self, config: GPT2Config, layer_idx: int) -> None:
        width, eps = config.n_embd, config.layer_norm_epsilon
        self.ln_1, self.attn = LayerNorm(width, eps), GPT2Attention(config, layer_idx)
        self.ln_2, self.mlp = LayerNorm(width, eps), GPT2MLP(config)

    @trace
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Apply it to [n, steps, width]."""
        x = op.add(self.attn(self.ln_1(x), mask), x)
        return op.add(x, self.mlp(self.ln_2(x)))


class GPT2Model(Model):
    """Embeddings, blocks and a last normalisation. Weights of a model with a head load, too.

    >>> sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8}
    >>> config = meta.model.zoo.GPT2Config(n_layer=1, n_head=2, **sizes)
    >>> meta.model.zoo.GPT2Model(config).eval()(meta.array([[5, 1, 4]])).shape
    (1, 3, 8)
    """

    renamed = ((r"^transformer\.", ""),)
    not_kept = ("lm_head.weight",)

    draws_late = True

    def build(self, config: GPT2Config) -> None:
        """Make the parts, with initial values as transformers gives them."""
        GPT2Config.require(config)
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.n_positions, config.n_embd)
        self.drop = Dropout(config.embd_pdrop)
        self.h = [GPT2Block(config, i) for i in range(config.n_layer)]
        self.ln_f = LayerNorm(config.n_embd, config.layer_norm_epsilon)
        std = config.initializer_range
        initialize(self, std, {"c_proj.weight": std / sqrt(2 * max(config.n_layer, 1))})

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return words for each rank."""
        return {"wte": "vocabulary"}

    @trace
    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
    ) -> Any:
        """Return the hidden states [n, steps, width].

        input_ids: integers [n, steps]. attention_mask: [n, steps], 0 for padding; see
        `bool_mask` for others. token_type_ids: [n, steps], rows of the word embeddings.
        position_ids: [n or 1, steps], 0, 1, ... unless given.
        """
        x = self.wte(input_ids)
        x = op.add(x, embed_positions(self.wpe, input_ids.shape[1], position_ids))
        if token_type_ids is not None:
            x = op.add(x, self.wte(token_type_ids))
        x, mask = self.drop(x), bool_mask(attention_mask)
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x)


class GPT2LMHeadModel(Model):
    """GPT-2 that predicts the next word. The loss is `causal_lm_loss`.

    >>> sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8}
    >>> config = meta.model.zoo.GPT2Config(n_layer=1, n_head=2, **sizes)
    >>> model = meta.model.zoo.GPT2LMHeadModel(config).eval()
    >>> model(meta.array([[5, 1, 4], [9, 9, 2]])).shape  # a logit for each word
    (2, 3, 20)
    """

    renamed = ((r"^(wte|wpe|h|ln_f)\.", r"transformer.\1."),)  # of the model without a head

    draws_late = True

    def build(self, config: GPT2Config) -> None:
        """Make decoder and head; the head's matrix is that of the word embeddings, if tied."""
        self.transformer = GPT2Model(config)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        initialize(self.lm_head, config.initializer_range)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.transformer.wte.weight

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return scores of words for each rank."""
        return {"lm_head": "vocabulary"}

    @trace
    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
    ) -> Any:
        """Return the scores [n, steps, vocabulary]; arguments as `GPT2Model` takes them."""
        return self.lm_head(
            self.transformer(input_ids, attention_mask, token_type_ids, position_ids)
        )
