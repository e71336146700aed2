"""Questions about floating point elements in TE, and the replacement of those that are not finite.

They are comparisons, which are the same on all targets; one with a NaN is false.
"""

import math

import torch
from tvm import tirx

from meta import op
from meta.base.dtype import TO_TORCH, is_float
from meta.dialect.tvm.broadcast import computing, constant, elementwise, is_nan
from meta.dialect.tvm.c_math import libm
from meta.dialect.tvm.compute import ELEMWISE, compute
from meta.op.classify import replacements


def _answer(function, x, of_ints):
    dtype = str(x.dtype)
    if not is_float(dtype):
        return elementwise(lambda v: tirx.const(of_ints, "bool"), x, dtype="bool")
    return elementwise(function, x, dtype="bool", within=computing(dtype))


def _infinity(v):
    return constant(math.inf, v)


@compute(op.isnan, ELEMWISE)
def isnan(x):
    return _answer(is_nan, x, False)


@compute(op.isinf, ELEMWISE)
def isinf(x):
    return _answer(lambda v: tirx.EQ(tirx.abs(v), _infinity(v)), x, False)


@compute(op.isfinite, ELEMWISE)
def isfinite(x):
    return _answer(lambda v: tirx.abs(v) < _infinity(v), x, True)


@compute(op.isposinf, ELEMWISE)
def isposinf(x):
    return _answer(lambda v: tirx.EQ(v, _infinity(v)), x, False)


@compute(op.isneginf, ELEMWISE)
def isneginf(x):
    return _answer(lambda v: tirx.EQ(v, constant(-math.inf, v)), x, False)


@compute(op.signbit, ELEMWISE)
def signbit(x):
    if is_float(str(x.dtype)):
        return _answer(lambda v: libm("copysign", constant(1, v), v) < constant(0, v), x, False)
    return elementwise(lambda v: v < constant(0, v), x, dtype="bool", within=computing(x.dtype))


@compute(op.nan_to_num, ELEMWISE)
def nan_to_num(x, nan, posinf, neginf, out):
    if not is_float(out.dtype):
        return elementwise(lambda v: v, x, dtype=out.dtype)
    largest = torch.finfo(TO_TORCH[out.dtype]).max
    instead = replacements(nan, posinf, neginf, largest)

    def finite(v):
        of_nan, above, below = (constant(n, v) for n in instead)
        infinite = tirx.Select(v > constant(0, v), above, below)
        other = tirx.Select(is_nan(v), of_nan, infinite)
        return tirx.Select(tirx.abs(v) < constant(math.inf, v), v, other)

    return elementwise(finite, x, dtype=out.dtype)
