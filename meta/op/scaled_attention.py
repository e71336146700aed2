"""`scaled_dot_product_attention` as torch has it, composed of `fused_attention`."""

from __future__ import annotations

import math
from typing import Any

from meta import op
from meta.base.errors import TypeInferError
from meta.op.core.check import broadcast_shapes, shapes_compatible
from meta.op.core.function import as_operand, device_of, function

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
    """
    _check_options(dropout_p, is_causal, scale, enable_gqa)
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
        _with_four(op.broadcast_to(x, (*outer, *g, *x.shape[-2:])))
        for x, g in zip((q, k, v), groups, strict=True)
    )
    if mask is not None and mask.ndim > 3:
        if mask.ndim > len(lead) + 2:
            raise _error("attn_mask has more axes than the scores", query, key, mask)
        mask = _with_four(op.broadcast_to(mask, (*outer, *mask.shape[-3:])))
    y = _of_heads(q, k, v, mask, dropout_p, is_causal, scale)
    return op.reshape(y, (*lead, *y.shape[-2:]))


def _check_options(dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any) -> None:
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
    return op.reshape(x, (math.prod(outer) if known else -1, *x.shape[-3:]))


def _of_heads(
    q: Any, k: Any, v: Any, mask: Any, dropout_p: float, is_causal: bool, scale: float | None
) -> Any:
    """Return the attention of arrays [b, heads, length, width]."""
    if dropout_p == 0:
        return op.fused_attention(q, k, v, mask, is_causal, scale)[0]
    drops = {"dropout_key": op.random_key(device_of(q)), "dropout_p": dropout_p}
    return op.fused_attention(q, k, v, mask, is_causal, scale, **drops)[0]
