"""What the operators of `meta/op/fourier.py` have to do, and other operators with complex numbers.

Transforms are compared with sums of exponentials. Gradients are in `test_fourier.py`.
"""

import math

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from meta.testing.case import Spec

BY_PARTS = "by the parts of complex numbers, in test_fourier.py"
ONLY = {
    "dialects": ("torch",),
    "dtypes": ("float32", "float64"),
    "grad": False,
    "rtol": {"float32": 1e-4},
    "atol": {"float32": 1e-4},
}


def Z(*shape):
    """Complex numbers whose parts have the dtype under test."""

    def make(dtype, generator):
        parts = torch.empty((*shape, 2), dtype=torch.float64).uniform_(-2, 2, generator=generator)
        wide = dtype == "float64"
        return torch.view_as_complex(parts).to(torch.complex128 if wide else torch.complex64)

    return Spec(make, f"Z{list(shape)}")


def _sums(x, axis, sign, norm):
    """One transform as a matrix product with all exponentials."""
    n = x.shape[axis]
    k = torch.arange(n, dtype=torch.float64)
    matrix = torch.polar(torch.ones(n, n, dtype=torch.float64), sign * 2 * math.pi * k.outer(k) / n)
    divided = {"backward": sign > 0, "forward": sign < 0, "ortho": True}[norm]
    factor = 1 / (math.sqrt(n) if norm == "ortho" else n) if divided else 1.0
    return (x.to(torch.complex128).movedim(axis, -1) @ matrix * factor).movedim(-1, axis)


def c2c(x, axes, inverse=False, norm="backward"):
    for axis in (axes,) if isinstance(axes, int) else axes:
        x = _sums(x, axis, 1 if inverse else -1, norm)
    return x


def _last(axes):
    return axes if isinstance(axes, int) else axes[-1]


def r2c(x, axes, norm="backward"):
    n = x.shape[_last(axes)]
    return c2c(x, axes, False, norm).narrow(_last(axes), 0, n // 2 + 1)


def c2r(x, axes, n, norm="backward"):
    """The other half is made of conjugates, once the other axes are transformed."""
    last = _last(axes)
    x = x.to(torch.complex128)
    for axis in () if isinstance(axes, int) else axes[:-1]:
        x = _sums(x, axis, 1, norm)
    behind = x.narrow(last, 1, (n + 1) // 2 - 1).flip(last).conj()
    return _sums(torch.cat([x, behind], last), last, 1, norm).real


NORMS = ("forward", "ortho")

CASES = [
    OpCase(
        "complex",
        [sample(F(3, 4), F(3, 4)), sample(F(2, 1), F(3)), sample(F(), F()), sample(F(0), F(0))],
        torch.complex,
        why=BY_PARTS,
        **ONLY,
    ),
    *(
        OpCase(name, [sample(Z(3, 4)), sample(Z()), sample(Z(0, 2))], of, why=BY_PARTS, **ONLY)
        for name, of in {
            "real": lambda x: x.real,
            "imag": lambda x: x.imag,
            "conj": lambda x: torch.complex(x.real, -x.imag),
            "angle": lambda x: torch.atan2(x.imag, x.real),
        }.items()
    ),
    OpCase(
        "fft_c2c",
        [
            sample(Z(3, 8), -1),
            sample(Z(3, 5), 0),
            sample(Z(3, 5), (1,), True),
            sample(Z(2, 3, 5), (0, 2)),
            sample(Z(2, 3, 4), (2, 0, 1), True),
            sample(Z(1), 0),
            sample(Z(0, 3), 1),
            *(
                sample(Z(2, 6), (0, 1), inverse, norm)
                for norm in NORMS
                for inverse in (0 > 1, 1 > 0)
            ),
        ],
        c2c,
        why=BY_PARTS,
        **ONLY,
    ),
    OpCase(
        "fft_r2c",
        [
            sample(F(3, 8), -1),
            sample(F(3, 5), 1),
            sample(F(4, 3, 5), (0, 1)),
            sample(F(4, 3, 5), (2, 0)),
            sample(F(1), 0),
            sample(F(0, 4), 1),
            *(sample(F(2, 6), (0, 1), norm) for norm in NORMS),
        ],
        r2c,
        why=BY_PARTS,
        **ONLY,
    ),
    OpCase(
        "fft_c2r",
        [
            sample(Z(3, 5), -1, 8),
            sample(Z(3, 5), 1, 9),
            sample(Z(4, 3, 5), (2, 0), 6),
            sample(Z(4, 3, 5), (0, 1), 5),
            sample(Z(1), 0, 1),
            sample(Z(2), 0, 2),
            sample(Z(0, 3), 1, 4),
            *(sample(Z(3, 4), (0, 1), 6, norm) for norm in NORMS),
        ],
        c2r,
        why=BY_PARTS,
        **ONLY,
    ),
]


def _moved(name, samples, oracle):
    return OpCase(name, samples, oracle, **ONLY)


CASES += [
    _moved("add", [sample(Z(2, 3), Z(3)), sample(Z(2), 1.5)], torch.add),
    _moved("subtract", [sample(Z(2, 3), Z(3)), sample(2, Z(2))], torch.sub),
    _moved("multiply", [sample(Z(2, 1), Z(3)), sample(Z(2), 3)], torch.mul),
    _moved("divide", [sample(Z(2, 1), Z(3)), sample(1.0, Z(2))], torch.div),
    _moved("negative", [sample(Z(2, 3)), sample(Z())], torch.neg),
    _moved("abs", [sample(Z(2, 3)), sample(Z(0))], lambda x: (x.real**2 + x.imag**2).sqrt()),
    _moved("sum", [sample(Z(2, 3), 1), sample(Z(2, 3), (0, 1), True)], lambda x, *a: x.sum(*a)),
    _moved("roll", [sample(Z(2, 3), 1, 1)], torch.roll),
    _moved("reshape", [sample(Z(2, 6), (3, 4))], lambda x, shape: x.reshape(shape)),
    _moved("permute_dims", [sample(Z(2, 3, 4), (2, 0, 1))], lambda x, a: x.permute(a)),
    _moved("concat", [sample((Z(2, 3), Z(1, 3)))], torch.cat),
    _moved(
        "strided_slice",
        [sample(Z(5, 4), (1, 3), (5, 0), (2, -1))],
        lambda x, *_: x[1:5:2, 1:4].flip(1),
    ),
    _moved(
        "strided_slice_dx",
        [sample(Z(2), (4,), 1, 3)],
        lambda x, *_: torch.nn.functional.pad(x, (1, 1)),
    ),
    _moved("broadcast_to", [sample(Z(3, 1), (2, 3, 4))], torch.broadcast_to),
    _moved("zeros_like", [sample(Z(2))], torch.zeros_like),
    _moved("astype", [sample(F(3), "complex128"), sample(Z(3), "complex128")], lambda x, _: x),
    _moved("astype", [sample(I(3, low=-4, high=4), "complex128")], lambda x, _: x),
]
_POWERS = [sample(Z(3, 4), Z(4)), sample(Z(3), 2), sample(Z(2), 0.5), sample(Z(0, 2), Z(2))]
_PAIRS = [sample(Z(3, 4), Z(4)), sample(Z(), Z()), sample(Z(3), 1), sample(Z(0, 2), Z(2))]
_EACH = [sample(Z(3, 4)), sample(Z()), sample(Z(0, 2))]
_ALONG = [sample(Z(3, 4)), sample(Z(3, 4), 0), sample(Z(2, 3), (1,), True), sample(Z(0, 2), 0)]
CASES += [
    *(
        _moved(name, _EACH, getattr(torch, name))
        for name in (
            *("exp", "log", "sqrt", "rsqrt", "log2", "log10", "log1p", "expm1", "reciprocal"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh"),
            *("acosh", "atanh", "exp2", "square", "isnan", "isinf", "isfinite", "logical_not"),
        )
    ),
    _moved("sign", [*_EACH, sample(C([0j, 1 - 1j], "complex64"))], torch.sgn),
    _moved("round", _EACH, lambda x: torch.complex(x.real.round(), x.imag.round())),
    _moved("pow", _POWERS, torch.pow),
    _moved("equal", [*_PAIRS, sample(C([1j, 2], "complex64"), C([1j, 2j], "complex64"))], torch.eq),
    _moved("not_equal", _PAIRS, torch.ne),
    _moved("logical_and", [sample(Z(3, 4), Z(4))], torch.logical_and),
    _moved("where", [sample(B(3, 4), Z(4), Z(3, 1)), sample(B(3), Z(3), 0)], torch.where),
    _moved("mean", _ALONG, lambda x, axis=None, keepdims=False: torch.mean(x, axis, keepdims)),
    _moved(
        "prod",
        [sample(Z(3, 4), 1), sample(Z(0, 2), 0)],
        lambda x, axis: torch.prod(x, axis),
    ),
    _moved("all", [sample(Z(3, 4), 1)], lambda x, axis: torch.all(x != 0, axis)),
    _moved("cumsum", [sample(Z(3, 4), 1)], torch.cumsum),
    _moved("cumprod", [sample(Z(3, 4), 0)], torch.cumprod),
    _moved("matmul", [sample(Z(2, 3), Z(3, 4)), sample(Z(2, 0), Z(0, 3))], torch.matmul),
    _moved("batch_matmul", [sample(Z(2, 2, 3), Z(2, 3, 4))], torch.matmul),
    _moved("dense", [sample(Z(2, 3), Z(4, 3))], lambda a, b: a @ b.T),
    _moved("take", [sample(Z(4, 2), C([3, 0, 3], "int64"), 0)], lambda x, i, _: x[i]),
    _moved(
        "take_along_axis", [sample(Z(4), C([3, 0, 3], "int64"), 0)], lambda x, i, a: x.gather(a, i)
    ),
    _moved("flip", [sample(Z(3, 4), (0, 1))], torch.flip),
    _moved("tile", [sample(Z(3), (2, 2))], torch.tile),
    _moved("repeat", [sample(Z(3), 2, 0)], torch.repeat_interleave),
    _moved("triu", [sample(Z(3, 3), 1)], torch.triu),
    _moved("diagonal", [sample(Z(3, 3), 1)], torch.diagonal),
]
_REFUSED = "does not take complex numbers"
_LOW = C([1.0], "float16")
AXES = [
    error(Z(3), 1, match="out of range"),
    error(Z(3, 3), (0, 0), match="named twice"),
    error(Z(3), (), match="needs an axis"),
    error(Z(0), 0, match="is empty"),
    error(Z(3), 0, norm="both", match="unknown norm"),
]
CASES += refusals(
    {
        "max sort floor": [error(Z(2, 2), match=_REFUSED)],
        "real imag angle conj": [error(F(2), match="x must be complex")],
        "complex": [
            error(_LOW, _LOW, match="must be float32 or float64"),
            error(C([1.0], "float32"), C([1.0], "float64"), match="cast the float32 one"),
        ],
        "astype": [error(Z(2), "float32", match="have no value in float32")],
        "cast_like": [error(Z(2), F(2), match="have no value in float32")],
        "fft_c2c": [error(F(3), 0, match="x must be complex"), *AXES],
        "fft_r2c": [
            error(Z(3), 0, match="x must be float32 or float64"),
            error(_LOW, 0, match="x must be float32 or float64"),
            *(
                error(
                    F(*e.args[0].make("float32", torch.Generator()).shape),
                    *e.args[1:],
                    match=e.match,
                    **e.kwargs,
                )
                for e in AXES
            ),
        ],
        "fft_c2r": [
            error(F(3), 0, 4, match="x must be complex"),
            error(Z(3), 0, 6, match="n does not fit"),
            error(Z(1), 0, 0, match="n does not fit"),
            *(error(*e.args, n=4, match=e.match, **e.kwargs) for e in AXES),
        ],
    }
)
