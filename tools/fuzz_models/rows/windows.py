"""Convolutions, pooling and resizing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tools.fuzz_models.rows.row import Call, Row, add

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _image(d: Any, n: int, limit: int = 4000) -> tuple[Any, Any]:
    x = d.pick(lambda v: 0 < v.size <= limit, dtype="float", ndim=n + 2)
    return x, d.value(x)


def _conv_call(n: int, transposed: bool) -> Any:
    def draw(d: Any) -> Call:
        x, value = _image(d, n)
        c = value.shape[1]
        groups = d.choice([g for g in (1, 1, 2, c) if c % g == 0])
        window = tuple(d.int(1, min(3, e)) for e in value.shape[2:])
        out = d.choice((1, 2, 3)) * groups
        if c * out > 600:
            raise d.missing
        shape = (c, out // groups, *window) if transposed else (out, c // groups, *window)
        kwargs: dict[str, Any] = {}
        if d.chance(0.5):
            kwargs["stride"] = d.choice((1, 2))
        if d.chance(0.5):
            kwargs["padding"] = d.int(0, min(window) - 1) if transposed else d.int(0, 2)
        if groups > 1:
            kwargs["groups"] = groups
        if (
            d.chance(0.2)
            and not transposed
            and all((w - 1) * 2 < e for w, e in zip(window, value.shape[2:], strict=True))
        ):
            kwargs["dilation"] = 2
        weight = d.like(shape, value.dtype)
        if not bool(d.value(weight).tensor.isfinite().all()):
            raise d.missing  # the zeros around x are multiplied, or they are not
        return (x, weight), kwargs

    return draw


for _n in (1, 2, 3):
    add(
        Row(
            f"conv{_n}d", _conv_call(_n, False),
            lambda x, w, n=_n, **kwargs: CONV[n](x, w, **kwargs), "same", "product", smooth=True,
            weight=2.0 if _n == 2 else 0.8,
        )
    )  # fmt: skip
    add(
        Row(
            f"conv_transpose{_n}d", _conv_call(_n, True),
            lambda x, w, n=_n, **kwargs: TRANSPOSED[n](x, w, **kwargs), "same", "product",
            smooth=True, weight=0.6,
        )
    )  # fmt: skip


# Pooling.


def _pool_call(n: int) -> Any:
    def draw(d: Any) -> Call:
        x, value = _image(d, n)
        kernel = tuple(d.int(1, min(3, e)) for e in value.shape[2:])
        stride = d.choice((1, 2, 3))
        kwargs: dict[str, Any] = {}
        if min(kernel) > 1 and d.chance(0.4):
            kwargs["padding"] = min(kernel) // 2
        return (x, kernel if n > 1 else kernel[0], stride), kwargs

    return draw


def _average(n: int) -> Any:
    pools = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
    return lambda x, kernel, stride, padding=0: pools[n](x, kernel, stride, padding)


def _maximum(n: int) -> Any:
    pools = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
    return lambda x, kernel, stride, padding=0: pools[n](x, kernel, stride, padding)


def _adaptive_call(n: int) -> Any:
    def draw(d: Any) -> Call:
        x, _ = _image(d, n)
        return (x, tuple(d.int(1, 4) for _ in range(n)) if n > 1 else d.int(1, 4)), {}

    return draw


_ADAPTIVE = {
    ("avg", 1): F.adaptive_avg_pool1d, ("avg", 2): F.adaptive_avg_pool2d,
    ("avg", 3): F.adaptive_avg_pool3d, ("max", 1): F.adaptive_max_pool1d,
    ("max", 2): F.adaptive_max_pool2d, ("max", 3): F.adaptive_max_pool3d,
}  # fmt: skip
for _n in (1, 2, 3):
    add(Row(f"avg_pool{_n}d", _pool_call(_n), _average(_n), smooth=True, weight=0.6))
    add(
        Row(
            f"max_pool{_n}d", _pool_call(_n), _maximum(_n), rounding="none", smooth=True, weight=0.6
        )
    )
    add(
        Row(
            f"adaptive_avg_pool{_n}d", _adaptive_call(_n),
            lambda x, shape, n=_n: _ADAPTIVE["avg", n](x, shape), smooth=True, weight=0.4,
        )
    )  # fmt: skip
    add(
        Row(
            f"adaptive_max_pool{_n}d", _adaptive_call(_n),
            lambda x, shape, n=_n: _ADAPTIVE["max", n](x, shape), rounding="none", smooth=True,
            weight=0.4,
        )
    )  # fmt: skip


# Resizing, at the half pixel centres of torch.


def _resize_call(d: Any) -> Call:
    x, value = _image(d, 2, 1500)
    if not bool(value.tensor.isfinite().all()):
        raise d.missing  # an infinite element is taken 0 times, or is not taken
    size = (d.int(1, 9), d.int(1, 9))
    return (x, size), {"method": d.choice(("linear", "cubic"))}


def _resize(x: Tensor, size: tuple[int, int], method: str) -> Tensor:
    if method == "linear":
        return F.interpolate(x, size, mode="bilinear", align_corners=False)
    rows, columns = (_cubic(n, m) for n, m in zip(x.shape[2:], size, strict=True))
    return torch.einsum("ai,ncij,bj->ncab", rows, x, columns)


def _cubic(extent: int, wanted: int, a: float = -0.5) -> Tensor:
    """Return the matrix that interpolates by Keys' cubic kernel; what is outside is the edge."""
    matrix = torch.zeros(wanted, extent, dtype=torch.float64)
    for i in range(wanted):
        at = (i + 0.5) * extent / wanted - 0.5
        low = int(torch.floor(torch.tensor(at, dtype=torch.float64)))
        for j in range(low - 1, low + 3):
            t = abs(at - j)
            if t <= 1:
                w = (a + 2) * t**3 - (a + 3) * t**2 + 1
            else:
                w = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0
            matrix[i, min(max(j, 0), extent - 1)] += w
    return matrix


def _resize_inner(x: Tensor, size: tuple[int, int], method: str) -> Tensor:
    """A place between two elements rounds as the extent does, and is then taken apart."""
    return max(x.shape[2:]) * x.abs().amax((2, 3), keepdim=True)


add(Row("resize2d", _resize_call, _resize, smooth=True, weight=0.7, inner=_resize_inner))
