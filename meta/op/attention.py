"""Attention and rotary embeddings; attention as torch has it is composed of ours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from meta import op as operators
from meta.base.errors import TypeInferError
from meta.ir.types import TensorType
from meta.op.core import Tensor, op
from meta.op.core.axes import Args, Axes, AxesRule, Labels, last
from meta.op.core.check import (
    broadcast_shapes,
    require,
    require_float,
    require_like,
    require_ndim,
    require_same_dtype,
    shapes_compatible,
)
from meta.op.core.function import as_operand, device_of, function
from meta.op.norm import statistics_dtype
from meta.op.random import require_key, require_probability


def score_scale(scale: float | None, width: int) -> float:
    """Return the factor of the scores, which is 1 / sqrt(width) unless given."""
    return max(width, 1) ** -0.5 if scale is None else scale


HEADS_FIRST, HEADS_LATER = "BHSD", "BSHD"
"""Layouts: of batch, heads, sequence and width."""


def heads_first(x: TensorType, layout: str) -> TensorType:
    """Return the type of x with its heads before its sequence, or back."""
    if layout == HEADS_FIRST:
        return x
    fits = layout == HEADS_LATER
    expected = f"{HEADS_FIRST} or {HEADS_LATER}"
    require(fits, "layout is not supported", expected=expected, found=repr(layout))
    batch, sequence, heads, width = x.shape
    return x.with_shape((batch, heads, sequence, width))


def same_extent(a: object, b: object) -> bool:
    """Whether two extents agree, as far as they are numbers yet."""
    return a == b or not (isinstance(a, int) and isinstance(b, int))


def mask_repeats(mask: TensorType | None, batch: object) -> int:
    """Return how often the batches of a mask follow one another in those of the scores: 1 for a
    mask that broadcasts.
    """
    if mask is None or mask.ndim != 4 or not isinstance(batch, int):
        return 1
    own = mask.shape[0]
    if not isinstance(own, int) or own <= 1 or batch <= own or batch % own:
        return 1
    return batch // own


def _checked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, layout: str
) -> TensorType:
    """Check the arguments; return the type of the scores, in query's dtype."""
    for x, name in ((query, "query"), (key, "key"), (value, "value")):
        require_ndim(x, 4, name)
        require_float(x, name)
    query, key, value = (heads_first(x, layout) for x in (query, key, value))
    found = f"query={query}, key={key}, value={value}"
    require_same_dtype(query, key, value)
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    fits = (
        same_extent(batch, key.shape[0])
        and same_extent(width, key.shape[3])
        and all(same_extent(a, b) for a, b in zip(key.shape[:3], value.shape[:3], strict=True))
    )
    expected = "query [b, h, l, d], key [b, g, s, d], value [b, g, s, e]"
    require(fits, "query, key and value do not fit together", expected=expected, found=found)
    if isinstance(heads, int) and isinstance(groups, int):
        divides = heads == groups or (groups > 0 and heads % groups == 0)
        require(
            divides,
            "the heads of key must divide those of query",
            expected=f"a divisor of {heads}",
            found=groups,
        )
    scores = query.with_shape((batch, heads, length, key.shape[2]))
    if mask is not None:
        require(
            mask.dtype in ("bool", query.dtype),
            "mask must be bool, or numbers to add of query's dtype",
            expected=f"bool or {query.dtype}",
            found=mask,
        )
        known = mask.is_static and scores.is_static
        wanted = scores
        if mask_repeats(mask, batch) != 1:
            wanted = scores.with_shape((mask.shape[0], *scores.shape[1:]))
        broadcasts = not known or broadcast_shapes(mask.shape, wanted.shape) == wanted.shape
        require(
            broadcasts,
            "mask does not broadcast to the scores",
            expected=list(scores.shape),
            found=mask,
        )
    return scores


def _check_options(
    scores: TensorType,
    window: tuple[int, ...] | None,
    slopes: TensorType | None,
    dropout_key: TensorType | None,
    dropout_p: float,
) -> None:
    """Check what else is done to the scores, which are of query's dtype, and to the weights."""
    if window is not None:
        fits = len(window) == 2 and all(n >= -1 for n in window)
        expected = "(left, right), each -1 or more"
        require(fits, "window does not fit", expected=expected, found=window)
    if slopes is not None:
        dtypes = {scores.dtype, statistics_dtype(scores.dtype)}
        leading = scores.shape[2 - slopes.ndim : 2] if slopes.ndim in (1, 2) else ()
        fits = bool(leading) and all(map(same_extent, slopes.shape, leading))
        expected = f"{' or '.join(sorted(dtypes))} of the heads {list(scores.shape[1:2])}, or of "
        expected += f"batches and heads {list(scores.shape[:2])}"
        fits = fits and slopes.dtype in dtypes
        require(fits, "slopes do not fit", expected=expected, found=slopes)
    require_probability(dropout_p)
    if dropout_key is not None:
        require_key(dropout_key, "dropout_key")
    require(
        dropout_p == 0 or dropout_key is not None,
        "weights are dropped by a key",
        expected="dropout_key beside dropout_p, as of random_key()",
        found=f"dropout_p={dropout_p}",
    )


def _statistics(scores: TensorType) -> TensorType:
    return TensorType(scores.shape[:3], statistics_dtype(scores.dtype))


def _batch_axes(*results: str) -> AxesRule:
    """Return the axes of an operator of batches, whose results are like these arguments. A mask, or
    slopes, without batches is of all.
    """

    def rule(args: Args) -> Iterable[Axes]:
        if args["dropout_key"] is not None:  # what is kept depends on the place
            return ()
        mask, slopes = args["mask"], args["slopes"]
        labels: dict[str, Labels] = dict.fromkeys(("query", "key", "value", "y", "dy"), _BATCH)
        labels["logsumexp"] = _BATCH[:3]
        if mask is not None and mask.ndim == 4 and mask.shape[0] == args["query"].shape[0]:
            labels["mask"] = _BATCH
        if slopes is not None and slopes.ndim == 2:
            labels["slopes"] = _BATCH[:2]
        made = tuple(labels.get(name, ()) for name in results)
        return (Axes({n: t for n, t in labels.items() if n in args}, made),)

    return rule


_BATCH: Labels = ("b", None, None, None)


@op(axes=_batch_axes("query", "logsumexp"))
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    layout: str = HEADS_FIRST,
    window: tuple[int, ...] | None = None,
    slopes: Tensor | None = None,
    dropout_key: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[TensorType, TensorType]:
    """`scaled_dot_product_attention` of four axes that also returns the logsumexp of the scores.

    ``dropout(softmax(query @ key.T * scale + mask - slopes * distance)) @ value`` per head. Scores
    and softmax are computed in at least float32.

    query: floating point [b, h, l, d]. key: [b, g, s, d] and value: [b, g, s, e] of its dtype; g
    divides h, and each head of key and value serves h / g adjacent heads of query (grouped-query
    attention, arXiv:2305.13245). mask: bool, true where a query may look, or numbers of query's
    dtype that are added to the scores; it broadcasts to [b, h, l, s], or to [n, h, l, s] where n
    divides b: batch i then has those of i % n, as the windows of images that follow one another
    (Liu et al., arXiv:2103.14030). causal: query i looks at
    keys 0 .. i only. scale: 1 / sqrt(d) unless given. layout: "BHSD", or "BSHD" for
    query [b, l, h, d], key, value and y likewise, as projections leave them.

    window: (left, right): query i looks at keys i - left .. i + right only, where -1 is no limit
    (Beltagy et al., arXiv:2004.05150). slopes: [h] or [b, h], of query's dtype, or float32 where
    that is half: slopes[h] * abs(i - j) is subtracted from the score of query i and key j (Press
    et al., arXiv:2108.12409). Positions count from the first query and the first key, as causal's.
    dropout_p: the probability to drop a weight; those kept are divided by 1 - dropout_p.
    dropout_key: int64, one element: what is kept is `dropout_mask` of it, for the shape
    [b, h, l, s] in any layout, as if `dropout_train` had got the key and the weights.

    Results: y [b, h, l, e] of query's dtype; log(sum(exp(scores))) [b, h, l], float64 beside
    float64 and else float32, which is for the gradient and a constant to differentiation. A query
    that may look nowhere gets 0 for both.

    Raises TypeInferError for shapes or dtypes that do not fit.
    """
    scores = _checked(query, key, value, mask, layout)
    _check_options(scores, window, slopes, dropout_key, dropout_p)
    return query.with_shape((*query.shape[:3], value.shape[3])), _statistics(scores)


@op(axes=_batch_axes("query", "key", "value"))
def fused_attention_dx(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    y: Tensor,
    logsumexp: Tensor,
    dy: Tensor,
    causal: bool = False,
    scale: float | None = None,
    layout: str = HEADS_FIRST,
    window: tuple[int, ...] | None = None,
    slopes: Tensor | None = None,
    dropout_key: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[TensorType, TensorType, TensorType]:
    """Gradients of `fused_attention` with respect to query, key and value.

    With p = exp(scores - logsumexp), z what dropout multiplies p by, and
    ds = p * (z * (dy @ value.T) - sum(dy * y)): ``dquery = ds @ key * scale``,
    ``dkey = ds.T @ query * scale``, ``dvalue = (p * z).T @ dy`` (Dao et al., arXiv:2205.14135,
    appendix B), the latter two summed over the heads that share them.

    query, key, value, mask, causal and all after it: of the forward call. y, logsumexp: its
    results. dy: the gradient of y. Results: of the types of query, key and value.
    """
    scores = _checked(query, key, value, mask, layout)
    _check_options(scores, window, slopes, dropout_key, dropout_p)
    result = query.with_shape((*query.shape[:3], value.shape[3]))
    for x, name, wanted in (
        (y, "y", result),
        (dy, "dy", result),
        (logsumexp, "logsumexp", _statistics(scores)),
    ):
        require_like(x, wanted, f"{name} does not fit")
    return query, key, value


@op(axes=_batch_axes("mask"), schema=fused_attention_dx)
def fused_attention_dmask(*arguments: Any) -> TensorType:
    """Gradient of `fused_attention` with respect to a mask that is added.

    ``ds`` of `fused_attention_dx`, summed over the axes along which mask is
    broadcast, and over the batches that have the same of its batches. Arguments as there; mask is
    floating point. Result: its type.
    """
    fused_attention_dx.type_function(*arguments)
    mask: TensorType | None = arguments[fused_attention_dx.schema.index["mask"]]
    require(mask is not None, "there is no mask to differentiate by", expected="mask", found=None)
    assert mask is not None
    require_float(mask, "mask")
    return mask


@op(axes=_batch_axes("slopes"), schema=fused_attention_dx)
def fused_attention_dslopes(*arguments: Any) -> TensorType:
    """Gradient of `fused_attention` with respect to slopes.

    ``-ds * abs(i - j)`` of `fused_attention_dx`, summed over queries i and keys j, and over batches
    where they have none. Arguments as there, slopes among them. Result: the type of slopes.
    """
    fused_attention_dx.type_function(*arguments)
    slopes: TensorType | None = arguments[fused_attention_dx.schema.index["slopes"]]
    require(slopes is not None, "there are no slopes", expected="slopes", found=None)
    assert slopes is not None
    return slopes


def _pairs(x: TensorType) -> TensorType:
    """Return the type of one member of each pair."""
    require_float(x, "x")
    width = x.shape[-1] if x.ndim else 1
    even = not isinstance(width, int) or width % 2 == 0
    require(even, "the last axis of x must hold pairs", expected="an even extent", found=x)
    return x.with_shape((*x.shape[:-1], width // 2 if isinstance(width, int) else width))


def _table(x: TensorType, table: TensorType, name: str) -> None:
    half = _pairs(x)
    dtypes = {x.dtype, statistics_dtype(x.dtype)}
    known = half.is_static and table.is_static
    fits = not known or (
        table.ndim <= half.ndim and broadcast_shapes(table.shape, half.shape) == half.shape
    )
    expected = f"{' or '.join(sorted(dtypes))} that broadcasts to {list(half.shape)}"
    require(fits and table.dtype in dtypes, f"{name} does not fit", expected=expected, found=table)


@op(axes=last(x=1, cos=1, sin=1, broadcasts=("cos", "sin")))
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate pairs of features by the angles of their position.

    ``(a, b) -> (a cos - b sin, b cos + a sin)`` (Su et al., arXiv:2104.09864). A pair is feature i
    and i + d / 2 of the last axis, or, if ``interleaved``, features 2 i and 2 i + 1.

    x: floating point [..., d], d even. cos, sin: one type, that broadcasts to [..., d / 2]; of x's
    dtype, or float32 where x is half. Result: x's type; half precision is computed in float32.

    Raises TypeInferError for an odd d, and for a table that does not fit.
    """
    _table(x, cos, "cos")
    require_like(sin, cos, "cos and sin differ")
    return x


@op
def rotary_embedding_dtable(
    x: Tensor, dy: Tensor, cos: Tensor, interleaved: bool = False
) -> tuple[TensorType, TensorType]:
    """Gradients of `rotary_embedding` with respect to cos and sin.

    For pairs (a, b) of x and (p, q) of dy: ``dcos = p a + q b``, ``dsin = q a - p b``, summed over
    the axes along which the tables are broadcast.

    x, dy: of one type. Of ``cos`` only the type counts; it is that of both results.
    """
    _table(x, cos, "cos")
    require_like(dy, x, "dy is not of x's type")
    return cos, cos


# `scaled_dot_product_attention` as torch has it, composed of `fused_attention`.


NAME = "scaled_dot_product_attention"


@function
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return ``softmax(query @ key.T * scale + attn_mask) @ value``, as torch's function.

    Vaswani et al., arXiv:1706.03762. It runs as one kernel, `fused_attention`.

    query: floating point (..., l, d). key: (..., s, d) and value: (..., s, e) of its dtype; the
    leading axes broadcast. attn_mask: bool, true where a query may look, or numbers of query's
    dtype that are added to the scores; it broadcasts to (..., l, s). dropout_p: the probability to
    drop a weight, in every call: give 0 where nothing is trained. is_causal: query i looks at keys
    0 .. i only, also where l and s differ, and beside a mask. scale: 1 / sqrt(d) unless given.
    enable_gqa: each head of key and value, axis -3, serves as many adjacent heads of query
    (arXiv:2305.13245). Result: (..., l, e). A query that may look nowhere gets 0.

    Raises TypeInferError for shapes or dtypes that do not fit.

    >>> q = meta.ones((1, 2, 5, 8))
    >>> meta.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    (1, 2, 5, 8)
    """
    _check_call(dropout_p, is_causal, scale, enable_gqa)
    q, k, v = as_operand(query), as_operand(key), as_operand(value)
    mask = None if attn_mask is None else as_operand(attn_mask)
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise _error("query, key and value need 2 axes", q, k, v)
    if _is_direct(q, k, v, enable_gqa):
        return _of_heads(q, k, v, mask, dropout_p, is_causal, scale)
    lead = _leading(q, k, v, enable_gqa)
    groups = [x.shape[-3:-2] if enable_gqa else lead[-1:] or (1,) for x in (q, k, v)]
    outer = lead[:-1]
    q, k, v = (
        _with_four(operators.broadcast_to(x, (*outer, *g, *x.shape[-2:])))
        for x, g in zip((q, k, v), groups, strict=True)
    )
    if mask is not None and mask.ndim > 3:
        if mask.ndim > len(lead) + 2:
            raise _error("attn_mask has more axes than the scores", query, key, mask)
        mask = _with_four(operators.broadcast_to(mask, (*outer, *mask.shape[-3:])))
    y = _of_heads(q, k, v, mask, dropout_p, is_causal, scale)
    return operators.reshape(y, (*lead, *y.shape[-2:]))


def _check_call(dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any) -> None:
    """Raise TypeInferError for an option in the place of another one."""
    number = isinstance(dropout_p, int | float) and not isinstance(dropout_p, bool)
    if not number or not 0 <= dropout_p < 1:
        what = "dropout_p is no probability of dropping"
        hint = "is_causal=True" if isinstance(dropout_p, bool) else None
        raise TypeInferError(
            what, op=NAME, expected="0 <= dropout_p < 1", found=repr(dropout_p), hint=hint
        )
    for name, given in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(given, bool):
            raise TypeInferError(
                f"{name} does not fit", op=NAME, expected="a bool", found=repr(given)
            )
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float)):
        raise TypeInferError(
            "scale does not fit", op=NAME, expected="a number or None", found=repr(scale)
        )


def _error(what: str, *arrays: Any, hint: str | None = None) -> TypeInferError:
    found = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
    expected = "query (..., l, d), key (..., s, d), value (..., s, e)"
    return TypeInferError(what, op=NAME, expected=expected, found=found, hint=hint)


def _is_direct(q: Any, k: Any, v: Any, enable_gqa: bool) -> bool:
    """Whether `fused_attention` takes these as they are: one head of key serves all, anyway."""
    if (q.ndim, k.ndim, v.ndim) != (4, 4, 4):
        return False
    same = shapes_compatible(q.shape[:1], k.shape[:1]) and shapes_compatible(
        k.shape[:2], v.shape[:2]
    )
    return same and (enable_gqa or shapes_compatible(q.shape[1:2], k.shape[1:2]) or k.shape[1] == 1)


def _leading(q: Any, k: Any, v: Any, enable_gqa: bool) -> tuple[Any, ...]:
    """Return the leading axes of the result, the last of which are the heads."""
    cut = -3 if enable_gqa else -2
    if enable_gqa and min(q.ndim, k.ndim, v.ndim) < 3:
        raise _error("enable_gqa is about heads, axis -3", q, k, v)
    try:
        found = broadcast_shapes(*(x.shape[:cut] for x in (q, k, v)))
    except TypeInferError:
        share = "heads of key and value that serve several of query need enable_gqa=True"
        hint = None if enable_gqa or q.ndim < 3 else share
        raise _error("the leading axes do not broadcast", q, k, v, hint=hint) from None
    return (*found, q.shape[-3]) if enable_gqa else found


def _with_four(x: Any) -> Any:
    """Return an array of at least three axes with those before the heads as one."""
    if x.ndim == 4:
        return x
    outer = x.shape[:-3]
    known = all(isinstance(n, int) for n in outer)
    return operators.reshape(x, (math.prod(outer) if known else -1, *x.shape[-3:]))


def _of_heads(
    q: Any, k: Any, v: Any, mask: Any, dropout_p: float, is_causal: bool, scale: float | None
) -> Any:
    """Return the attention of arrays [b, heads, length, width]."""
    if dropout_p == 0:
        return operators.fused_attention(q, k, v, mask, is_causal, scale)[0]
    drops = {"dropout_key": operators.random_key(device_of(q)), "dropout_p": dropout_p}
    return operators.fused_attention(q, k, v, mask, is_causal, scale, **drops)[0]
