"""Elementwise operators of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tools.fuzz_models.rows.row import Call, Row, add

Domain = Callable[[Tensor], Tensor]


def _draw(kind: str, domain: Domain | None, extra: dict[str, Any]) -> Callable[[Any], Call]:
    def draw(d: Any) -> Call:
        fits = [] if domain is None else [lambda v: bool(domain(v.tensor.double()).all())]
        kwargs = {k: d.choice(v) for k, v in extra.items() if d.chance(0.6)}
        return (d.pick(*fits, dtype=kind),), kwargs

    return draw


def unary(
    name: str,
    reference: Callable[..., Any],
    domain: Domain | None = None,
    kind: str = "float",
    *,
    dtype: str = "same",
    rounding: str = "always",
    smooth: bool = True,
    weight: float = 0.6,
    **extra: Any,
) -> None:
    """Add an operator; ``extra``: optional arguments and what to choose each from."""
    draw = _draw(kind, domain, extra)
    inner, slope = INNER.get(name), _slope(name)
    add(
        Row(
            name, draw, reference, dtype, rounding, smooth=smooth, weight=weight, inner=inner,
            slope=slope,
        )
    )  # fmt: skip


def _slope(name: str) -> Callable[..., Any] | None:
    size = SLOPE.get(name)
    return None if size is None else lambda shake, x, **kwargs: size(x.detach()) * shake(x)


def _inside(low: float, high: float) -> Domain:
    return lambda x: (x > low) & (x < high)


def _away(x: Tensor) -> Tensor:
    return x.abs() > 0.06


def _one(x: Tensor, **kwargs: Any) -> float:
    return 1.0


def _size(x: Tensor, **kwargs: Any) -> Tensor:
    return x.abs()


class _Digamma(torch.autograd.Function):
    """torch's derivative, polygamma(1, x), is right to 1e-9 only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.digamma(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return dy * torch.special.zeta(2.0, x)


def digamma(x: Tensor) -> Tensor:
    """Return digamma of positive numbers."""
    return _Digamma.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def sinc(x: Tensor) -> Tensor:
    """Return sin(pi x) / (pi x), with a derivative that does not cancel: its series beside 0."""
    near = x.abs() < 0.3
    z = (math.pi * torch.where(near, x, 0.0)).square()
    series = torch.zeros_like(z)
    for k in reversed(range(12)):
        series = (-1) ** k / math.factorial(2 * k + 1) + z * series
    return torch.where(near, series, torch.sinc(torch.where(near, 1.0, x)))


# What they subtract cancels: 1 + erf(x), exp(x) - 1, and sums beside a zero of the function.
INNER = {
    "gelu": _size, "tanhshrink": _size, "ndtr": _one, "elu": _one, "celu": _one, "selu": _one,
    "logit": _one, "digamma": _one, "lgamma": _one, "erfc": _one,
}  # fmt: skip
# How large the numbers are that cancel inside of the derivative, given x: 1 - y * y, y + 1.
SLOPE: dict[str, Callable[[Tensor], Any]] = {
    **dict.fromkeys(("tanh", "sigmoid", "tanhshrink", "expm1", "softplus", "logsigmoid"), _one),
    **dict.fromkeys(("elu", "celu", "selu"), lambda x: 2.0),
    **dict.fromkeys(("silu", "mish", "hardswish"), lambda x: 1 + x.abs()),
    **dict.fromkeys(("i0e", "i1e"), _one),
    "i1": torch.special.i0,
    "gelu": lambda x: 1 + x.abs() + x.abs() ** 3,
    "entr": lambda x: 1 + x.log().abs(),
    "lgamma": lambda x: 1 + 1 / x,
    "sinc": lambda x: 2 / x.abs().clamp_min(0.25),
}
POSITIVE = _inside(0.06, math.inf)
UNIT = _inside(-0.95, 0.95)
SMALL = _inside(-9.0, 9.0)

# Of ints they are float32.
for _name, _reference, _domain in (
    ("acos", torch.acos, UNIT),
    ("acosh", torch.acosh, _inside(1.05, math.inf)),
    ("asin", torch.asin, UNIT),
    ("asinh", torch.asinh, None),
    ("atan", torch.atan, None),
    ("atanh", torch.atanh, UNIT),
    ("cos", torch.cos, _inside(-50.0, 50.0)),
    ("cosh", torch.cosh, SMALL),
    ("deg2rad", torch.deg2rad, None),
    ("rad2deg", torch.rad2deg, None),
    ("digamma", digamma, _inside(0.2, 60.0)),
    ("erf", torch.erf, None),
    ("erfc", torch.erfc, _inside(-50.0, 2.5)),
    ("erfinv", torch.erfinv, UNIT),
    ("exp", torch.exp, _inside(-30.0, 6.0)),
    ("exp2", torch.exp2, _inside(-30.0, 6.0)),
    ("expm1", torch.expm1, _inside(-30.0, 6.0)),
    ("i0", torch.special.i0, _inside(-5.0, 5.0)),
    ("i0e", torch.special.i0e, _inside(-60.0, 60.0)),
    ("i1", torch.special.i1, _inside(-5.0, 5.0)),
    ("i1e", torch.special.i1e, _inside(-60.0, 60.0)),
    ("lgamma", torch.lgamma, _inside(0.2, 60.0)),
    ("log", torch.log, POSITIVE),
    ("log10", torch.log10, POSITIVE),
    ("log1p", torch.log1p, _inside(-0.95, math.inf)),
    ("log2", torch.log2, POSITIVE),
    ("logit", torch.logit, _inside(0.05, 0.95)),
    ("ndtr", torch.special.ndtr, _inside(-2.5, 50.0)),
    ("reciprocal", torch.reciprocal, _away),
    ("rsqrt", torch.rsqrt, POSITIVE),
    ("sigmoid", torch.sigmoid, _inside(-30.0, 1e9)),
    ("sin", torch.sin, _inside(-50.0, 50.0)),
    ("sinc", sinc, _inside(-15.0, 15.0)),
    ("sinh", torch.sinh, SMALL),
    ("sqrt", torch.sqrt, POSITIVE),
    ("tan", torch.tan, _inside(-1.4, 1.4)),
    ("tanh", torch.tanh, None),
):
    unary(_name, _reference, _domain, "number" if _name in (
        "cos", "sin", "tanh", "exp", "sigmoid", "sqrt", "log", "atan", "erf", "log1p", "reciprocal",
        "rsqrt", "asinh", "exp2",
    ) else "float", dtype="float")  # fmt: skip

unary(
    "gelu",
    lambda x, approximate="none": F.gelu(x, approximate=approximate),
    torch.isfinite,  # -inf * 0, or times what 1 + tanh(-inf) rounds to
    approximate=("none", "tanh"),
    weight=1.0,
)
unary("trigamma", lambda x: torch.special.zeta(2.0, x), _inside(0.3, 60.0), smooth=False)
unary("entr", torch.special.entr, POSITIVE)
unary("relu", torch.relu, kind="number", rounding="none", weight=1.0)
unary("relu6", F.relu6, rounding="none")
unary("abs", torch.abs, kind="number", rounding="none")
unary("negative", torch.neg, kind="number", rounding="none", weight=1.0)
unary("copy", torch.clone, kind="any", rounding="none")
unary("square", torch.square, kind="number", rounding="product")
unary(
    "elu",
    lambda x, alpha=1.0: torch.where(x > 0, x, alpha * torch.expm1(x.clamp_max(0))),
    alpha=(0.5, 2.0),
)
unary("celu", lambda x, alpha=1.0: F.celu(x, alpha), alpha=(0.5, 2.0))
unary("selu", torch.selu)
unary("silu", F.silu)
unary("mish", F.mish)
unary("softplus", lambda x, beta=1.0: F.softplus(x, beta), _inside(-15.0, 8.0), beta=(0.5, 2.0))
unary("hardswish", lambda x: x * (x + 3).clamp(0, 6) / 6)
unary("hardsigmoid", lambda x: (x + 3).clamp(0, 6) / 6)
unary("leaky_relu", F.leaky_relu, negative_slope=(0.25, 0.5))
unary("logsigmoid", F.logsigmoid, _inside(-1e9, 15.0))
unary("softsign", F.softsign)
unary("tanhshrink", F.tanhshrink)
unary("hardshrink", lambda x, lambd=0.5: F.hardshrink(x, lambd), rounding="none", lambd=(0.25, 1.0))
unary("softshrink", lambda x, lambd=0.5: F.softshrink(x, lambd), rounding="add", lambd=(0.25, 1.0))
unary(
    "threshold",
    lambda x, threshold=0.0, value=0.0: F.threshold(x, threshold, value),
    kind="number",
    rounding="none",
    threshold=(1, 2),
    value=(3, 1),
)
for _name, _jump in (
    ("ceil", torch.ceil),
    ("floor", torch.floor),
    ("round", torch.round),
    ("trunc", torch.trunc),
):
    unary(
        _name,
        lambda x, f=_jump: f(x) if x.is_floating_point() else x,
        kind="number",
        rounding="none",
        smooth=False,
    )
unary(
    "sign",
    torch.sign,
    kind="number",
    rounding="none",
    smooth=False,
)
unary("frac", torch.frac, rounding="none", smooth=False)
for _name in ("isfinite", "isinf", "isnan", "isneginf", "isposinf"):
    unary(_name, getattr(torch, _name), dtype="bool", rounding="none", smooth=False, weight=0.3)
unary("bitwise_invert", torch.bitwise_not, kind="int", rounding="none", smooth=False)


def _clip(d: Any) -> Call:
    x = d.pick(dtype="number")
    unsigned = d.value(x).dtype == "uint8"
    low = d.choice((1, 2)) if unsigned else d.choice((-2, -1, 0))
    return (x, low, d.choice((3, 2, 4))), {}


add(Row("clip", _clip, lambda x, a, b: x.clamp(a, b), "same", "none", smooth=True))


def _exactly(d: Any, kind: str = "any") -> Any:
    return d.pick(lambda v: v.exact, dtype=kind)


add(Row("logical_not", lambda d: ((_exactly(d),), {}), torch.logical_not, "bool", "none"))
add(
    Row(
        "signbit",
        lambda d: ((d.pick(lambda v: bool((v.tensor != 0).all()), dtype="float"),), {}),
        torch.signbit, "bool", "none", weight=0.3,
    )
)  # fmt: skip
add(
    Row(
        "nan_to_num",
        lambda d: ((d.pick(dtype="float"),), {"nan": 1.0, "posinf": 2.0, "neginf": -2.0}),
        torch.nan_to_num, "same", "none", weight=0.4,
    )
)  # fmt: skip
