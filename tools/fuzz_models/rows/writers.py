"""Operators that write arguments in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tools.fuzz_models.rows.norm import along, finite, with_mean
from tools.fuzz_models.rows.reduction import variance
from tools.fuzz_models.rows.row import Call, Row, add


def _writable(d: Any, *fits: Any) -> Any:
    return d.pick(lambda v: not v.fixed and v.size > 0, *fits, dtype="float")


def _state(d: Any, value: Any, others: list[Any], low: float | None = None) -> Any:
    """Return another value of the type that may be written, of memory that no other has."""
    cells = [d.value(o).cell for o in others]

    def apart(v: Any) -> bool:
        return not v.fixed and v.shape == value.shape and all(v.cell is not c for c in cells)

    if low is None and d.chance(0.5):
        try:
            return d.pick(apart, dtype=value.dtype)
        except d.missing:
            pass
    count = value.tensor.numel()
    values = d.elements(value.dtype, count, low, None if low is None else 3.0)
    return d.input(value.dtype, value.shape, values=values)


def _sgd_call(d: Any) -> Call:
    x = _writable(d)
    value = d.value(x)
    v = _state(d, value, [x])
    dx = d.like(value.shape, value.dtype)
    return (x, dx, v, d.choice((0.5, 0.25)), d.choice((0.0, 0.5))), {}


def _sgd(x: Tensor, dx: Tensor, v: Tensor, rate: float, mu: float) -> Any:
    new = mu * v + dx
    return x - rate * new, new


add(
    Row(
        "sgd", _sgd_call, _sgd, lambda o, a, k: [o[0], o[2]], writes=(0, 2), weight=2.0,
    )
)  # fmt: skip


def _adam_call(d: Any) -> Call:
    x = _writable(d)
    value = d.value(x)
    m = _state(d, value, [x])
    if not finite(d.value(m)):
        raise d.missing  # torch's lerp, m + (1 - beta) * (dx - m), makes NaN of an infinite m
    v = _state(d, value, [x, m], 0.5)
    dx = d.like(value.shape, value.dtype)
    return (x, dx, m, v, d.int(1, 3), d.choice((0.5, 0.125))), {}


def _adam(
    x: Tensor,
    dx: Tensor,
    m: Tensor,
    v: Tensor,
    step: int,
    rate: float,
    decay: float = 0.0,
    decoupled: float = 0.0,
) -> Any:
    b1, b2, eps = 0.9, 0.999, 1e-8
    if not decoupled:
        dx = dx + decay * x  # NaN of an infinite x, without decay, too
    m, v = b1 * m + (1 - b1) * dx, b2 * v + (1 - b2) * dx * dx
    x = x - rate * decoupled * x
    return x - rate * (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + eps), m, v


def _adam_inner(*args: Any, **kwargs: Any) -> list[Any]:
    """1 - beta2**step is small, and has the rounding of what is near 1, in float64."""
    return [("float64", 1000 * (_adam(*args)[0] - args[0]).abs()), None, None]


def _three(o: Any, a: Any, k: Any) -> list[str]:
    return [o[0], o[2], o[3]]


add(Row("adam", _adam_call, _adam, _three, writes=(0, 2, 3), weight=0.6, inner=_adam_inner))
add(
    Row(
        "adamw", _adam_call, lambda *args: _adam(*args, decoupled=0.01), _three,
        writes=(0, 2, 3), weight=0.6, inner=_adam_inner,
    )
)  # fmt: skip


def _axpby_call(d: Any) -> Call:
    y = _writable(d)
    value = d.value(y)
    pairs = [(d.like(value.shape, value.dtype), y)]
    if d.chance(0.5):
        z = _state(d, value, [y])
        pairs.append((d.like(value.shape, value.dtype), z))
    cells = [d.value(y).cell for _, y in pairs]
    if any(d.value(x).cell is c for x, _ in pairs for c in cells):
        raise d.missing
    xs, ys = zip(*pairs, strict=True)
    return (xs, ys, d.choice((0.5, 2.0, -1.0)), d.choice((0.0, 1.0, 0.5))), {}


add(
    Row(
        "multi_tensor_axpby", _axpby_call,
        lambda xs, ys, alpha, beta: [  # what is multiplied by 0 does not count
            alpha * x + (beta * y if beta else 0) for x, y in zip(xs, ys, strict=True)
        ],
        lambda o, a, k: list(o[len(a[0]) :]), writes=(1,), weight=0.8,
    )
)  # fmt: skip


def _batch_call(d: Any) -> Call:
    # A mean is of the distances from the first element, which may be infinite.
    x = d.pick(lambda v: v.ndim >= 2 and v.size > 0 and finite(v), dtype="float")
    value = d.value(x)
    axis = d.choice((1, 1, 0, -1))
    c = value.shape[axis]
    if value.size <= c:
        raise d.missing
    mean = d.input(value.dtype, (c,), values=d.elements(value.dtype, c, None, None))
    var = d.input(value.dtype, (c,), values=d.elements(value.dtype, c, 0.5, 3.0))
    given = (d.like((c,), value.dtype), d.like((c,), value.dtype)) if d.chance(0.6) else ()
    return (x, mean, var, *given), {"axis": axis}


def _batch_train(
    x: Tensor, mean: Tensor, var: Tensor, w: Any = None, b: Any = None, axis: int = 1
) -> Any:
    rows = x.movedim(axis, 0).reshape(x.shape[axis], -1)
    m, v = rows.mean(1), variance(rows, 1)
    y = (x - along(m, x, axis)) / (along(v, x, axis) + 1e-5).sqrt()
    if w is not None:
        y = y * along(w, x, axis) + along(b, x, axis)
    n = rows.shape[1]
    return y, 0.9 * mean + 0.1 * m, 0.9 * var + 0.1 * v * n / (n - 1)


def _batch_inner(
    x: Tensor, mean: Tensor, var: Tensor, w: Any = None, b: Any = None, axis: int = 1
) -> list[Any]:
    rows = x.movedim(axis, 0).reshape(x.shape[axis], -1)
    inv = (variance(rows, 1) + 1e-5).rsqrt()
    sizes = with_mean(rows.abs(), 1)
    found = (sizes * inv[:, None]).reshape(x.movedim(axis, 0).shape).movedim(0, axis)
    return [found if w is None else found * along(w, x, axis).abs(), 0.1 * sizes.mean(1), None]


add(
    Row(
        "batch_norm_train", _batch_call, _batch_train, lambda o, a, k: [o[0], o[1], o[2]],
        writes=(1, 2), weight=1.0, inner=_batch_inner,
    )
)  # fmt: skip
