"""Test records of the bitwise operators and shifts."""

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample

DTYPES = ("uint8", "int8", "int16", "int32", "int64")


def _ints(*shape, dtype="int32", low=-100, high=100):
    return I(*shape, low=0 if dtype == "uint8" else low, high=high, dtype=dtype)


PAIRS = [
    *[sample(_ints(4, 5, dtype=d), _ints(5, dtype=d)) for d in DTYPES],
    sample(_ints(2, 1, 3), _ints(4, 1)),
    sample(_ints(), _ints()),
    sample(_ints(0, 2), _ints(2)),
    sample(_ints(3), 5),
    sample(-2, _ints(3, dtype="int8")),
]
BOOLS = [sample(B(4, 3), B(3)), sample(B(3), True)]
SHIFTS = [
    *[sample(_ints(4, 5, dtype=d), _ints(5, dtype=d, low=-2, high=10)) for d in DTYPES],
    sample(C([-1, 5, 5, -5], "int32"), C([31, 32, -1, 100], "int32")),
    sample(C([-1, 5, 5, -5], "int64"), C([63, 64, -1, 33], "int64")),
    sample(C([200, 3], "uint8"), C([1, 9], "uint8")),
    sample(_ints(2, 1, 3), _ints(4, 1, low=0, high=8)),
    sample(_ints(0, 2), _ints(2)),
    sample(_ints(), 2),
    sample(3, _ints(4, dtype="int16", low=0, high=8)),
]


def _case(name, function, samples):
    def oracle(x1, x2):
        like = x1 if isinstance(x1, torch.Tensor) else x2
        return function(*[torch.as_tensor(x, dtype=like.dtype) for x in (x1, x2)])

    return OpCase(name, samples=samples, oracle=oracle, dtypes=("float32",), grad=False)


NOTS = [sample(s.args[0]) for s in PAIRS[:-1]] + [sample(B(3, 2))]

CASES = [
    _case("bitwise_and", torch.bitwise_and, PAIRS + BOOLS),
    _case("bitwise_or", torch.bitwise_or, PAIRS + BOOLS),
    _case("bitwise_xor", torch.bitwise_xor, PAIRS + BOOLS),
    OpCase("bitwise_not", samples=NOTS, oracle=torch.bitwise_not, dtypes=("float32",), grad=False),
    _case("left_shift", torch.bitwise_left_shift, SHIFTS),
    _case("right_shift", torch.bitwise_right_shift, SHIFTS),
]

_INT8 = I(3, low=0, high=5, dtype="int8")
MISMATCHED_PAIRS = [
    error(F(3), _INT8, match="only integers have bits"),
    error(_INT8, 1.5, match="only integers have bits"),
    error(_INT8, I(3, low=0, high=5), match="cast the int8 one"),
    error(_INT8, I(2, low=0, high=5, dtype="int8"), match="broadcast"),
]

CASES += refusals(
    {
        "bitwise_and": [*MISMATCHED_PAIRS, error(B(3), 1, match="does not fit a tensor of bool")],
        "bitwise_or bitwise_xor": MISMATCHED_PAIRS,
        "left_shift right_shift": [*MISMATCHED_PAIRS, error(B(3), 1, match=r"expected: integers\n")],
        "bitwise_not": [error(F(3), match="only integers have bits")],
    }
)
