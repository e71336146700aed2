"""Test records of the elementwise operators of three operands."""

import torch

from meta.testing import C, F, I, OpCase, sample


def _triples(low=-2.0):
    return [
        sample(F(3, 4), F(3, 4), F(3, 4, low=low)),
        sample(F(3, 1), F(4), F(2, 1, 4, low=low)),
        sample(F(), F(), F(low=low)),
        sample(F(0, 2), F(2), F(1, low=low)),
    ]


def _scaled(function):
    return lambda x, tensor1, tensor2, value=1: function(x, tensor1, tensor2, value=value)


def _ints(dtype):
    return [I(3, low=0, high=6, dtype=dtype) for _ in range(3)]


MORE = [sample(F(3), F(3), F(3, low=0.5), 0.5), sample(F(3), F(3), F(3, low=0.5), value=-2)]
PRODUCTS = [sample(*_ints(d)) for d in ("uint8", "int32")] + [sample(*_ints("int64"), 3)]
WEIGHTS = [
    sample(F(2, 3), F(3), 0.25),
    sample(F(2, 3), F(3), weight=2),
    sample(C([1.0, 2.0, 3.0]), C([5.0, -1.0, 0.1]), C([0.0, 1.0, 0.5])),
]

CASES = [
    OpCase("addcmul", [*_triples(), *MORE], _scaled(torch.addcmul)),
    OpCase("addcmul", PRODUCTS, _scaled(torch.addcmul), dtypes=("float32",), grad=False),
    OpCase("addcdiv", [*_triples(0.5), *MORE], _scaled(torch.addcdiv)),
    OpCase("lerp", [*_triples(), *WEIGHTS], lambda x, end, weight: torch.lerp(x, end, weight)),
]
