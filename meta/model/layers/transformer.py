"""`MultiheadAttention`, with torch's arguments, masks and names of arrays, and blocks of the
transformer (Vaswani et al., arXiv:1706.03762).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError, TypeInferError
from meta.model import init
from meta.model.layers.basic import Dropout, Linear, fan_in_uniform
from meta.model.layers.norm import LayerNorm
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.function import device_of
from meta.runtime.ndarray import ndarray

__all__ = [
    "MultiheadAttention",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]


class MultiheadAttention(Model):
    """Attention of several heads (Vaswani et al., arXiv:1706.03762).

    ``in_proj_weight``: (3 * embed_dim, embed_dim), of query, key and value; where key or value have
    other features, ``q_proj_weight`` (embed_dim, embed_dim), ``k_proj_weight`` (embed_dim, kdim)
    and ``v_proj_weight`` (embed_dim, vdim) instead. ``in_proj_bias``: (3 * embed_dim,) or None.
    ``out_proj``: a `Linear`.

    >>> x = meta.ones((5, 2, 8))
    >>> result, weights = meta.model.MultiheadAttention(8, 2)(x, x, x)
    >>> result.shape, weights.shape
    ((5, 2, 8), (2, 5, 5))
    """

    def build(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ) -> None:
        """Make the weights, Glorot uniform, that of the result as of `Linear`; biases are 0.

        dropout: the probability to drop a weight of a key in train mode. kdim, vdim: features of
        key and value, embed_dim unless given. ArgumentError unless num_heads divides embed_dim and
        0 <= dropout < 1.
        """
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ArgumentError(
                "num_heads must divide embed_dim",
                expected=f"a divisor of {embed_dim}",
                found=num_heads,
            )
        if not 0 <= dropout < 1:
            raise ArgumentError(
                "dropout is no probability of dropping", expected="0 <= dropout < 1", found=dropout
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim, self.vdim, self.batch_first = kdim or embed_dim, vdim or embed_dim, batch_first
        self.in_proj_weight: ndarray | None = None
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = _glorot(3 * embed_dim, embed_dim)
        else:
            self.q_proj_weight = _glorot(embed_dim, embed_dim)
            self.k_proj_weight = _glorot(embed_dim, self.kdim)
            self.v_proj_weight = _glorot(embed_dim, self.vdim)
        empty = fan_in_uniform((3 * embed_dim,), embed_dim)
        self.in_proj_bias = init.zeros(empty) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if self.out_proj.bias is not None:
            init.zeros(self.out_proj.bias)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return heads for each rank; ArgumentError if ranks do not divide them."""
        if self.num_heads % ranks:
            expected = f"a divisor of {self.num_heads}"
            raise ArgumentError("ranks must divide num_heads", expected=expected, found=ranks)
        joined = {"in_proj_weight": (0, 3), "in_proj_bias": (0, 3)}
        apart = {f"{n}_proj_weight": 0 for n in "qkv"}
        plan: dict[str, Any] = {**joined, **apart, "out_proj": "row"}
        return {n: how for n, how in plan.items() if getattr(self, n, None) is not None}

    @trace
    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """Return (result, weights); weights are None unless ``need_weights``.

        query: (l, n, embed_dim), key: (s, n, kdim), value: (s, n, vdim); with ``batch_first`` n
        comes first; without n, two axes each, the results have none either. key_padding_mask:
        (n, s), or (s,), bool, true for keys that are not looked at, or floating point, which is
        added to the scores. attn_mask: (l, s) or (n * num_heads, l, s), likewise. is_causal: query
        i looks at keys 0 .. i only, with or without ``attn_mask``.

        result: of query's layout. weights: after dropout, their mean over the heads (n, l, s), or
        (n, num_heads, l, s) without ``average_attn_weights``. Without them the layer runs
        `meta.scaled_dot_product_attention`, which is faster and needs less memory. A query whose
        keys are all masked by bool gets weights of 0; torch gives NaN.
        Raises TypeInferError for arrays that do not fit.
        """
        self._require(query, key, value)
        one = query.ndim == 2
        query, key, value = (self._rows_first(x) for x in (query, key, value))
        n, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        if one and key_padding_mask is not None:
            key_padding_mask = op.reshape(key_padding_mask, (1, keys))
        q, k, v = (self._heads(x) for x in self._projected(query, key, value))
        seen, added = self._masks(key_padding_mask, attn_mask, (n, queries, keys), q.dtype)
        drops = self.dropout > 0 and self.training
        if need_weights:
            if is_causal:
                seen = _combine_masks(seen, _causal_mask(queries, keys, q))
            weights = _weights(q, k, seen, added)
            if drops:
                weights = op.dropout(weights, self.dropout)
            y = op.matmul(weights, v)
        else:
            mask = _merge_masks(seen, added)
            p = self.dropout if drops else 0.0
            y = op.scaled_dot_product_attention(q, k, v, mask, p, is_causal)
        y = op.reshape(op.permute_dims(y, (0, 2, 1, 3)), (n, queries, self.embed_dim))
        y = self.out_proj(y)
        if one:
            y = op.reshape(y, (queries, self.embed_dim))
        elif not self.batch_first:
            y = op.permute_dims(y, (1, 0, 2))
        if not need_weights:
            return y, None
        if average_attn_weights:
            weights = op.mean(weights, 1)
        return y, op.reshape(weights, weights.shape[1:]) if one else weights

    def _require(self, query: Any, key: Any, value: Any) -> None:
        axis = 1 if self.batch_first else 0
        axes = query.ndim
        features = (self.embed_dim, self.kdim, self.vdim)
        fits = axes in (2, 3) and all(
            x.ndim == axes and x.shape[-1] == f
            for x, f in zip((query, key, value), features, strict=True)
        )
        if fits and axes == 3:
            batch = 1 - axis
            fits = query.shape[batch] == key.shape[batch]
        if not fits or key.shape[:-1] != value.shape[:-1]:
            layout = "(n, steps, features)" if self.batch_first else "(steps, n, features)"
            raise TypeInferError(
                "query, key and value do not fit",
                expected=f"{layout}, the features {features}, as many keys as values",
                found=", ".join(str(tuple(x.shape)) for x in (query, key, value)),
            )

    def _rows_first(self, x: Any) -> Any:
        """Return (n, steps, features)."""
        if x.ndim == 2:
            return op.reshape(x, (1, *x.shape))
        return x if self.batch_first else op.permute_dims(x, (1, 0, 2))

    def _projected(self, query: Any, key: Any, value: Any) -> list[Any]:
        width = self.embed_dim
        if self.in_proj_weight is None:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = [self.in_proj_weight[i * width : (i + 1) * width] for i in range(3)]
        found = []
        for i, (x, weight) in enumerate(zip((query, key, value), weights, strict=True)):
            y = op.dense(op.reshape(x, (-1, x.shape[2])), weight)
            if self.in_proj_bias is not None:
                y = op.add(y, self.in_proj_bias[i * width : (i + 1) * width])
            found.append(op.reshape(y, (*x.shape[:2], width)))
        return found

    def _heads(self, x: Any) -> Any:
        """Return (n, heads, steps, features of a head)."""
        split = (*x.shape[:2], self.num_heads, self.embed_dim // self.num_heads)
        return op.permute_dims(op.reshape(x, split), (0, 2, 1, 3))

    def _masks(self, padding: Any, pairs: Any, sizes: tuple[Any, ...], dtype: str) -> Any:
        """Return what may be looked at, bool, and what is added to the scores, or None for each;
        both broadcast to (n, heads, l, s).
        """
        n, queries, keys = sizes
        seen, added = None, None
        for mask, name, shapes in (
            (padding, "key_padding_mask", {(n, keys): (n, 1, 1, keys)}),
            (
                pairs,
                "attn_mask",
                {
                    (queries, keys): (1, 1, queries, keys),
                    (n * self.num_heads, queries, keys): (n, self.num_heads, queries, keys),
                },
            ),
        ):
            if mask is None:
                continue
            shape = tuple(mask.shape)
            if shape not in shapes or not (mask.dtype == "bool" or is_float(mask.dtype)):
                raise TypeInferError(
                    f"{name} does not fit",
                    expected=f"bool or floating point, {' or '.join(map(str, shapes))}",
                    found=f"{mask.dtype}, {shape}",
                )
            whole = op.reshape(mask, shapes[shape])
            if mask.dtype == "bool":
                seen = _combine_masks(seen, op.logical_not(whole))
            else:
                whole = op.astype(whole, dtype)
                added = whole if added is None else op.add(added, whole)
        return seen, added


def _glorot(rows: int, columns: int) -> ndarray:
    return init.xavier_uniform(fan_in_uniform((rows, columns), columns))


def _combine_masks(a: Any, b: Any) -> Any:
    return b if a is None else op.logical_and(a, b)


def _causal_mask(queries: int, keys: int, like: Any) -> Any:
    """Return which keys are not behind a query: bool (queries, keys)."""
    where = device_of(like)
    rows = op.reshape(op.arange(0, queries, 1, "int64", where), (queries, 1))
    return op.less_equal(op.arange(0, keys, 1, "int64", where), rows)


def _masked_score(dtype: str) -> float:
    """Return a number below all scores, which every dtype of that name can hold."""
    return -65504.0 if dtype == "float16" else -3e38


def _merge_masks(seen: Any, added: Any) -> Any:
    """Return both masks as one, as `scaled_dot_product_attention` takes it."""
    if seen is None or added is None:
        return added if seen is None else seen
    return op.where(seen, added, _masked_score(added.dtype))


def _weights(query: Any, key: Any, seen: Any, added: Any) -> Any:
    """Return softmax(query key^T / sqrt(d) + added) over the keys that are seen."""
    scores = op.matmul(query, op.permute_dims(key, (0, 1, 3, 2)))
    scores = op.multiply(scores, query.shape[3] ** -0.5)
    if added is not None:
        scores = op.add(scores, added)
    if seen is None:
        return op.softmax(scores, -1)
    seen = op.broadcast_to(seen, scores.shape)
    weights = op.softmax(op.where(seen, scores, _masked_score(scores.dtype)), -1)
    return op.where(seen, weights, op.zeros_like(weights))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": op.relu, "gelu": op.gelu}


class _Layer(Model):
    """Base of one layer: blocks, each added to what goes around it, normalised first or last."""

    blocks = 2

    def build(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        """Make the parts.

        d_model: features. nhead: heads, which divide them. dim_feedforward: features in the middle
        of the last block. dropout: probability to drop, of weights of keys, in the middle of the
        last block, and of the result of each block. activation: "relu", "gelu" or a function of an
        array. batch_first: arrays are (n, steps, d_model) instead of (steps, n, d_model).
        norm_first: each block normalises its input, instead of the sum behind it.
        """
        if not callable(activation) and activation not in ACTIVATIONS:
            raise ArgumentError(
                "unknown activation", expected="relu, gelu or a function", found=repr(activation)
            )
        self.activation, self.norm_first = activation, norm_first
        attention = {"dropout": dropout, "bias": bias, "batch_first": batch_first}
        self.self_attn = MultiheadAttention(d_model, nhead, **attention)
        if self.blocks > 2:
            self.multihead_attn = MultiheadAttention(d_model, nhead, **attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.dropout = Dropout(dropout)
        for i in range(1, self.blocks + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias))
            setattr(self, f"dropout{i}", Dropout(dropout))

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return features between the projections for each rank."""
        return {"linear1": "column", "linear2": "row"}

    def around(self, x: Any, number: int, block: Callable[[Any], Any]) -> Any:
        """Return x + block(norm(x)), or norm(x + block(x))."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return op.add(x, dropout(block(norm(x))))
        return norm(op.add(x, dropout(block(x))))

    def feed_forward(self, x: Any) -> Any:
        """Return linear2(activation(linear1(x)))."""
        name = self.activation
        activation = name if callable(name) else ACTIVATIONS[name]
        return self.linear2(self.dropout(activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then two linear layers at each step.

    >>> meta.model.TransformerEncoderLayer(8, 2, 16)(meta.ones((5, 2, 8))).shape
    (5, 2, 8)
    """

    @trace
    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """Return an array of src's shape. Masks as `MultiheadAttention` takes them."""

        def attend(x: Any) -> Any:
            how = (src_key_padding_mask, False, src_mask, True, is_causal)
            return self.self_attn(x, x, x, *how)[0]

        return self.around(self.around(src, 1, attend), 2, self.feed_forward)


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, then to ``memory``, then two linear layers at each
    step.

    >>> layer = meta.model.TransformerDecoderLayer(8, 2, 16)
    >>> layer(meta.ones((5, 2, 8)), meta.ones((7, 2, 8))).shape
    (5, 2, 8)
    """

    blocks = 3

    @trace
    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return an array of tgt's shape. Masks as `MultiheadAttention` takes them."""

        def attend(x: Any) -> Any:
            how = (tgt_key_padding_mask, False, tgt_mask, True, tgt_is_causal)
            return self.self_attn(x, x, x, *how)[0]

        def look(x: Any) -> Any:
            how = (memory_key_padding_mask, False, memory_mask, True, memory_is_causal)
            return self.multihead_attn(x, memory, memory, *how)[0]

        x = self.around(tgt, 1, attend)
        return self.around(self.around(x, 2, look), 3, self.feed_forward)


class _Stack(Model):
    """Base of layers in a row."""

    def build(self, layer: Model, num_layers: int, norm: Model | None = None) -> None:
        """Copy ``layer`` num_layers times, with its values, as torch does; ``norm``, if there is
        one, is applied to the result.
        """
        if num_layers < 1:
            raise ArgumentError("there is no layer", expected="num_layers >= 1", found=num_layers)
        self.layers = [copy.deepcopy(layer) for _ in range(num_layers)]
        self.norm = norm


class TransformerEncoder(_Stack):
    """Layers in a row: copies of a `TransformerEncoderLayer`.

    >>> layer = meta.model.TransformerEncoderLayer(8, 2, 16)
    >>> meta.model.TransformerEncoder(layer, 3)(meta.ones((5, 2, 8))).shape
    (5, 2, 8)
    """

    @trace
    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Any:
        """Return an array of src's shape; each layer gets the masks."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(_Stack):
    """Layers in a row: copies of a `TransformerDecoderLayer`.

    >>> decoder = meta.model.TransformerDecoder(meta.model.TransformerDecoderLayer(8, 2, 16), 3)
    >>> decoder(meta.ones((5, 2, 8)), meta.ones((7, 2, 8))).shape
    (5, 2, 8)
    """

    @trace
    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return an array of tgt's shape; each layer gets the memory and the masks."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)
