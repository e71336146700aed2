"""Matrix products, alone, and those of float8 matrices: `scaled_matmul`. Matrix units of compute
capability 8.9 and later have these, for factors whose rows both are sums' terms side by side:
(m, k) and (n, k).
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from meta import op
from meta.dialect.core import Config, OpEnv, Unsupported, decline_if, require_static
from meta.dialect.cublas import cublas as dialect
from meta.dialect.cublas.library import cublaslt
from meta.dialect.cublas.problem import ALIGNMENT, Problem, compact
from meta.dialect.cublas.product import Plans, Product, prepared, problem, with_copies
from meta.op.core.call import CallValues
from meta.op.linalg import STORED_TRANSPOSED
from meta.runtime import gpu_properties


def _make(call: CallValues) -> OpEnv:
    """Return the kernel of a product."""
    x1, x2 = call.args.x1, call.args.x2
    t1, t2 = STORED_TRANSPOSED[call.op]
    if call.out.is_static and 0 in (*x1.static_shape, *x2.static_shape):
        return OpEnv(_nothing, allocates=False, strided=True)
    of = problem(x1, x2, t1, t2)
    return prepared(partial(Product, of, t1, t2, call.device.ordinal), strided=True)


def _nothing(x1: torch.Tensor, x2: torch.Tensor, out: torch.Tensor) -> Any:
    """Fill the product of matrices without elements: a sum of nothing is 0."""
    out.zero_()


for _operator in STORED_TRANSPOSED:
    dialect.op(_operator)(_make)


CAPABILITY, CAPABILITY_ROWS = (8, 9), (9, 0)
"""From which on there are products of float8, and those scaled row by row."""
VERSION_ROWS = 120900
"""cuBLASLt 12.9, the first one with a scale for each row."""
MULTIPLE = 16
"""Of which k and n are multiples in every product of float8."""


def scaled_problem(call: CallValues) -> Problem:
    """Return the problem of a call; raises Unsupported for what cuBLASLt does not multiply."""
    x1, x2, scale1, scale2, dtype = call.args
    if x1.dtype == x2.dtype == "float8_e5m2":
        raise Unsupported("cuBLASLt multiplies float8_e5m2 by float8_e4m3fn only")
    require_static(x1, x2)
    (m, k), (n, _) = x1.static_shape, x2.static_shape
    decline_if(0 in (m, n, k), "there is nothing to multiply")
    if k % MULTIPLE or n % MULTIPLE:
        raise Unsupported(f"float8 needs k and n that are multiples of {MULTIPLE}, not {k} and {n}")
    if scale1.ndim != scale2.ndim:
        raise Unsupported("cuBLASLt scales both factors as a whole, or both row by row")
    factors = compact((m, k), False), compact((n, k), True)
    scales = "rows" if scale1.ndim else "whole"
    dtypes = x1.dtype, x2.dtype, dtype
    return Problem(x1.dtype, 1, m, n, k, *factors, scales=scales, dtypes=dtypes)


class ScaledProduct:
    """A product of compact float8 matrices: a function of them, of their scales and of ``out``."""

    def __init__(self, problem: Problem, device: int, config: Config = ()) -> None:
        """Prepare for aligned tensors; raises Unsupported if cuBLASLt has no such product."""
        self.plans = Plans(problem, device, config)
        self.plan = self.plans()

    @property
    def workspace(self) -> int:
        """The bytes of scratch memory of its plan."""
        return self.plan.workspace

    def __call__(self, *tensors: torch.Tensor) -> None:
        a, b, first, second, d = addresses = [t.data_ptr() for t in tensors]
        # Nothing reads float8 at other addresses, nor scales of rows.
        if any(address % ALIGNMENT for address in addresses):
            with_copies(self, *tensors, results=(4,))
        else:
            self.plan.with_scales(a, b, d, first, second)


@cache
def lacking(scales: str, device: int) -> str | None:
    """Return what a device lacks for float8 with such scales, see `Problem`, or None."""
    needed = CAPABILITY_ROWS if scales == "rows" else CAPABILITY
    if gpu_properties.query(device).capability < needed:
        return f"it takes a GPU of compute capability {needed[0]}.{needed[1]}"
    version = cublaslt().cublasLtGetVersion()
    if scales == "rows" and version < VERSION_ROWS:
        return f"scales of rows take cuBLASLt {VERSION_ROWS}, this is {version}"
    return None


@dialect.op(op.scaled_matmul)
def scaled_matmul(call: CallValues) -> OpEnv:
    """Return the kernel of a product of float8 matrices."""
    of, device = scaled_problem(call), call.device.ordinal
    reason = lacking(of.scales, device)
    if reason is not None:
        raise Unsupported(reason)
    return prepared(partial(ScaledProduct, of, device))
