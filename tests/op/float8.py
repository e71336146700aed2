"""Test records of float8: rounding to it, as ml_dtypes does, and moving it. Its product is in
`gemm.py`.
"""

import ml_dtypes
import numpy as np
import torch

from meta.base.dtype import TO_TORCH
from meta.testing import B, F, I, OpCase, error, refusals, sample
from meta.testing.case import Spec

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def float8(*shape, dtype=E4M3):
    """Normally distributed numbers of float8."""

    def make(_, generator):
        return torch.randn(shape, generator=generator).to(TO_TORCH[dtype])

    return Spec(make, f"{dtype}{list(shape)}")


def _wide(*values):
    """Numbers in the dtype under test, NaN and infinities among them."""

    def make(dtype, _):
        return torch.tensor(values, dtype=torch.float64).to(TO_TORCH[dtype])

    return Spec(make, f"wide{list(values)}")


def _rounded(x, dtype):
    """Return x rounded by ml_dtypes; what is too large for e4m3fn is its largest number."""
    if not dtype.startswith("float8"):
        return x
    values = x.double().numpy()
    with np.errstate(all="ignore"):
        if dtype == E4M3:
            values = np.clip(values, -448, 448)
        found = values.astype(np.float32).astype(getattr(ml_dtypes, dtype)).astype(np.float64)
    return torch.from_numpy(np.asarray(found))


_INF, _NAN = float("inf"), float("nan")
_BEYOND = _wide(448.0, 460.0, -465.0, 1e4, -6e4, _INF, -_INF, _NAN, 0.0, -0.0, 2.0**-9, 2.0**-10)
_CASTS = [
    sample(x, dtype)
    for dtype in (E4M3, E5M2)
    for x in (F(3, 70), F(5, low=-600.0, high=600.0), F(), F(0, 2), _BEYOND, B(4))
] + [
    sample(I(9, low=-20, high=20, dtype=kind), dtype)
    for kind in ("int64", "int8")
    for dtype in (E4M3, E5M2)
]
_BACK = [
    sample(float8(3, 5, dtype=source), dtype)
    for source in (E4M3, E5M2)
    for dtype in ("float16", "bfloat16", "float32", "float64", E4M3, E5M2)
]
_NO_GRADIENT = {"dialects": ("torch",), "dtypes": ("float32",), "grad": False}


def _moved(name, samples, oracle):
    return OpCase(name, samples, oracle, **_NO_GRADIENT)


CASES = [
    OpCase("astype", _CASTS, _rounded, dialects=("torch",), grad=False),
    OpCase("astype", _BACK, _rounded, **_NO_GRADIENT),
    OpCase("astype", [sample(float8(5), "int32")], lambda x, _: x.int(), **_NO_GRADIENT),
    _moved("cast_like", [sample(float8(4, dtype=E5M2), F(2))], lambda x, _: x),
    _moved("cast_like", [sample(_BEYOND, float8(2))], lambda x, _: _rounded(x, E4M3)),
    _moved("reshape", [sample(float8(2, 6), (3, 4))], lambda x, shape: x.reshape(shape)),
    _moved("expand_dims", [sample(float8(3), 0)], lambda x, axis: x.unsqueeze(axis)),
    _moved("squeeze", [sample(float8(1, 3))], lambda x: x.squeeze()),
    _moved("batch_flatten", [sample(float8(2, 3, 2))], lambda x: x.flatten(1)),
    _moved("permute_dims", [sample(float8(2, 3, 4), (2, 0, 1))], lambda x, a: x.permute(a)),
    _moved("swapaxes", [sample(float8(2, 3), 0, 1)], lambda x, a, b: x.swapaxes(a, b)),
    _moved("concat", [sample((float8(2, 3), float8(1, 3)))], torch.cat),
    _moved("stack", [sample((float8(2, 3, dtype=E5M2), float8(2, 3, dtype=E5M2)))], torch.stack),
    _moved("split", [sample(float8(4, 3), 2)], lambda x, parts: x.chunk(parts)),
    _moved(
        "strided_slice",
        [sample(float8(5, 4), (1, 3), (5, 0), (2, -1))],
        lambda x, *_: x[1:5:2, 1:4].flip(1),
    ),
    _moved("broadcast_to", [sample(float8(3, 1), (2, 3, 4))], torch.broadcast_to),
    _moved("copy", [sample(float8(3, 2))], lambda x: x),
    _moved("detach", [sample(float8(3, 2))], lambda x: x),
    OpCase(
        "device_copy",
        [sample(float8(3, 2), "cpu", "cpu")],
        lambda x, *_: x,
        devices=("cpu",),
        **_NO_GRADIENT,
    ),
    _moved("zeros", [sample((2, 3), E4M3)], lambda shape, _: torch.zeros(shape)),
    _moved("ones", [sample((2, 3), E5M2)], lambda shape, _: torch.ones(shape)),
    _moved("full", [sample((2,), 1e6, E4M3)], lambda *_: torch.full((2,), 448.0)),
    _moved("full", [sample((2,), 1.1, E5M2)], lambda *_: torch.full((2,), 1.0)),
    _moved("zeros_like", [sample(float8(2))], torch.zeros_like),
    _moved("ones_like", [sample(float8(2))], torch.ones_like),
    _moved("full_like", [sample(float8(2), 3)], lambda x, value: torch.full_like(x, value)),
]
_REFUSED = "has no arithmetic but scaled_matmul"
CASES += refusals(
    {
        "add multiply maximum": [error(float8(2), float8(2), match=_REFUSED)],
        "exp sum max": [error(float8(2), match=_REFUSED)],
        "matmul": [error(float8(2, 2), float8(2, 2), match=_REFUSED)],
        "arange": [error(0, 3, 1, E4M3, match=_REFUSED)],
    }
)
