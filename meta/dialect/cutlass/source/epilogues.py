"""The formulas of the epilogues that `meta.dialect.cutlass.kernel.FORMS` names.

A formula is a function of one element of the product, ``acc``, and of what is read beside it, by
the names that the form has; "D" is the first result and "kept" the second one. ``f`` is the
activation, or its gradient.

Activations and their gradients as epilogues compute them: on float32 numbers in registers.

On Blackwell an epilogue computes two neighbours at a time, a tuple; `elementwise` serves both.
Formulas
are chosen so that the result is right relative to itself, also where an activation is nearly 0:
gelu's tanh form is x * sigmoid(2 * u), as 1 + tanh(u) would cancel, and nothing uses the fast tanh
of the hardware, which has 11 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from cutlass import Float32, cute
from quack.activation import sigmoid
from quack.epilogue import F2, gemm_epilogue, unpack
from quack.epilogue.ops import ColVecLoad, RowVecLoad, TileLoad

from meta.dialect.cutlass.kernel import FORMS

_ERF, _DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
_TANH, _CUBIC = math.sqrt(2 / math.pi), 0.044715
_HALF_LOG2 = -0.5 * math.log2(math.e)


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of numbers as one of numbers or of pairs of them."""

    @wraps(function)
    def mapped(*values: Any) -> Any:
        if not isinstance(values[0], tuple):
            return function(*values)
        return F2(*[function(*lane) for lane in zip(*values, strict=True)])

    return mapped


@cute.jit
def _not_negative(x: Float32) -> Float32:
    return Float32(0.0) if x < 0.0 else x  # NaN stays NaN


@cute.jit
def _where_positive(y: Float32, dy: Float32) -> Float32:
    return Float32(0.0) if y <= 0.0 else dy


@elementwise
def identity(x: Any) -> Any:
    """x itself."""
    return x


@elementwise
def relu(x: Any) -> Any:
    """max(x, 0), NaN of NaN."""
    return _not_negative(x)


@elementwise
def relu_dx(y: Any, dy: Any) -> Any:
    """dy where relu was of something positive; ``y`` is its result or argument."""
    return _where_positive(y, dy)


@elementwise
def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


@elementwise
def silu_dx(x: Any, dy: Any) -> Any:
    """The gradient of `silu`."""
    s = sigmoid(x)
    return dy * (s + x * (s - s * s))


@elementwise
def gelu_tanh(x: Any) -> Any:
    """The tanh form of gelu."""
    return x * sigmoid(2.0 * _TANH * (x + _CUBIC * x * x * x))


@elementwise
def gelu_tanh_dx(x: Any, dy: Any) -> Any:
    """The gradient of `gelu_tanh`."""
    s = sigmoid(2.0 * _TANH * (x + _CUBIC * x * x * x))
    return dy * (s + x * (s - s * s) * (2.0 * _TANH * (1.0 + 3.0 * _CUBIC * x * x)))


@elementwise
def gelu(x: Any) -> Any:
    """gelu by the error function."""
    return 0.5 * x * (1.0 + cute.math.erf(x * _ERF))


@elementwise
def gelu_dx(x: Any, dy: Any) -> Any:
    """The gradient of `gelu`."""
    density = _DENSITY * cute.math.exp2(x * x * _HALF_LOG2)
    return dy * (0.5 * (1.0 + cute.math.erf(x * _ERF)) + x * density)


ACTIVATIONS = {f.__name__: f for f in (identity, relu, silu, gelu, gelu_tanh, elementwise(sigmoid))}
GRADIENTS = {
    "relu": relu_dx,
    "silu": silu_dx,
    "gelu": gelu_dx,
    "gelu_tanh": gelu_tanh_dx,
}
"""By the activation: of its argument (for relu, its result) and the gradient of its result."""


F = Callable[..., Any]
OPERANDS = {"row": RowVecLoad, "column": ColVecLoad, "tile": TileLoad}


def plain(f: F) -> F:
    return lambda acc: {"D": acc}


def act(f: F) -> F:
    return lambda acc: {"D": f(acc)}


def bias_act(f: F) -> F:
    return lambda acc, b: {"D": f(acc + b)}


def act_saved(f: F) -> F:
    return lambda acc: {"D": f(acc), "kept": acc}


def bias_act_saved(f: F) -> F:
    return lambda acc, b: {"D": f(acc + b), "kept": acc + b}


def add(f: F) -> F:
    return lambda acc, c: {"D": acc + c}


def bias_add(f: F) -> F:
    return lambda acc, b, c: {"D": acc + b + c}


def times(f: F) -> F:
    return lambda acc, c: {"D": acc * f(c)}


def bias_times(f: F) -> F:
    return lambda acc, b, c: {"D": (acc + b) * f(c)}


def times_saved(f: F) -> F:
    return lambda acc, c: {"D": acc * f(c), "kept": acc}


def act_dx(f: F) -> F:
    return lambda acc, c: {"D": f(c, acc)}


def gated_dx(f: F) -> F:
    """Of y = s * c with s = act(g): dc = acc * s, and kept dg, the gradient of act for acc * c."""
    return lambda acc, c, s, g: {"D": acc * s, "kept": f(g, acc * c)}


def gated_result_dx(f: F) -> F:
    """As `gated_dx`, where the gradient of act is one of its result, s."""
    return lambda acc, c, s: {"D": acc * s, "kept": f(s, acc * c)}


def gated(f: F) -> F:
    def epilogue(acc: Any) -> Any:
        first, second = unpack(acc)
        return {"kept": f(first) * second}

    return epilogue


def gated_second(f: F) -> F:
    def epilogue(acc: Any) -> Any:
        first, second = unpack(acc)
        return {"kept": first * f(second)}

    return epilogue


def rows(f: F) -> F:
    return lambda acc, r: {"D": acc * r}


def columns(f: F) -> F:
    return lambda acc, b: {"D": acc * b}


def rows_columns(f: F) -> F:
    return lambda acc, r, b: {"D": acc * r * b}


FORMULAS = {name: globals()[name] for name in FORMS}


@cache
def epilogue(form: str, activation: str) -> Any:
    """Return quack's object for an epilogue."""
    of = FORMS[form]
    functions = GRADIENTS if form.endswith("_dx") else ACTIVATIONS
    pinned = {name: OPERANDS[kind](name) for name, kind in of.operands if kind != "c"}
    outputs = ("kept",) if of.kept or of.paired else ()
    mode = "acc_pair" if of.paired else None
    return gemm_epilogue(outputs=outputs, ops=pinned, mode=mode)(
        FORMULAS[form](functions[activation])
    )
