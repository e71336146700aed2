"""More elementwise operators of two tensors or numbers, with numpy's broadcasting.

Tensors have one dtype, and a Python number takes a tensor's (`op/core/same_dtype.py`). Two Python
numbers give a Python number at once. Add one here: `arithmetic` is the type function of a result in
the operands' dtype, `_real` of a real function, which is float32 for ints and bools.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta.base.dtype import is_float
from meta.op.binary import Function, arithmetic, comparison
from meta.op.core import AnyScalar, Scalar, Tensor, TensorType, op
from meta.op.core.check import require_float


def _of_floats(function: Function) -> Function:
    """Return numpy's function of numbers as float64; poles and domain errors give inf and NaN."""

    def on_numbers(x1: Any, x2: Any) -> float:
        with np.errstate(all="ignore"):
            return float(function(np.float64(x1), np.float64(x2)))

    return on_numbers


def _real(function: Function, x1: Any, x2: Any) -> TensorType:
    result = arithmetic(_of_floats(function), x1, x2)
    if isinstance(result, TensorType) and not is_float(result.dtype):
        return result.with_dtype("float32")
    return result


def _of_float_tensors(function: Function, x1: Any, x2: Any) -> TensorType:
    for name, x in (("x1", x1), ("x2", x2)):
        if isinstance(x, TensorType):
            require_float(x, name)
    return arithmetic(_of_floats(function), x1, x2)


def _fmod(x1: Any, x2: Any) -> Any:
    if isinstance(x1, float) or isinstance(x2, float):
        return _of_floats(np.fmod)(x1, x2)
    remainder = abs(x1) % abs(x2) if x2 else 0
    return remainder if x1 >= 0 else -remainder


@op
def fmod(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The remainder x1 - x2 * trunc(x1 / x2); it has the sign of x1, unlike `mod`.

    ``x1``, ``x2``: numbers of one dtype, which is the result's, broadcast against one another.
    By zero: 0 for integers, NaN for floating point.
    Raises TypeInferError for bools, different dtypes or shapes that do not broadcast.
    """
    return arithmetic(_fmod, x1, x2, of_bools=False)


@op
def copysign(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """|x1| with the sign of x2, zeros' included.

    ``x1``, ``x2``: of one dtype, broadcast against one another; the result has it, float32 for ints
    and bool. Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return _real(np.copysign, x1, x2)


@op(commutative=True)
def hypot(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """sqrt(x1**2 + x2**2), without overflow between.

    ``x1``, ``x2``: floating point of one dtype, which is the result's, broadcast against one
    another. Raises TypeInferError for other dtypes or shapes that do not broadcast.
    """
    return _of_float_tensors(np.hypot, x1, x2)


@op
def fmax(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The larger of x1 and x2; the other one where one is NaN, unlike `maximum`.

    ``x1``, ``x2``: of one dtype, which is the result's, broadcast against one another.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return arithmetic(lambda a, b: a if b != b or a >= b else b, x1, x2)


@op
def fmin(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The smaller of x1 and x2; the other one where one is NaN. Arguments as of `fmax`."""
    return arithmetic(lambda a, b: a if b != b or a <= b else b, x1, x2)


@op(commutative=True)
def logaddexp(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """log(exp(x1) + exp(x2)), without overflow. Arguments as of `hypot`."""
    return _of_float_tensors(np.logaddexp, x1, x2)


@op(commutative=True)
def logaddexp2(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """log2(2**x1 + 2**x2), without overflow. Arguments as of `hypot`."""
    return _of_float_tensors(np.logaddexp2, x1, x2)


def _heaviside(x1: Any, x2: Any) -> Any:
    number = float if isinstance(x1, float) or isinstance(x2, float) else int
    return number(x2 if x1 == 0 else x1 > 0)


@op
def heaviside(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The step of x1: 0 below 0 and of NaN, 1 above, x2 at 0. Arguments as of `fmax`."""
    return arithmetic(_heaviside, x1, x2)


@op
def ldexp(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 * 2**x2; the exponent may be broken. Arguments as of `copysign`."""
    return _real(lambda a, b: a * np.exp2(b), x1, x2)


def _close(x1: Any, x2: Any, rtol: float, atol: float, equal_nan: bool) -> bool:
    if math.isnan(x1) and math.isnan(x2):
        return equal_nan
    near = math.isfinite(x1 - x2) and abs(x1 - x2) <= atol + rtol * abs(x2)
    return bool(x1 == x2 or near)


@op
def isclose(
    x1: AnyScalar | Tensor,
    x2: AnyScalar | Tensor,
    rtol: AnyScalar = 1e-5,
    atol: AnyScalar = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Whether |x1 - x2| <= atol + rtol * |x2|, or both are the same infinity.

    ``x1``, ``x2``: of one dtype, broadcast against one another; the result is bool. ``equal_nan``:
    whether two NaNs are close. Half precision is compared in float32, integers in float64.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return comparison(lambda a, b: _close(a, b, rtol, atol, equal_nan), x1, x2)


@op
def nextafter(x1: Tensor, x2: Tensor) -> Tensor:
    """The number of the dtype that follows x1 on the way to x2; x2 where they are equal.

    ``x1``, ``x2``: floating point tensors of one dtype, which is the result's, broadcast against
    one another. Raises TypeInferError for other dtypes or shapes that do not broadcast.
    """
    return _of_float_tensors(np.nextafter, x1, x2)
