"""Questions about floating point elements in TE.

They are comparisons, which are the same on all targets; one with a NaN is false.
"""

import math

from tvm import tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.compute import ELEMWISE, compute
from meta.dialect.tvm.elementwise import computing, constant, elementwise, is_nan


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
