"""Matrix products, alone."""

from __future__ import annotations

from typing import Any

import torch

from meta.dialect.core import OpEnv
from meta.dialect.cublas import cublas as dialect
from meta.dialect.cublas.product import Product, prepared, problem
from meta.op.core.call import CallValues
from meta.op.linalg import STORED_TRANSPOSED


def _make(call: CallValues) -> OpEnv:
    """Return the kernel of a product."""
    x1, x2 = call.args.x1, call.args.x2
    t1, t2 = STORED_TRANSPOSED[call.op]
    if call.out.is_static and 0 in (*x1.static_shape, *x2.static_shape):
        return OpEnv(_nothing, allocates=False, strided=True)
    run = Product(problem(x1, x2, t1, t2), t1, t2, call.device.ordinal)
    return prepared(run, strided=True)


def _nothing(x1: torch.Tensor, x2: torch.Tensor, out: torch.Tensor) -> Any:
    """Fill the product of matrices without elements: a sum of nothing is 0."""
    out.zero_()


for _operator in STORED_TRANSPOSED:
    dialect.op(_operator)(_make)
