"""Lists of tensors."""

from __future__ import annotations

import pytest
import torch

from tests.frontend.aten.calls import Call, call, check

X = [torch.tensor([[0.5, -1.5]]), torch.tensor([2.5, 0.25, 1.0])]
Y = [torch.tensor([[2.0, 3.0]]), torch.tensor([1.0, 0.5, -2.0])]
P = [x.abs() for x in X]
ONE = torch.tensor(2.0)
UNARY = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc max
"""
CASES = [
    *(call(f"_foreach_{name}", [x.clamp(0.1, 0.9) for x in P]) for name in UNARY.split()),
    *(
        call(f"_foreach_{name}.{form}", X, other)
        for name in ("add", "sub", "mul", "div", "clamp_max", "clamp_min", "minimum", "maximum")
        for form, other in (("List", Y), ("Scalar", 2), ("ScalarList", [0.5, -1.0]))
    ),
    call("_foreach_add.List", X, Y, alpha=3),
    call("_foreach_sub.List", X, Y, alpha=0.5),
    call("_foreach_add.Tensor", X, ONE, alpha=3),
    call("_foreach_mul.Tensor", X, ONE),
    call("_foreach_div.Tensor", X, ONE),
    call("_foreach_pow.List", P, Y),
    call("_foreach_pow.Scalar", X, 2),
    call("_foreach_pow.ScalarList", P, [0.5, 3]),
    call("_foreach_pow.ScalarAndTensor", 2, X),
    *(
        case
        for name in ("addcmul", "addcdiv")
        for case in (
            call(f"_foreach_{name}.Scalar", X, X, Y, 0.5),
            call(f"_foreach_{name}.ScalarList", X, X, Y, [0.5, 2.0]),
            call(f"_foreach_{name}.Tensor", X, X, Y, torch.tensor([0.5, 2.0])),
        )
    ),
    call("_foreach_lerp.List", X, Y, P),
    call("_foreach_lerp.Scalar", X, Y, 0.25),
    call("_foreach_lerp.ScalarList", X, Y, [0.25, 0.5]),
    call("_foreach_norm.Scalar", X),
    call("_foreach_norm.Scalar", X, float("inf")),
    call("_foreach_mm", [Y[0].T], [X[0]]),
    call("_foreach_clone", X),
    call("_foreach_copy", X, [Y[0].half(), Y[1]]),
    call("_foreach_zero", X),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)
