"""A decoder, by its configuration: tokens and their positions in, scores of the next token out.

Keys and values are written into a cache and read from there. Positions are numbers, not places in
the arguments: a row of a batch may begin where another one is far along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meta import op, random
from meta.base.errors import ArgumentError
from meta.language.config import DecoderConfig, Experts
from meta.model import init
from meta.model.layers.basic import Embedding, Linear
from meta.model.layers.norm import LayerNorm, RMSNorm
from meta.model.layers.quantized import QuantizedLinear
from meta.model.model import Model
from meta.model.trace import trace
from meta.model.zoo.rotary import rotary_tables
from meta.model.zoo.transformer import activation, merge_heads, require_divides, split_heads
from meta.op.core.function import device_of
from meta.op.quantized import BLOCK
from meta.runtime.placement import Placement


def _norm(config: DecoderConfig, width: int) -> Model:
    made: Model = (RMSNorm if config.norm == "rms" else LayerNorm)(width, config.eps)
    return made


def _norm_if(config: DecoderConfig, at: str) -> Model | None:
    return _norm(config, config.hidden_size) if at in config.norms else None


def _through(norm: Model | None, x: Any) -> Any:
    return x if norm is None else norm(x)


def capped(x: Any, cap: float | None) -> Any:
    """Return ``cap * tanh(x / cap)``, or x without a cap."""
    return x if cap is None else op.multiply(op.tanh(op.divide(x, cap)), cap)


class TokenPositions:
    """Where the tokens of a call are: positions in their texts, slots of the cache, and angles.

    start: int64 [n], the position of the first token of each row. read: int64 [n], how many of its
    tokens belong to the text; those behind are padding, which is not written and sees nothing.
    fresh: the cache was empty, so that tokens see only one another, in their order. block_table: of
    a cache of blocks (`meta.language.BlockPool`). every: each token is read as if it were the last.
    """

    def __init__(
        self,
        config: DecoderConfig,
        start: Any,
        read: Any,
        steps: int,
        fresh: bool,
        block_table: Any,
        every: bool,
    ) -> None:
        own = op.arange(0, steps, 1, "int64", device_of(start))
        self.positions = op.add(op.reshape(start, (-1, 1)), own)
        self.lengths = op.add(self.positions, 1) if every else op.add(start, read)
        self.fresh, self.block_table = fresh, block_table
        self.slots = op.where(op.less(own, op.reshape(read, (-1, 1))), self.positions, -1)
        self._tables: list[tuple[Any, tuple[Any, Any]]] = []
        self._width = config.rotary_width

    def rotated(self, x: Any, parameters: Any) -> Any:
        """Return heads [n, steps, heads, width], rotated by their positions."""
        if parameters is None:
            return x
        found = [tables for known, tables in self._tables if known == parameters]
        if not found:
            steps, lengths = self.positions.shape[1], self.lengths
            found = [rotary_tables(parameters, self._width, x, steps, self.positions, lengths)]
            self._tables.append((parameters, found[0]))
        cos, sin = (op.astype(t, x.dtype) if x.dtype == "float64" else t for t in found[0])
        if self._width == x.shape[-1]:
            return op.rotary_embedding(x, cos, sin)
        turned, rest = op.split(x, (self._width,), -1)
        return op.concat((op.rotary_embedding(turned, cos, sin), rest), -1)


def row_style(layer: Model, ranks: int) -> str:
    """Return that each rank has columns of a layer; ArgumentError for packed ones in halves."""
    if isinstance(layer, QuantizedLinear) and layer.weight.dtype == "uint8":
        columns = layer.in_features
        if columns % (BLOCK * ranks):
            raise ArgumentError(
                f"a weight of 4 bits is not divided by {ranks} ranks",
                expected=f"a multiple of {BLOCK * ranks} columns",
                found=columns,
                hint='quantize="int8"',
            )
    return "row"


class Attention(Model):
    """Attention of tokens to those before them, by a cache of keys and values."""

    def build(self, config: DecoderConfig, layer: int) -> None:
        """Make the projections; those of query, key and value are one."""
        self.config, self.window = config, config.windows[layer]
        self.rotary = config.rotary[layer]
        self.queries, self.groups = config.heads, config.key_value_heads
        width, inner = config.hidden_size, config.head_width
        rows = (self.queries + 2 * self.groups) * inner
        self.qkv_proj = Linear(width, rows, "qkv" in config.biases)
        self.o_proj = Linear(self.queries * inner, width, "output" in config.biases)
        per_head = config.query_key_norm == "head"
        self.q_norm = self.k_norm = None
        if config.query_key_norm is not None:
            self.q_norm = _norm(config, inner if per_head else self.queries * inner)
            self.k_norm = _norm(config, inner if per_head else self.groups * inner)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return heads for each rank, those of keys with the queries that they serve."""
        require_divides(ranks, self.groups, "ranks", "key_value_heads")
        joined = self.queries // self.groups, 1, 1
        return {"qkv_proj": ("column", joined), "o_proj": row_style(self.o_proj, ranks)}

    def _heads(self, x: Any, norm: Model | None, heads: int) -> Any:
        if norm is None:
            return split_heads(x, heads)
        if self.config.query_key_norm == "head":
            return norm(split_heads(x, heads))
        return split_heads(norm(x), heads)

    def read(self, x: Any, at: TokenPositions, keys: Any, values: Any) -> Any:
        """Apply it to [n, steps, width], in traced code, and write keys and values to caches."""
        inner = self.config.head_width
        ends = self.queries * inner, (self.queries + self.groups) * inner
        query, key, value = op.split(self.qkv_proj(x), ends, -1)
        query = at.rotated(self._heads(query, self.q_norm, self.queries), self.rotary)
        key = at.rotated(self._heads(key, self.k_norm, self.groups), self.rotary)
        value = split_heads(value, self.groups)
        op.cache_update(keys, values, key, value, at.slots, at.block_table)
        scale, cap = self.config.scale, self.config.score_cap
        if at.fresh and cap is None:
            how: dict[str, Any] = {"scale": scale, "layout": "BSHD", "causal": True}
            if self.window is not None:
                how["window"] = self.window - 1, -1
            return self.o_proj(merge_heads(op.fused_attention(query, key, value, **how)[0]))
        found = op.cached_attention(
            query, keys, values, at.slots, at.block_table, None, scale, self.window, cap
        )
        return self.o_proj(merge_heads(found))


class FeedForward(Model):
    """``down(act(gate(x)) * up(x))`` (Shazeer, arXiv:2002.05202), or ``down(act(up(x)))``."""

    def build(self, config: DecoderConfig, inner: int) -> None:
        """Make the projections; those of gate and up are one."""
        self.config, width, bias = config, config.hidden_size, "mlp" in config.biases
        self.up_proj = Linear(width, (2 if config.gated else 1) * inner, bias)
        self.down_proj = Linear(inner, width, bias)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return features between the projections for each rank."""
        joined = 2 if self.config.gated else 1
        return {"up_proj": ("column", joined), "down_proj": row_style(self.down_proj, ranks)}

    @trace
    def forward(self, x: Any) -> Any:
        """Apply it to (..., width)."""
        return self.down_proj(activated(self.config, self.up_proj(x)))


def activated(config: DecoderConfig, x: Any) -> Any:
    """Return the activation of x, or of its first half, times the second, where that is a gate."""
    act = activation(config.activation)
    if not config.gated:
        return act(x)
    gate, up = op.split(x, 2, -1)
    return op.multiply(act(gate), up)


class Mixture(Model):
    """Experts, of which each token goes to a few: tokens are sorted by expert, whose products are
    one launch (`grouped_matmul`).
    """

    def build(self, config: DecoderConfig, experts: Experts) -> None:
        """Make router and experts; up is (count, width, 2 inner), down (count, inner, width)."""
        self.config, self.experts, width = config, experts, config.hidden_size
        self.router = Linear(width, experts.count, bias=False)
        factor = 2 if config.gated else 1
        up, down = (width, factor * experts.inner), (experts.inner, width)
        self.up = init.drawn(random.normal, (experts.count, *up), mean=0.0, std=0.02)
        self.down = init.drawn(random.normal, (experts.count, *down), mean=0.0, std=0.02)
        self.shared = self.shared_gate = None
        if experts.shared:
            self.shared = FeedForward(config, experts.shared)
            self.shared_gate = Linear(width, 1, bias=False)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply it to [n, steps, width]."""
        width, chosen = x.shape[-1], self.experts.chosen
        tokens = op.reshape(x, (-1, width))
        shares = op.softmax(op.astype(self.router(tokens), "float32"), -1)
        weights, numbers = op.topk(shares, chosen, -1)
        if self.experts.normalized:
            weights = op.divide(weights, op.sum(weights, -1, True))
        numbers = op.reshape(numbers, (-1,))
        order = op.argsort(numbers)
        ends = op.arange(0, self.experts.count, 1, "int64", device_of(x))
        ends = op.sum(op.less_equal(op.reshape(numbers, (-1, 1)), ends), 0)
        rows = op.take(tokens, op.floor_divide(order, chosen), 0)
        rows = op.grouped_matmul(rows, self.up, ends)
        rows = op.grouped_matmul(activated(self.config, rows), self.down, ends)
        rows = op.reshape(op.take(rows, op.argsort(order), 0), (-1, chosen, width))
        weights = op.reshape(op.astype(weights, x.dtype), (-1, chosen, 1))
        found = op.sum(op.multiply(rows, weights), 1)
        if self.shared is not None and self.shared_gate is not None:
            gate = op.sigmoid(self.shared_gate(tokens))
            found = op.add(found, op.multiply(gate, self.shared(tokens)))
        return op.reshape(found, x.shape)


class Layer(Model):
    """Attention and a feed-forward layer, one after the other or side by side."""

    def build(self, config: DecoderConfig, layer: int) -> None:
        self.parallel, experts = config.parallel, config.experts[layer]
        self.before_attention = _norm_if(config, "before")
        self.after_attention = _norm_if(config, "after")
        self.before_mlp = _norm_if(config, "before")
        self.after_mlp = _norm_if(config, "after")
        self.attention = Attention(config, layer)
        self.mlp = Mixture(config, experts) if experts else FeedForward(config, config.inner)

    def read(self, x: Any, at: TokenPositions, keys: Any, values: Any) -> Any:
        """Apply it to [n, steps, width], in traced code."""
        own = self.attention.read(_through(self.before_attention, x), at, keys, values)
        own = _through(self.after_attention, own)
        if not self.parallel:
            x = op.add(x, own)
        inner = _through(self.after_mlp, self.mlp(_through(self.before_mlp, x)))
        return op.add(op.add(x, inner), own) if self.parallel else op.add(x, inner)


class Decoder(Model):
    """Embeddings, layers, a last norm and the head.

    >>> from meta.language.config import DecoderConfig
    >>> rope = {"rope_type": "default", "rope_theta": 1e4}
    >>> model = meta.language.Decoder(DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(rope,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32))
    >>> meta.language.generate(model, [1, 2, 3], max_new_tokens=4).tokens.shape
    (4,)
    """

    # What `meta.language.generation` has compiled for it, which no copy shares.
    compiled: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in super().__getstate__().items() if name != "compiled"}

    def build(self, config: DecoderConfig) -> None:
        """Make the parts."""
        self.config = config
        self.end_tokens = config.end_tokens
        self.tokenizer: Any = None  # of the library tokenizers
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = None
        if config.positions:
            self.embed_positions = Embedding(config.positions, config.hidden_size)
        self.layers = [Layer(config, i) for i in range(config.layers)]
        self.norm = _norm(config, config.hidden_size)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return words for each rank, where there are as many for each."""
        if self.config.vocab_size % ranks:
            return {}
        return {"embed_tokens": "vocabulary", "lm_head": "vocabulary"}

    def cache_placement(self, rows: int, slots: int) -> Placement:
        """Return how ranks have keys, or values, of a layer: each those of its own heads.

        rows: texts, or blocks. slots: of each.
        """
        config = self.config
        heads = self.layers[0].attention.qkv_proj.weight.placement.splits
        splits = tuple(replace(split, axis=1, joined=1) for split in heads)
        return Placement((rows, config.key_value_heads, slots, config.head_width), splits)

    def scores(
        self,
        tokens: Any,
        start: Any,
        read: Any,
        cache: Sequence[tuple[Any, Any]],
        fresh: bool = False,
        block_table: Any = None,
        every: bool = False,
    ) -> Any:
        """Return the scores of the next token, float32, and write the cache; for traced code.

        tokens: int64 [n, steps]. start: int64 [n], how many tokens of each text were read before.
        read: int64 [n], how many of the tokens belong to the text; what is behind is padding.
        cache: of each layer, keys and values, of the model's dtype, as `cache_update` has them:
        [n, heads, slots, width], or [blocks, heads, block_size, width] with a block_table, int32
        [n, most].
        fresh: nothing is in the cache. Result: [n, vocabulary], behind the last token of each text;
        with ``every`` [n, steps, vocabulary], behind each token, which is read as if it were the
        last.
        """
        config, steps = self.config, tokens.shape[1]
        at = TokenPositions(config, start, read, steps, fresh, block_table, every)
        x = self.embed_tokens(tokens)
        if config.embedding_scale != 1:
            x = op.multiply(x, config.embedding_scale)
        if self.embed_positions is not None:
            x = op.add(x, self.embed_positions(op.maximum(at.slots, 0)))
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            x = layer.read(x, at, keys, values)
        if not every and tokens.shape[1] == 1:
            x = op.reshape(x, (-1, x.shape[-1]))
        elif not every:
            rows = op.arange(0, tokens.shape[0], 1, "int64", device_of(tokens))
            x = op.adv_index((x, rows, op.subtract(read, 1)))
        return capped(op.astype(self.lm_head(self.norm(x)), "float32"), config.logit_cap)
