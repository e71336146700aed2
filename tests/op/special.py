"""Test records of special functions and the Fourier transform."""

import math

import torch

from meta.testing import C, F, I, OpCase, error, refusals, sample
from tests.op.elementwise import (
    EDGES,
    MISMATCHED,
    NO_X,
    OTHERS,
    TENSORS,
    _derivative_case,
    _others_of_special,
    _real,
)

FAR = [-30.0, 30.0, -7.5, 7.5, 8.5, -8.5]

UNIT = [sample(F(*s, low=0.1, high=0.9)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]

INNER = [sample(F(*s, low=-0.95, high=0.95)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]

POSITIVE = [sample(F(*s, low=0.25, high=12.0)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]

# Between the poles of the gamma function.
NEGATIVE = [sample(F(3, 5, low=-2.8, high=-2.2)), sample(F(7, low=-0.8, high=-0.2))]

POLES = [-1.0, -2.0, *EDGES]


def sinc(x: torch.Tensor) -> torch.Tensor:
    """torch.sinc, whose gradient beside 0 is lost in rounding: its series there."""
    near = x.abs() < 0.25
    square = torch.where(near, x * math.pi, 0.0) ** 2
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(10)]
    series = sum(t * square**k for k, t in enumerate(terms))
    return torch.where(near, series, torch.sinc(torch.where(near, 1.0, x)))


def _trigamma(x):
    """By Hurwitz' zeta function: torch's polygamma(1, x) has 9 digits."""
    mirrored = (math.pi / torch.sin(math.pi * x)) ** 2 - torch.special.zeta(2, 1 - x)
    found = torch.where(x < 0, mirrored, torch.special.zeta(2, x))
    return torch.where(x == math.inf, 0.0, found)  # zeta has NaN there


def _pairs(low):
    return [
        sample(F(3, 4), F(3, 4, low=low)),
        sample(F(2, 1, 3), F(4, 1, low=low)),
        sample(F(), F(3, low=low)),
        sample(F(0, 2), F(2, low=low)),
        sample(F(3), 2),
        sample(1.5, F(3, low=low)),
    ]


def _product(function):
    def oracle(x1, x2):
        like = x1 if isinstance(x1, torch.Tensor) else x2
        dtype = like.dtype if like.dtype.is_floating_point else torch.float32
        return function(*[torch.as_tensor(x, dtype=dtype) for x in (x1, x2)])

    return oracle


NOTHING = [
    sample(C([0.0, 0.0, 0.0, 1.0, 2.0]), C([0.0, math.nan, -3.0, 0.0, math.inf])),
    sample(I(3, low=0, high=5, dtype="int32"), I(2, 3, low=1, high=5, dtype="int32")),
]

LIMITED = [sample(F(3, 5, low=-0.5, high=1.5), 0.1), sample(F(), eps=0.25)]

xlogy, xlog1py = _product(torch.xlogy), _product(torch.special.xlog1py)

CASES = [
    *_real("erfc", torch.erfc, TENSORS, [-6.0, 3.0, *EDGES]),
    *_real("erfinv", torch.erfinv, INNER, [1.0, -1.0, 1.5, 0.999, -0.999, *EDGES]),
    *_real("lgamma", torch.lgamma, [*POSITIVE, *NEGATIVE], [30.0, -2.5, *POLES]),
    OpCase("digamma", samples=[*POSITIVE, *NEGATIVE], oracle=torch.digamma, second=False),
    _others_of_special("digamma", torch.digamma, sample(C([30.0, 1e4, -2.5, *POLES]))),
    OpCase(
        "digamma",
        samples=OTHERS,
        oracle=lambda x: torch.digamma(x.float()),
        dtypes=("float32",),
        grad=False,
    ),
    OpCase("trigamma", samples=[*POSITIVE, *NEGATIVE], oracle=_trigamma),
    OpCase(
        "trigamma",
        samples=[sample(C([30.0, 1e4, 0.0, math.inf]))],
        oracle=_trigamma,
        grad=False,
    ),
    *_real("sinc", sinc, TENSORS, [1.0, -3.0, *EDGES]),
    *_real("logit", torch.logit, UNIT, [1.0, -1.0, 1.5, *EDGES]),
    OpCase("logit", samples=LIMITED, oracle=torch.logit),
    _others_of_special("logit", torch.logit, sample(C([0.0, 1.0, math.nan, -2.0]), 0.125)),
    OpCase("xlogy", samples=_pairs(0.25), oracle=xlogy),
    _others_of_special("xlogy", xlogy, *NOTHING),
    OpCase("xlog1py", samples=_pairs(-0.5), oracle=xlog1py),
    _others_of_special("xlog1py", xlog1py, *NOTHING),
    *_real("entr", torch.special.entr, POSITIVE, [1.0, -1.0, *EDGES]),
    *_real("ndtr", torch.special.ndtr, TENSORS, [-5.0, 5.0, *EDGES]),
    *_real("i0", torch.special.i0, TENSORS, [9.5, -10.0, 0.0, math.nan]),
    *_real("i0e", torch.special.i0e, TENSORS, [*FAR, *EDGES]),
    *_real("i1", torch.special.i1, TENSORS, [9.5, -10.0, 0.0, math.nan]),
    *_real("i1e", torch.special.i1e, TENSORS, [*FAR, *EDGES]),
]


def dft(re, im, inverse=False):
    n = re.shape[-1]
    steps = torch.arange(n, dtype=torch.float64, device=re.device)
    angle = 2 * math.pi * torch.remainder(torch.outer(steps, steps), n) / n
    c, s = torch.cos(angle), torch.sin(angle) * (-1 if inverse else 1)
    scale = n if inverse else 1
    return (re @ c + im @ s) / scale, (im @ c - re @ s) / scale


CASES += [
    OpCase(
        "dft",
        samples=[
            *(sample(F(2, 3, n), F(2, 3, n), i) for n in (1, 4, 7) for i in (False, True)),
            sample(F(30), F(30)),
            sample(F(0, 4), F(0, 4), True),
        ],
        oracle=dft,
        dtypes=("float32", "float64"),
        errors=[
            error(I(3, low=0, high=2), I(3, low=0, high=2), match="re must be float32"),
            error(F(3), F(4), match="differ in shape"),
            error(F(2, 0), F(2, 0), match="no last axis"),
            error(F(), F(), match="no last axis"),
        ],
    )
]

CASES += [
    *_real("erf", torch.erf, TENSORS, [-6.0, 6.0, *EDGES]),
    _derivative_case("erf_dx", torch.erf, -2, 2),
]

CASES += refusals(
    {
        "erf_dx": [*MISMATCHED, NO_X],
    }
)
