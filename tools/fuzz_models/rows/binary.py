"""Elementwise operators of two or more tensors or numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tools.fuzz_models.draw_operands import away_from_zero, other_operand
from tools.fuzz_models.rows.row import Call, Row, add


def t(x: Any, like: Any) -> Tensor:
    """Return an operand as a tensor."""
    return x if isinstance(x, Tensor) else torch.tensor(x, dtype=like.dtype)


def of_two(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of tensors to a pair of which one may be a number."""

    def reference(a: Any, b: Any) -> Any:
        like = a if isinstance(a, Tensor) else b
        return function(t(a, like), t(b, like))

    return reference


def binary(
    name: str,
    reference: Callable[..., Any],
    kind: str = "float",
    *,
    rounding: str = "always",
    dtype: Any = "same",
    smooth: bool = True,
    exact: bool = False,
    weight: float = 0.8,
    domain: Callable[[Tensor, Tensor], Tensor] | None = None,
    magnitude: Any = None,
) -> None:
    """Add an operator of two operands; ``domain``: for which all of them it is well defined."""

    def draw(d: Any) -> Call:
        x, y = other_operand(d, kind, exact, domain)
        return (x, y), {}

    add(
        Row(
            name,
            draw,
            of_two(reference),
            dtype,
            rounding,
            smooth=smooth,
            weight=weight,
            magnitude=magnitude,
        )
    )


def _sum_of_sizes(args: Any, kwargs: Any) -> Any:
    a, b = (torch.as_tensor(x).abs() for x in args[:2])
    return a + b


def _add(a: Tensor, b: Tensor) -> Tensor:
    return a | b if a.dtype == torch.bool else a + b


binary("add", _add, "any", rounding="add", weight=4, magnitude=_sum_of_sizes)
binary("subtract", torch.sub, "number", rounding="add", weight=3, magnitude=_sum_of_sizes)
binary("multiply", torch.mul, "any", rounding="product", weight=4)
binary("maximum", torch.maximum, "any", rounding="none", weight=1.5)
binary("minimum", torch.minimum, "any", rounding="none", weight=1.5)
binary(
    "divide",
    lambda a, b: a.double() / b.double(),
    "number",
    dtype="float",
    domain=lambda a, b: away_from_zero(b),
    weight=2,
)
binary(
    "pow",
    torch.pow,
    "float",
    domain=lambda a, b: (a > 0.1) & (a < 8) & (b.abs() < 4),
)


def _integer_power(d: Any) -> Call:
    x = d.pick(lambda v: bool((v.tensor.abs() <= 5).all()), dtype="int")
    return (x, d.choice((0, 1, 2, 3))), {}


for _name, _reference in (
    ("less", torch.lt),
    ("less_equal", torch.le),
    ("greater", torch.gt),
    ("greater_equal", torch.ge),
):
    binary(_name, _reference, "any", rounding="none", dtype="bool", smooth=False)
for _name, _reference in (("equal", torch.eq), ("not_equal", torch.ne)):
    binary(_name, _reference, "any", rounding="none", dtype="bool", smooth=False, exact=True)
for _name, _reference in (
    ("logical_and", torch.logical_and),
    ("logical_or", torch.logical_or),
    ("logical_xor", torch.logical_xor),
):
    binary(_name, _reference, "any", rounding="none", dtype="bool", smooth=False, exact=True)


def _nonzero(a: Tensor, b: Tensor) -> Tensor:
    return b != 0


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


binary(
    "floor_divide",
    _floor_divide,
    "number",
    rounding="round",
    smooth=False,
    exact=True,
    domain=_nonzero,
)
binary(
    "remainder",
    torch.remainder,
    "number",
    rounding="round",
    smooth=False,
    exact=True,
    domain=_nonzero,
)
binary("fmod", torch.fmod, "float", rounding="none", smooth=False, exact=True, domain=_nonzero)
binary("copysign", torch.copysign, rounding="none", smooth=False, domain=lambda a, b: b != 0)
binary("fmax", torch.fmax, rounding="none")
binary("fmin", torch.fmin, rounding="none")
binary("heaviside", torch.heaviside, rounding="none", smooth=False, exact=True)
binary("hypot", torch.hypot, domain=lambda a, b: a.abs() + b.abs() > 0.1)
binary("logaddexp", torch.logaddexp)
binary("logaddexp2", torch.logaddexp2)
binary("atan2", torch.atan2, domain=lambda a, b: (a.abs() > 0.06) & (b.abs() > 0.06))
binary("xlogy", torch.xlogy, domain=lambda a, b: b > 0.06)
binary("xlog1py", torch.special.xlog1py, domain=lambda a, b: b > -0.9)
binary("ldexp", torch.ldexp, domain=lambda a, b: b.abs() <= 5)
for _name, _reference in (
    ("bitwise_and", torch.bitwise_and),
    ("bitwise_or", torch.bitwise_or),
    ("bitwise_xor", torch.bitwise_xor),
):
    binary(_name, _reference, "int", rounding="none", smooth=False, weight=0.5)


def _shift_domain(a: Tensor, b: Tensor) -> Tensor:
    return (b >= 0) & (b < 7)


binary(
    "bitwise_left_shift",
    torch.bitwise_left_shift,
    "int",
    rounding="none",
    smooth=False,
    domain=_shift_domain,
    weight=0.5,
)
binary(
    "bitwise_right_shift",
    torch.bitwise_right_shift,
    "int",
    rounding="none",
    smooth=False,
    domain=_shift_domain,
    weight=0.5,
)


def _where(d: Any) -> Call:
    x, y = other_operand(d, "any", False, None)
    ref = x if not isinstance(x, (int, float)) else y
    shape = d.value(ref).shape
    try:
        condition = d.pick(lambda v: d.fit(v.shape, shape), dtype="bool")
    except d.missing:
        condition = d.input("bool", shape)
    return (condition, x, y), {}


def _where_reference(condition: Tensor, x: Any, y: Any) -> Tensor:
    like = x if isinstance(x, Tensor) else y
    return torch.where(condition, t(x, like), t(y, like))


add(
    Row(
        "where", _where, _where_reference,
        lambda o, args, kwargs: o[1], "none", smooth=True, weight=2,
    )
)  # fmt: skip


def _ternary(d: Any) -> Call:
    x = d.pick(dtype="float")
    value = d.value(x)
    others = [d.like(value.shape, value.dtype) for _ in range(2)]
    return (x, *others), {"value": d.choice((0.5, 2.0, -1.0))}


def _divided(d: Any) -> Call:
    (x, a, b), kwargs = _ternary(d)
    if not bool(away_from_zero(d.value(b).tensor).all()):
        raise d.missing
    return (x, a, b), kwargs


add(Row("addcmul", _ternary, lambda x, a, b, value: x + value * a * b, smooth=True))
add(Row("addcdiv", _divided, lambda x, a, b, value: x + value * a / b, smooth=True))


def _lerp(d: Any) -> Call:
    x = d.pick(dtype="float")
    value = d.value(x)
    return (x, d.like(value.shape, value.dtype), d.choice((0.25, 0.5, 0.75))), {}


add(Row("lerp", _lerp, torch.lerp, smooth=True))


def _prelu(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 2, dtype="float")
    value = d.value(x)
    return (x, d.like(value.shape[1:2], value.dtype)), {}


def _prelu_reference(x: Tensor, weight: Tensor) -> Tensor:
    w = weight.reshape(1, -1, *(1,) * (x.ndim - 2))
    return torch.where(x > 0, x, w * x)


add(Row("prelu", _prelu, _prelu_reference, smooth=True))
