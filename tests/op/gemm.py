"""Test records of the matrix products."""

import torch

from meta.testing import F, I, OpCase, sample

# A product of two half precision operands is rounded once; its terms nearly cancel sometimes.
HALF = {"atol": {"float16": 1e-2, "bfloat16": 8e-2}}


def _sample(extents, t1, t2, batch1=(), batch2=(), make=F):
    m, k, n = extents
    x1, x2 = (k, m) if t1 else (m, k), (n, k) if t2 else (k, n)
    return sample(make(*batch1, *x1), make(*batch2, *x2))


def _integers(*shape):
    return I(*shape, low=-9, high=9)


def _products(t1, t2):
    """Plain, longer than a vector register, a dot product, empty in every extent, integers."""
    extents = [(3, 4, 5), (17, 70, 9), (1, 7, 1), (3, 0, 2), (0, 3, 2), (2, 3, 0)]
    return [
        *(_sample(e, t1, t2) for e in extents),
        _sample((3, 4, 5), t1, t2, make=_integers),
    ]


def _batches(t1, t2):
    """Every pairing of batch extents, and nothing to sum."""
    pairs = [((3,), (3,)), ((1,), (3,)), ((3,), (1,)), ((1,), (1,)), ((0,), (1,)), ((0,), (0,))]
    return [
        *(_sample((3, 4, 5), t1, t2, *pair) for pair in pairs),
        _sample((2, 0, 3), t1, t2, (2,), (1,)),
        _sample((3, 4, 5), t1, t2, (2,), (1,), make=_integers),
    ]


CASES = [
    OpCase("matmul", _products(False, False), lambda x1, x2: x1 @ x2, **HALF),
    OpCase("matmul_nt", _products(False, True), lambda x1, x2: x1 @ x2.mT, **HALF),
    OpCase("matmul_tn", _products(True, False), lambda x1, x2: x1.mT @ x2, **HALF),
    OpCase("matmul_tt", _products(True, True), lambda x1, x2: x1.mT @ x2.mT, **HALF),
    OpCase("dense", _products(False, True), torch.nn.functional.linear, **HALF),
    OpCase("batch_matmul", _batches(False, False), torch.matmul, **HALF),
    OpCase("batch_matmul_nt", _batches(False, True), lambda x1, x2: x1 @ x2.mT, **HALF),
    OpCase("batch_matmul_tn", _batches(True, False), lambda x1, x2: x1.mT @ x2, **HALF),
    OpCase("batch_matmul_tt", _batches(True, True), lambda x1, x2: x1.mT @ x2.mT, **HALF),
]
