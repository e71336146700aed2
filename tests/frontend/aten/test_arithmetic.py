"""Arithmetic, comparisons and choosing: what torch's samples do not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check, check_symbolic

F = torch.tensor([-2.5, -0.5, 0.0, 1.5, float("nan"), float("inf")])
H, B = F.half(), F.bfloat16()
I = torch.tensor([-7, -1, 0, 3, 8])  # noqa: E741
U = torch.tensor([0, 3, 200, 255], dtype=torch.uint8)
BOOLS = torch.tensor([True, False, True])
C = torch.tensor([1 + 2j, -3j, 0j])
HALF = torch.tensor(0.5, dtype=torch.float64)

CASES = [
    call("add.Tensor", U, 100, label="integers wrap"),
    call("add.Tensor", F, HALF, label="0-d tensors do not decide"),
    call("add.Tensor", I, HALF, label="a 0-d tensor of another kind does"),
    call("add.Tensor", BOOLS, BOOLS, label="bools"),
    call("add.Tensor", BOOLS, 2, label="a number raises the kind"),
    call("add.Tensor", F, I[:1], alpha=3),
    call("add.Tensor", F, 2, alpha=0.5),
    call("add.Scalar", I, 2, alpha=3),
    call("add.Tensor", C, 1j, label="a complex number"),
    call("add.Tensor", F, 1j, label="a complex number with real ones"),
    call("mul.Tensor", C, F[:3]),
    call("mul.Tensor", U, 300, label="a number wraps"),
    call("mul.Tensor", H, 1e5, label="a number beyond half precision"),
    call("sub.Tensor", H, B, label="two kinds of half precision"),
    call("rsub.Scalar", I, 10, alpha=2),
    call("rsub.Tensor", F, I[:1]),
    call("div.Tensor", I, 2),
    call("div.Tensor", C, 2),
    call("div.Tensor", BOOLS, BOOLS[:1]),
    *(
        call("div.Tensor_mode", x, y, rounding_mode=mode, label=f"{x.dtype} {mode}")
        for x, y in ((I, 3), (I, -3), (F, -0.7), (I.int(), torch.tensor([4])))
        for mode in (None, "trunc", "floor")
    ),
    call("floor_divide", I, -3),
    *(
        call(name, x.to(dtype), y.to(dtype), label=str(dtype))
        for name in ("gcd", "lcm")
        for x, y in ((torch.arange(-60, 60).reshape(-1, 1), torch.tensor([-18, 0, 7, 12, 97])),)
        for dtype in (torch.int8, torch.int32, torch.int64)
    ),
    call("floor_divide.Scalar", F, -0.7),
    call("remainder.Scalar", I, -3),
    call("remainder.Scalar", F, -0.7),
    call("remainder.Scalar_Tensor", 7, torch.tensor([-3, 2])),
    call("fmod.Scalar", I, 3),
    call("fmod.Tensor", F, torch.tensor(-0.7)),
    call("pow.Tensor_Scalar", I, 2),
    call("pow.Tensor_Scalar", I, 0.5),
    *(call("pow.Tensor_Scalar", F, p, label=str(p)) for p in (2, 0.5, -0.5, -1, 3, 0, -2)),
    call("clamp", I, None, 2.5),
    call("clamp", U, 3),
    call("pow.Scalar", 2, I.abs()),
    call("pow.Tensor_Tensor", C, C),
    call("float_power.Tensor_Scalar", F, 2),
    call("float_power.Tensor_Scalar", I, 2),
    call("float_power.Tensor_Scalar", C, 2),
    call("ldexp.Tensor", F, I[:1]),
    call("maximum", F, F.flip(0)),
    call("fmax", F, F.flip(0)),
    call("clamp", F, -1),
    call("clamp", F, None, 1),
    call("clamp", F, 1, -1, label="the upper bound counts"),
    call("clamp", I, -1.5, 2.5, label="broken bounds of integers"),
    call("clamp", I, -3, 2),
    call("clamp", F, float("nan"), 1),
    call("clamp.Tensor", F, torch.tensor(-1), None),
    call("clamp.Tensor", I, torch.tensor(-0.5), torch.tensor(2.5)),
    call("clamp_min", I, 1),
    call("clamp_max.Tensor", F, torch.tensor([0.0])),
    call("lerp.Scalar", F, F.flip(0), 0.25),
    call("addcmul", I, I, I, value=3),
    call("addcdiv", F, F, F + 1, value=2),
    call("lerp.Scalar", C, C.flip(0), 0.25),
    call("lerp.Tensor", C, C.flip(0), C * 2),
    call("addcmul", C, C, C, value=2),
    call("addcdiv", C, C, C + 3, value=2j),
    call("sin", I),
    call("sqrt", BOOLS),
    call("exp", C),
    call("abs", C),
    call("sgn", C),
    call("round", H),
    call("round.decimals", F, decimals=1),
    call("round.decimals", F * 100, decimals=-1),
    *(call("frexp.Tensor", x, label=str(x.dtype)) for x in (F, F.double(), H, B, F * 1e-39)),
    call("nan_to_num", F),
    call("nan_to_num", H, 1.0, 2.0, -2.0),
    call("nan_to_num", I),
    call("square", I),
    call("eq.Tensor", I, F[:1]),
    call("lt.Scalar", I, 0.5, label="an integer and a broken number"),
    call("ge.Scalar", U, 3),
    call("ne.Scalar", C, 1 + 2j),
    call("eq.Scalar", BOOLS, 1),
    call("logical_and", I, F[:1]),
    call("logical_not", C),
    call("bitwise_and.Tensor", I, BOOLS[:1]),
    call("bitwise_or.Scalar_Tensor", 5, I),
    call("bitwise_xor.Scalar", BOOLS, True),
    call("__lshift__.Scalar", I, 65, label="beyond the width"),
    call("__rshift__.Tensor", I, torch.tensor([-1])),
    call("bitwise_right_shift.Scalar_Tensor", 64, torch.tensor([1, 2])),
    call("bitwise_not", U),
    call("where.self", BOOLS, I[:3], F[:3]),
    call("where.self", BOOLS, I[:3], HALF),
    call("where.ScalarOther", BOOLS, I[:3], 0.5),
    call("where.ScalarSelf", BOOLS, 2, F[:3]),
    call("where.Scalar", BOOLS, 2, 0.5),
    call("where.self", BOOLS, C, 1.0 * I[:3]),
    call("isin.Tensor_Tensor", I, torch.tensor([3, 8]), invert=True),
    call("isin.Tensor_Scalar", I, 3),
    call("isin.Scalar_Tensor", 3, I),
    call("isclose", F, F + 1e-9, equal_nan=True),
    call("isreal", C),
    call("isreal", I),
    call("signbit", -F),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("add.Tensor", lambda x: (x, x.shape[0])),
        ("mul.Tensor", lambda x: (x, x.shape[0] * x.shape[1] - 7)),
        ("div.Tensor", lambda x: (x, x.shape[1] // 2)),
        ("clamp", lambda x: (x, -1, x.shape[0])),
        ("lt.Scalar", lambda x: (x, x.shape[0] - x.shape[1])),
        ("where.ScalarOther", lambda x: (x > 0, x, x.shape[0])),
        ("pow.Tensor_Scalar", lambda x: (x, x.shape[0])),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_extents_are_numbers(name: str, arguments: Any, dtype: torch.dtype) -> None:
    x = torch.arange(-5, 7).reshape(3, 4).to(dtype)
    check_symbolic(name, arguments, x)


@pytest.mark.parametrize("bounds", [(None, float("nan")), (float("nan"), None)])
def test_a_bound_that_is_nan(bounds: Any) -> None:
    """All is NaN, as torch documents it: 2.11 leaves x as it is where the other bound is None."""
    found = convert(torch.ops.aten.clamp.default, (meta.array(F), *bounds), {})
    assert found.torch().isnan().all()


def test_complex_numbers_that_no_base_operator_takes_are_declined() -> None:
    x = meta.array(C)
    with pytest.raises(Unconvertible, match="'sigmoid' does not take complex64"):
        convert(torch.ops.aten.sigmoid.default, (x,), {})
    with pytest.raises(Unconvertible, match="complex64"):
        convert(torch.ops.aten.deg2rad.default, (x,), {})
    with pytest.raises(Unconvertible, match="does not take complex64"):
        convert(torch.ops.aten.maximum.default, (x, x), {})
