"""Reductions, scans and orders along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tools.fuzz_models.rows.row import Call, Row, add

Axes = int | tuple[int, ...] | None


def reduced_axes(x: Tensor, axis: Axes) -> tuple[int, ...]:
    """Return which axes a call reduces."""
    if axis is None:
        return tuple(range(x.ndim))
    named = tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))
    return tuple(i for i in range(x.ndim) if i in named)


def flattened(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return x with the reduced axes as one, the last."""
    kept = [i for i in range(x.ndim) if i not in axes]
    extents = [x.shape[i] for i in kept]
    return x.permute((*kept, *axes)).reshape((*extents, math.prod(x.shape[a] for a in axes)))


def along(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a function of the last axis an operator with ``axis`` and ``keepdims``."""

    def reference(x: Tensor, axis: Axes = None, keepdims: bool = False, **kwargs: Any) -> Tensor:
        axes = reduced_axes(x, axis)
        result = function(flattened(x, axes), **kwargs)
        if keepdims:
            result = result.reshape([1 if i in axes else d for i, d in enumerate(x.shape)])
        return result

    return reference


def draw_axes(d: Any, value: Any) -> dict[str, Any]:
    """Return axes and flags of a reduction."""
    kwargs: dict[str, Any] = {}
    if value.ndim and d.chance(0.8):
        axes = d.random.sample(
            range(value.ndim), d.int(0 if d.chance(0.1) else 1, min(2, value.ndim))
        )
        axes = [a - value.ndim if d.chance(0.3) else a for a in axes]
        kwargs["axis"] = axes[0] if len(axes) == 1 and d.chance(0.7) else tuple(axes)
    if d.chance(0.4):
        kwargs["keepdims"] = True
    return kwargs


def reduction(
    name: str,
    function: Callable[..., Tensor],
    kind: str,
    *,
    dtype: Any = "same",
    rounding: str = "always",
    smooth: bool = True,
    exact: bool = False,
    least: int = 1,
    weight: float = 1.0,
    fits: Callable[[Any], bool] = lambda v: True,
    inner: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Add a reduction. least: how many elements it needs."""
    cancels = None if inner is None else along(inner)

    def draw(d: Any) -> Call:
        x = d.pick(lambda v: v.size >= least and (v.exact or not exact) and fits(v), dtype=kind)
        return (x,), draw_axes(d, d.value(x))

    add(
        Row(
            name,
            draw,
            along(function),
            dtype,
            rounding,
            smooth=smooth,
            weight=weight,
            inner=cancels,
        )
    )


def _wide(operands: Any, args: Any, kwargs: Any) -> str:
    return operands[0] if "float" in operands[0] else "int64"


def _signed(value: Any) -> bool:
    """Sums of unsigned integers are uint64, which no program here has."""
    return not value.dtype.startswith("uint")


def _number(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.long()


def rounds_of_sum(x: Tensor, axis: int) -> Tensor:
    """Return how many units in the last place a sum along an axis may be off by; the axis is kept.

    Each of some 16 partial sums of n elements rounds n / 16 times. These are sqrt(n) units at most
    together, but where the elements are about equal they may all have one direction.
    """
    n = x.shape[axis]
    if n == 0:
        return torch.zeros(())
    sizes = x.double().abs()
    low, high = sizes.amin(axis, keepdim=True), sizes.amax(axis, keepdim=True)
    return torch.where(high - low <= 0.05 * high, n / 64, math.sqrt(n) / 8)


def _sum_inner(x: Tensor) -> Tensor:
    return x.double().abs().sum(-1) * rounds_of_sum(x, -1).squeeze(-1)


reduction(
    "sum", lambda x: _number(x).sum(-1), "any", dtype=_wide, rounding="add", least=0, weight=2.5,
    inner=_sum_inner, fits=_signed,
)  # fmt: skip
reduction(
    "mean", lambda x: x.mean(-1), "float", weight=2, inner=lambda x: _sum_inner(x) / x.shape[-1]
)
reduction(
    "prod", lambda x: _number(x).prod(-1), "any", dtype=_wide, smooth=False, weight=0.5,
    fits=lambda v: v.size <= 200 and _signed(v),
)  # fmt: skip
reduction("max", lambda x: x.amax(-1), "any", rounding="none")
reduction("min", lambda x: x.amin(-1), "any", rounding="none")


def _first(x: Tensor, largest: bool) -> Tensor:
    """Return the index of the first extremum; a NaN counts as one."""
    best = x.amax(-1, keepdim=True) if largest else x.amin(-1, keepdim=True)
    same = (x == best) | (x != x)
    return same.to(torch.int8).argmax(-1)


for _name, _largest in (("argmax", True), ("argmin", False)):
    reduction(
        _name, lambda x, f=_largest: _first(x, f), "any", dtype="int64", rounding="none",
        smooth=False,
    )  # fmt: skip
reduction(
    "all",
    lambda x: (x != 0).all(-1),
    "any",
    dtype="bool",
    rounding="none",
    smooth=False,
    exact=True,
    least=0,
    weight=0.5,
)
reduction(
    "any",
    lambda x: (x != 0).any(-1),
    "any",
    dtype="bool",
    rounding="none",
    smooth=False,
    exact=True,
    least=0,
    weight=0.5,
)
reduction("logsumexp", lambda x: x.logsumexp(-1), "float", inner=lambda x: 1 + x.abs().amax(-1))


def variance(x: Tensor, axis: int = -1, correction: int = 0, keepdim: bool = False) -> Tensor:
    """Return the variance, in two passes: torch's is wrong in the 15th digit."""
    squares = (x - x.mean(axis, keepdim=True)).square()
    return squares.sum(axis, keepdim=keepdim) / max(x.shape[axis] - correction, 0)


def _variance(x: Tensor, correction: float = 0) -> Tensor:
    return variance(x, -1, correction)


def _deviation(x: Tensor, correction: float = 0) -> Tensor:
    return _variance(x, correction).sqrt()


def _off(x: Tensor, correction: float = 0) -> Tensor:
    """The square of what the mean may be off by: the sum of n numbers rounds n times."""
    return x.shape[-1] * x.abs().mean(-1).square()


def _off_deviation(x: Tensor, correction: float = 0) -> Tensor:
    return _off(x) / (2 * _deviation(x, correction))


def _draw_spread(d: Any) -> Call:
    x = d.pick(lambda v: v.size >= 2, dtype="float")
    kwargs = draw_axes(d, d.value(x))
    value = d.value(x)
    axes = reduced_axes(value.tensor, kwargs.get("axis"))
    if math.prod(value.shape[a] for a in axes) < 2:
        raise d.missing
    return (x,), {**kwargs, **({"correction": d.choice((1, 0.5))} if d.chance(0.4) else {})}


def _draw_deviation(d: Any) -> Call:
    """The root of a variance that is a rounding error is none that one can compare."""
    (x,), kwargs = _draw_spread(d)
    found = along(_deviation)(d.value(x).tensor, **kwargs)
    if not bool((found > 0.01 * d.value(x).tensor.abs().max()).all()):
        raise d.missing
    return (x,), kwargs


def _squared(function: Callable[..., Tensor]) -> Callable[..., Any]:
    found = along(function)
    return lambda x, **kwargs: ("squared", found(x, **kwargs))


def _variance_slope(shake: Any, x: Tensor, **kwargs: Any) -> Tensor:
    """dx = 2 dy (x - mean) / (n - correction), whose difference cancels."""

    def of_rows(rows: Tensor, correction: float = 0) -> Tensor:
        sizes = rows.detach().abs()
        sizes = sizes + sizes.mean(-1, keepdim=True)
        return 2 * (sizes * shake(rows)).sum(-1) / max(rows.shape[-1] - correction, 1)

    return along(of_rows)(x, **kwargs)


add(
    Row(
        "var", _draw_spread, along(_variance), smooth=True, inner=_squared(_off),
        slope=_variance_slope,
    )
)  # fmt: skip
add(Row("std", _draw_deviation, along(_deviation), inner=_squared(_off_deviation)))
add(
    Row(
        "l2norm", lambda d: ((d.pick(lambda v: v.size > 0, dtype="float"),), {}),
        lambda x: x.square().sum().sqrt(), smooth=False, weight=0.4,
    )
)  # fmt: skip


# Scans.


def _scanned(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 1, dtype="number")
    value = d.value(x)
    dtype = value.dtype if "float" in value.dtype else d.choice(("int64", "int32", "float32"))
    axis = d.int(-value.ndim, value.ndim - 1)
    return (x, axis, dtype), {}


def _held(x: Tensor, dtype: str) -> Tensor:
    return x.double() if "float" in dtype else x.long()


def _cumsum(x: Tensor, axis: int, dtype: str) -> Tensor:
    return _held(x, dtype).cumsum(axis)


def _cumprod(x: Tensor, axis: int, dtype: str) -> Tensor:
    return _held(x, dtype).cumprod(axis)


def _third(operands: Any, args: Any, kwargs: Any) -> str:
    return str(args[2])


add(Row("cumsum", _scanned, _cumsum, _third, "add", smooth=True))


def _few(d: Any) -> Call:
    (x, axis, dtype), kwargs = _scanned(d)
    if d.value(x).shape[axis] > 33:
        raise d.missing
    return (x, axis, dtype), kwargs


add(Row("cumprod", _few, _cumprod, _third, "always", weight=0.5))


def _linear_scan(a: Tensor, b: Tensor, axis: int, reverse: bool = False) -> Tensor:
    parts = list(zip(a.unbind(axis), b.unbind(axis), strict=True))
    found: list[Tensor] = []
    for factor, term in parts[::-1] if reverse else parts:
        found.append(term if not found else factor * found[-1] + term)
    return torch.stack(found[::-1] if reverse else found, axis) if found else a


def _recurrent(d: Any) -> Call:
    a = d.pick(lambda v: v.ndim >= 1 and bool((v.tensor.abs() <= 1).all()), dtype="float")
    value = d.value(a)
    axis = d.int(-value.ndim, value.ndim - 1)
    b = d.like(value.shape, value.dtype)
    return (a, b, axis), {"reverse": True} if d.chance(0.4) else {}


add(Row("linear_scan", _recurrent, _linear_scan, smooth=True))


# Orders: stable, NaN last.


def _order(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    keys = x if x.dtype != torch.bool else x.to(torch.int8)
    return keys.sort(dim=axis, descending=descending, stable=True).indices


def _sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    return x.gather(axis, _order(x, axis, descending))


def _ordered(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 1, dtype="number")
    kwargs: dict[str, Any] = {"axis": d.int(-d.value(x).ndim, d.value(x).ndim - 1)}
    return (x,), {**kwargs, **({"descending": True} if d.chance(0.4) else {})}


add(Row("sort", _ordered, _sort, "same", "none", smooth=True))
add(Row("argsort", _ordered, _order, "int64", "none"))


def _topk_call(d: Any) -> Call:
    (x,), kwargs = _ordered(d)
    k = d.int(0 if d.chance(0.1) else 1, max(1, d.value(x).shape[kwargs["axis"]]))
    if k > d.value(x).shape[kwargs["axis"]]:
        raise d.missing
    smallest = {"largest": False} if d.chance(0.5) else {}
    return (x, k, kwargs["axis"]), smallest


def _topk(x: Tensor, k: int, axis: int, largest: bool = True) -> Any:
    indices = _order(x, axis, largest).narrow(axis, 0, k)
    return x.gather(axis, indices), indices


def _topk_dtypes(operands: Any, args: Any, kwargs: Any) -> Any:
    return [operands[0], "int64"]


add(Row("topk", _topk_call, _topk, _topk_dtypes, "none"))


def _searched(d: Any) -> Call:
    values = d.pick(lambda v: v.ndim >= 1 and v.size > 0, dtype="number")
    dtype = d.value(values).dtype
    steps = sorted(d.elements(dtype, d.int(1, 20), None, None).tolist())
    ladder = d.input(dtype, (len(steps),), values=steps)
    return (ladder, values), {"side": "right"} if d.chance(0.5) else {}


add(
    Row(
        "searchsorted", _searched,
        lambda s, v, side="left": torch.searchsorted(s.contiguous(), v.contiguous(), side=side),
        "int64", "none", weight=0.6,
    )
)  # fmt: skip
