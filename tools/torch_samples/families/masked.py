"""Reductions and the like of the elements that a mask lets through."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import axes, in_dtype, like_1d, number_for, real
from tools.torch_samples.families.reductions import norm


def there(x: Any, mask: Any) -> Any:
    """Return the mask as it is broadcast; None lets everything through."""
    return meta.ones(x.shape, "bool") if mask is None else meta.broadcast_to(mask, x.shape)


def kept(x: Any, mask: Any, other: float) -> Any:
    """Return x with a number in place of what the mask hides."""
    if mask is None:
        return x
    if "float" not in x.dtype:
        bounds = meta.iinfo("int64")
        other = bounds.min if other < bounds.min else bounds.max if other > bounds.max else other
        other = number_for(other, x)
    return meta.where(mask, x, other)


def reducing(reduce: Any, hidden: float) -> Any:
    """Return a reduction to which hidden elements are its neutral number."""

    def reduced(
        input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
    ) -> Any:
        x = in_dtype(input, dtype)
        return reduce(kept(x, mask, hidden), axes(x, dim), keepdim)

    return reduced


def logsumexp(input: Any, dim: Any = None, *, dtype: Any = None, **kwargs: Any) -> Any:
    """log(sum(exp(x))), to torch in the dtype of integers as well."""
    x = in_dtype(input, dtype)
    return meta.cast_like(reducing(meta.logsumexp, -math.inf)(real(x), dim, **kwargs), x)


def mean(
    input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The mean of what the mask lets through."""
    x = in_dtype(input, dtype)
    count = meta.sum(meta.cast_like(there(x, mask), x), axes(x, dim), keepdim)
    return meta.sum(kept(x, mask, 0.0), axes(x, dim), keepdim) / count


def var(
    input: Any,
    dim: Any = None,
    unbiased: bool = True,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Any:
    """The variance of what the mask lets through."""
    x, at = in_dtype(input, dtype), axes(input, dim)
    count = meta.sum(meta.cast_like(there(x, mask), x), at, keepdim)
    centred = kept(x - mean(x, dim, keepdim=True, mask=mask), mask, 0.0)
    total = meta.sum(centred * centred, at, keepdim)
    less = float(unbiased) if correction is None else float(correction)
    return total / meta.maximum(count - less, 0.0)


def std(*args: Any, **kwargs: Any) -> Any:
    """The square root of `var`."""
    return meta.sqrt(var(*args, **kwargs))


def masked_norm(
    input: Any,
    ord: float = 2.0,
    dim: Any = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Any:
    """The norm of what the mask lets through."""
    hidden = math.inf if ord == -math.inf else 0.0
    return norm(kept(in_dtype(input, dtype), mask, hidden), ord, dim, keepdim)


def cumulative(scan: Any, hidden: float) -> Any:
    """Return a running result to which hidden elements are neutral."""

    def along(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Any:
        x = kept(in_dtype(input, dtype), mask, hidden)
        return like_1d(scan, x, dim, x.dtype)

    return along


def choosing(choose: Any, hidden: float) -> Any:
    """Return argmax or argmin to which hidden elements are the last choice."""

    def chosen(
        input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
    ) -> Any:
        x = kept(in_dtype(input, dtype), mask, hidden)
        return meta.astype(choose(x, axes(x, dim), keepdim), x.dtype)

    return chosen


def softmax(function: Any, sign: int) -> Any:
    """Return softmax or its kin over what the mask lets through."""

    def normalised(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Any:
        x = in_dtype(input, dtype)
        return like_1d(function, kept(x if sign > 0 else -x, mask, -math.inf), dim)

    return normalised


def normalize(
    input: Any, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Any = None
) -> Any:
    """Vectors scaled to the norm 1, hidden elements left out."""
    x = in_dtype(input, dtype)
    length = masked_norm(x, ord, dim, keepdim=True, mask=mask)
    return kept(x, mask, 0.0) / meta.maximum(length, eps)


def masked_logaddexp(
    input: Any, other: Any, *, dtype: Any = None, input_mask: Any = None, other_mask: Any = None
) -> Any:
    """log(exp(x) + exp(y)), where what is hidden adds nothing."""
    return meta.logaddexp(
        kept(in_dtype(input, dtype), input_mask, -math.inf),
        kept(in_dtype(other, dtype), other_mask, -math.inf),
    )


ADAPTERS = {
    "masked.amax": reducing(meta.max, -math.inf),
    "masked.amin": reducing(meta.min, math.inf),
    "masked.argmax": choosing(meta.argmax, -math.inf),
    "masked.argmin": choosing(meta.argmin, math.inf),
    "masked.cumprod": cumulative(meta.cumprod, 1.0),
    "masked.cumsum": cumulative(meta.cumsum, 0.0),
    "masked.log_softmax": softmax(meta.log_softmax, 1),
    "masked.logaddexp": masked_logaddexp,
    "masked.logsumexp": logsumexp,
    "masked.mean": mean,
    "masked.norm": masked_norm,
    "masked.normalize": normalize,
    "masked.prod": reducing(meta.prod, 1.0),
    "masked.softmax": softmax(meta.softmax, 1),
    "masked.softmin": softmax(meta.softmax, -1),
    "masked.std": std,
    "masked.sum": reducing(meta.sum, 0.0),
    "masked.var": var,
}
