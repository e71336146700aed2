"""What the operators of `meta/op/scan.py` have to do."""

import torch

from meta.base.dtype import TO_TORCH
from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from meta.testing.case import FLOATS

NAN, INF = float("nan"), float("inf")

ZEROS = C([[2.0, 0.0, 3.0, 0.0, 0.5], [0.0, 1.0, -2.0, 3.0, 4.0]])


def accumulating(function, identity):
    """Make an oracle: in float64, or int64, behind an identity if exclusive."""

    def oracle(x, axis, dtype=None, exclusive=False):
        unsigned = x.dtype == torch.uint8
        own = str(x.dtype)[6:] if x.is_floating_point() else "uint64" if unsigned else "int64"
        dtype = dtype or own
        x = x.to(torch.float64 if "float" in dtype else torch.int64)
        if exclusive and x.shape[axis]:
            first = torch.full_like(x.narrow(axis, 0, 1), identity)
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        y = function(x, axis)
        return y if "float" in dtype else y.to(TO_TORCH[dtype])

    return oracle


def linear_scan(a, b, axis, reverse=False):
    """Step by step."""
    factors, terms = list(a.unbind(axis)), list(b.unbind(axis))
    if not factors:
        return a * b
    steps = []
    for i in range(len(factors))[:: -1 if reverse else 1]:
        steps.append(factors[i] * steps[-1] + terms[i] if steps else 0 * factors[i] + terms[i])
    return torch.stack(steps[::-1] if reverse else steps, axis)


WIDE = [
    sample(F(3, 5), 1),
    sample(F(3, 5), 1, "float64"),
    sample(F(3, 4, 2), -2, "float64", True),
    sample(F(4, 3), 0, "float64"),
    sample(F(1, 3), 0, "float64", True),
    sample(F(0), 0, "float64"),
    sample(F(2, 0, 3), 1, "float64", True),
    sample(F(2, 0, 3), 0, "float64"),
    sample(ZEROS, 1, "float64"),
    sample(ZEROS, 1, "float64", exclusive=True),
]

# Their gradients are checked in float64 above, and integers have none.
NARROW = [
    sample(F(3, 5), 1),
    sample(F(3, 5), -1, exclusive=True),
    sample(I(2, 6, low=-9, high=9), 1),
    sample(I(2, 6, low=-9, high=9, dtype="int8"), 1, "int64"),
    sample(I(2, 6, low=0, high=200, dtype="uint8"), 1),
    sample(I(2, 6, low=0, high=200, dtype="uint8"), 1, "uint8"),
    *[sample(I(2, 6, low=2**b - 9, high=2**b, dtype=f"uint{b}"), 1, f"uint{b}") for b in (16, 32)],
    sample(I(2, 6, low=-9, high=9, dtype="int32"), 0, "int32", True),
    sample(B(7), 0, "int64"),
    sample(C([1.0, NAN, 2.0, INF, -INF, 1.0]), 0),
]

# Arguments are rounded to the dtype first, which several factors show.
ROUNDED = [sample(F(6), 0, "float16"), sample(F(2, 6), 1, "bfloat16", exclusive=True)]

LOOSE = {"float32": 1e-1}

CASES = [
    case
    for name, oracle in (
        ("cumsum", accumulating(torch.cumsum, 0)),
        ("cumprod", accumulating(torch.cumprod, 1)),
    )
    for case in (
        OpCase(name, NARROW, oracle, dtypes=FLOATS[:3], grad=False),
        OpCase(
            name,
            ROUNDED,
            oracle,
            ("float32",),
            grad=False,
            rtol=LOOSE,
            atol=LOOSE,
        ),
        OpCase(name, WIDE, oracle),
    )
] + [
    OpCase(
        "linear_scan",
        samples=[
            sample(F(3, 5), F(3, 5), 1),
            sample(F(3, 5), F(3, 5), -1, True),
            sample(F(3, 4, 2), F(3, 4, 2), 1, True),
            sample(F(4), F(4), 0),
            sample(F(1), F(1), 0),
            sample(F(0), F(0), 0),
            sample(F(2, 0), F(2, 0), 0),
            sample(ZEROS, F(2, 5), 1),
        ],
        oracle=linear_scan,
    )
]

_X = F(2, 3)

NO_SCAN = [
    error(_X, 2, match="axis 2 is out of range"),
    error(F(), 0, match="at least one axis"),
    error(_X, 0, "bool", match="bool cannot be accumulated"),
]

CASES += refusals(
    {
        "cumsum cumprod": NO_SCAN,
        "linear_scan": [
            error(_X, F(3), 0, match="a and b differ in shape"),
            error(_X, C([[1.0] * 3] * 2, "float64"), 0, match="cast the float32 one"),
            error(_X, _X, -3, match="axis -3 is out of range"),
        ],
    }
)
