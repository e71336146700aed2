"""Elementwise operators of one tensor, and the ``_dx`` operators of their gradients.

Add one here: a type function, usually ``return floating(np.exp, x)`` where a result is a real
number, or ``return same(f, x)`` where it has the argument's dtype. A Python number is accepted as
the argument as well and gives a Python number at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meta.base.dtype import is_float
from meta.base.errors import TypeInferError
from meta.op.core import Scalar, Tensor, TensorType, numbers, op
from meta.op.core.check import require, require_float
from meta.op.core.same_dtype import require_same_dtype


def floating(on_number: Callable[[Any], Any], x: Any) -> TensorType:
    """Return the type of a real function of ``x``: its own if it is floating, else float32."""
    if not isinstance(x, TensorType):
        return numbers.of_float(on_number, x)  # type: ignore[return-value]
    return x if is_float(x.dtype) else x.with_dtype("float32")


def same(on_number: Callable[[Any], Any], x: Any) -> TensorType:
    """Return the type of a function of ``x`` that keeps the dtype."""
    return x if isinstance(x, TensorType) else on_number(x)


@op
def relu(x: Scalar | Tensor) -> Tensor:
    """max(x, 0), elementwise.

    ``x``: any shape and dtype. The result has its type; a NaN stays a NaN.
    """
    return same(lambda n: n if n != n else max(n, type(n)(0)), x)


def _gelu(n: Any, approximate: str) -> Any:
    if approximate == "none":
        return n * (1 + math.erf(n / math.sqrt(2))) / 2
    return n * (1 + math.tanh(math.sqrt(2 / math.pi) * (n + 0.044715 * n**3))) / 2


def _require_form(approximate: str) -> None:
    require(
        approximate in ("none", "tanh"),
        "unknown form of gelu",
        expected='approximate "none" or "tanh"',
        found=approximate,
    )


@op
def gelu(x: Scalar | Tensor, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: x * (1 + erf(x / sqrt(2))) / 2.

    ``x``: any shape. The result has its dtype; of an integer or bool tensor it is float32.
    ``approximate``: "none" for the exact form, or "tanh" for the approximation
    x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2. Raises TypeInferError for another.
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    _require_form(approximate)
    return floating(lambda n: _gelu(n, approximate), x)


@op
def tanh(x: Scalar | Tensor) -> Tensor:
    """Hyperbolic tangent.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.tanh, x)


@op
def sigmoid(x: Scalar | Tensor) -> Tensor:
    """1 / (1 + exp(-x)), without overflow.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(lambda n: 1 / (1 + np.exp(-n)), x)


@op
def erf(x: Scalar | Tensor) -> Tensor:
    """Error function: 2 / sqrt(pi) times the integral of exp(-t**2) for t from 0 to x.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(math.erf, x)


@op
def sqrt(x: Scalar | Tensor) -> Tensor:
    """Square root; NaN below zero.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.sqrt, x)


def _gradient(
    x: TensorType | None, y: TensorType | None, dy: TensorType, *, use_y: bool = True
) -> TensorType:
    """Return the type of a gradient operator's result, that of x or y, after checking all three."""
    argument = y if x is None and use_y else x
    if argument is None:
        raise TypeInferError(
            "neither x nor y is given" if use_y else "x is not given",
            expected="the argument x or the result y" if use_y else "the argument x",
        )
    given = {n: t for n, t in (("x", x), ("y", y), ("dy", dy)) if t is not None}
    for name, tensor in given.items():
        require_float(tensor, name)
        require(tensor.shape == dy.shape, f"{name} does not match dy", expected=list(dy.shape))
    require_same_dtype(*given.values())
    return argument


@op(forward=relu, enough=(("x",), ("y",)))
def relu_dx(x: Tensor | None, y: Tensor | None, dy: Tensor) -> Tensor:
    """Gradient of `relu`: dy where y > 0 (equivalently x > 0), else 0.

    ``x``, ``y``: argument and result of the forward call; one may be None, ``y`` is used if given.
    ``dy``: gradient of the result. All floating, of one type, which the result has.
    Raises TypeInferError if x and y are both None or the types differ.
    """
    return _gradient(x, y, dy)


@op(forward=gelu, enough=(("x",),))
def gelu_dx(x: Tensor | None, y: Tensor | None, dy: Tensor, approximate: str = "none") -> Tensor:
    """Gradient of `gelu`: dy * (P(x) + x * p(x)), P and p the normal distribution and density.

    ``x``: argument of the forward call, needed. ``y``: its result, not used, may be None. ``dy``:
    gradient of the result. All floating, of one type, which the result has.
    ``approximate``: as in `gelu`; the derivative of that form.
    Raises TypeInferError if x is None, the types differ or the form is unknown.
    """
    _require_form(approximate)
    return _gradient(x, y, dy, use_y=False)


@op(forward=tanh, enough=(("x",), ("y",)))
def tanh_dx(x: Tensor | None, y: Tensor | None, dy: Tensor) -> Tensor:
    """Gradient of `tanh`: dy * (1 - y**2).

    ``x``, ``y``: argument and result of the forward call; one may be None, ``y`` is used if given.
    ``dy``: gradient of the result. All floating, of one type, which the result has.
    Raises TypeInferError if x and y are both None or the types differ.
    """
    return _gradient(x, y, dy)


@op(forward=sigmoid, enough=(("x",), ("y",)))
def sigmoid_dx(x: Tensor | None, y: Tensor | None, dy: Tensor) -> Tensor:
    """Gradient of `sigmoid`: dy * y * (1 - y).

    ``x``, ``y``: argument and result of the forward call; one may be None, ``y`` is used if given.
    ``dy``: gradient of the result. All floating, of one type, which the result has.
    Raises TypeInferError if x and y are both None or the types differ.
    """
    return _gradient(x, y, dy)


@op(forward=erf, enough=(("x",),))
def erf_dx(x: Tensor | None, y: Tensor | None, dy: Tensor) -> Tensor:
    """Gradient of `erf`: dy * 2 / sqrt(pi) * exp(-x**2).

    ``x``: argument of the forward call, needed. ``y``: its result, not used, may be None. ``dy``:
    gradient of the result. All floating, of one type, which the result has.
    Raises TypeInferError if x is None or the types differ.
    """
    return _gradient(x, y, dy, use_y=False)


@op(forward=sqrt, enough=(("x",), ("y",)))
def sqrt_dx(x: Tensor | None, y: Tensor | None, dy: Tensor) -> Tensor:
    """Gradient of `sqrt`: dy / (2 * y), infinite at 0.

    ``x``, ``y``: argument and result of the forward call; one may be None, ``y`` is used if given.
    ``dy``: gradient of the result. All floating, of one type, which the result has.
    Raises TypeInferError if x and y are both None or the types differ.
    """
    return _gradient(x, y, dy)


@op
def exp(x: Scalar | Tensor) -> Tensor:
    """e**x. ``x``: any shape; its dtype is the result's, float32 for ints and bool."""
    return floating(np.exp, x)


@op
def log(x: Scalar | Tensor) -> Tensor:
    """Natural logarithm; -inf at 0, NaN below.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.log, x)


@op
def rsqrt(x: Scalar | Tensor) -> Tensor:
    """1 / sqrt(x); inf at 0, NaN below.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(lambda n: 1 / np.sqrt(n), x)


@op
def negative(x: Scalar | Tensor) -> Tensor:
    """-x. ``x``: numbers of any shape and dtype; the result has its type.

    Integers wrap: the smallest is its own negative, and uint8 counts modulo 256. Raises
    TypeInferError for bool.
    """
    require(
        not isinstance(x, TensorType) or x.dtype != "bool",
        "bool has no negative",
        expected="a dtype of numbers; for the opposite use logical_not",
    )
    return same(lambda n: -n, x)


@op
def abs(x: Scalar | Tensor) -> Tensor:
    """Absolute value. ``x``: any shape and dtype; the result has its type. Integers wrap."""
    return same(lambda n: n if n > 0 else 0 - n, x)


@op
def logical_not(x: Scalar | Tensor) -> Tensor:
    """True where ``x`` is zero or False. ``x``: any shape and dtype; the result is bool."""
    if not isinstance(x, TensorType):
        return not x  # type: ignore[return-value]
    return x.with_dtype("bool")


@op(float8=True)
def copy(x: Scalar | Tensor) -> Tensor:
    """The values of ``x`` in memory of their own. ``x``: any shape and dtype."""
    return same(lambda n: n, x)
