"""Matrix products, alone, and those of float8 matrices: `scaled_matmul`. Matrix units of compute
capability 8.9 and later have these, for factors whose rows both are sums' terms side by side:
(m, k) and (n, k).

Products whose columns are wanted in parts, as query, key and value of an attention are.

One batch of products, all of the same ``x``, each with its own columns of the weights, writes each
part as an array of its own: what is left to do for a `split` of the product is nothing. The parts
are one launch where they lie in memory evenly spaced, as `plan_memory` lays them; others are
computed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import pairwise
from operator import or_
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import bits
from meta.dialect.core import Config, OpEnv, Unsupported, decline_if, require_static
from meta.dialect.cublas import cublas as dialect
from meta.dialect.cublas.epilogues import PRODUCTS, require_columns, require_last, rows
from meta.dialect.cublas.library import cublaslt
from meta.dialect.cublas.problem import ALIGNMENT, Problem, aligned, compact
from meta.dialect.cublas.product import Plans, Product, prepared, problem, with_copies
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.linalg import STORED_TRANSPOSED
from meta.runtime import gpu_properties


def _make(call: CallValues) -> OpEnv:
    """Return the kernel of a product."""
    x1, x2 = call.args.x1, call.args.x2
    t1, t2 = STORED_TRANSPOSED[call.op]
    if 0 in (*x1.shape, *x2.shape):
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


class SplitProduct:
    """A batch of products of one x: a function of x, weights, perhaps a bias, and of the parts.

    ``whole``: the batch, its results compact. All tensors are compact.
    """

    def __init__(self, whole: Problem, device: int, config: Config = ()) -> None:
        """Prepare for aligned parts, evenly spaced; raises Unsupported if there is no such plan."""
        self.whole, self.device, self.config = whole, device, config
        self.itemsize = bits(whole.dtype) // 8
        self.steps = whole.x2.step * self.itemsize, whole.vector_step * self.itemsize
        self.known: dict[tuple[int, int], Plans] = {}
        self.prepared = whole.m * whole.n, ALIGNMENT
        self.plans = self.of(*self.prepared)

    @property
    def workspace(self) -> int:
        """The bytes of scratch memory of its plans."""
        return max(plans().workspace for plans in self.known.values())

    def __call__(self, *tensors: torch.Tensor) -> None:
        inputs = 3 if self.whole.has_vector else 2
        x, w, *bias = [t.data_ptr() for t in tensors[:inputs]]
        outs = [t.data_ptr() for t in tensors[inputs:]]
        vector = bias[0] if bias else 0
        step = outs[1] - outs[0]
        even = step > 0 and all(b - a == step for a, b in pairwise(outs))
        alignment = aligned(reduce(or_, (x, w, vector, step, *self.steps, *outs)))
        key = step // self.itemsize if even else 0, alignment
        try:
            plan = self.of(*key)()
        except Unsupported:
            if key == self.prepared:
                raise
            self.apart(tensors[:inputs], tensors[inputs:])
            return
        if even:
            plan.with_vectors(x, w, outs[0], vector)
            return
        for i, out in enumerate(outs):
            at = [start + i * s for start, s in zip((w, vector), self.steps, strict=True)]
            plan.with_vectors(x, at[0], out, at[1])

    def apart(self, inputs: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
        """Compute the parts evenly spaced, and copy them to where they are wanted."""
        parts = torch.empty((len(outs), *outs[0].shape), dtype=outs[0].dtype, device=outs[0].device)
        with_copies(self, *inputs, *parts, results=())
        for out, part in zip(outs, parts, strict=True):
            out.copy_(part)

    def of(self, step: int, alignment: int) -> Plans:
        """Return the plans of parts ``step`` elements apart; of a single part, if that is 0. The
        configuration is that of the parts that it was prepared for.
        """
        key = step, alignment
        if key not in self.known:
            one = replace(self.whole, alignment=alignment, out_step=step)
            if not step:
                x2 = replace(one.x2, step=0)
                one = replace(one, batch=1, x2=x2, vector_step=0)
            config = self.config if key == self.prepared else ()
            self.known[key] = Plans(one, self.device, config)
        return self.known[key]


def _split_product(
    x: TensorType, w: TensorType, transposed: bool, parts: Any, axis: Any, results: Any, **more: Any
) -> Problem:
    """Return the batch that makes all parts; Unsupported if they are not of equal width."""
    of = problem(x, w, False, transposed, **more)
    count = parts if isinstance(parts, int) else 0
    if not isinstance(results, tuple) or len(results) != count or count < 2 or of.batch > 1:
        raise Unsupported("the product is not cut into equal parts")
    first = results[0]
    decline_if(axis % first.ndim != first.ndim - 1, "the product is not cut along its columns")
    n = of.n // count
    require_columns(n, first)
    if n * bits(x.dtype) // 8 % ALIGNMENT:
        raise Unsupported(f"the parts' rows do not begin at multiples of {ALIGNMENT} bytes")
    x2 = replace(of.x2, step=n * of.k if transposed else n)
    return replace(of, batch=count, n=n, x2=x2, vector_step=n if of.has_vector else 0)


def _define_split(name: str, product: Any, transposed: bool) -> None:
    """Register a product and its split, with bias and without."""

    def make(
        x: TensorType, w: TensorType, parts: Any, axis: int, result: Any, device: Device,
        b: TensorType | None = None, along: int = 0,
    ) -> OpEnv:  # fmt: skip
        epilogue = "none" if b is None else "bias"
        of = _split_product(x, w, transposed, parts, axis, result, epilogue=epilogue)
        if b is not None:
            require_last(along, b, result[0])
        return prepared(partial(SplitProduct, of, device.ordinal), adjacent=True)

    def biased(x: Any, w: Any, b: Any, along: Any, parts: Any, axis: Any) -> Any:
        return op.split(op.bias_add(rows(product, x, w), b, along), parts, axis)

    def alone(x: Any, w: Any, parts: Any, axis: Any) -> Any:
        return op.split(rows(product, x, w), parts, axis)

    dialect.pattern_op(biased, name=f"{name}_bias_split")(make)
    dialect.pattern_op(alone, name=f"{name}_split")(make)


for _name, _of in PRODUCTS.items():
    _define_split(_name, *_of)
