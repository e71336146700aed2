"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

import math

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

A = np.array([[-7, 7, -8], [8, 5, 0]], np.int32)
B = np.array([2, -2, 3], np.int32)
X = np.array([[-7.5, 7.5, -8.0], [8.0, 5.25, 0.0]], np.float32)
Y = np.array([2.0, -2.0, 3.0], np.float32)
CONDITION = np.array([[True, False, True], [False, False, True]])


def elementwise(function):
    """A Python function of two numbers, with the dtype of the first operand."""
    return lambda a, b: np.vectorize(function, otypes=[a.dtype])(a, b)


def toward_zero(a, b):
    """The quotient of Python ints or floats without its fraction."""
    if isinstance(a, float):
        return math.trunc(a / b)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def rest(a, b):
    return a - toward_zero(a, b) * b


def quotient(a, b):
    return a / b if isinstance(a, float) else toward_zero(a, b)


def on_both(name, function):
    return [
        Case(name, (A, B), elementwise(lambda a, b: function(int(a), int(b))), label="ints"),
        Case(name, (X, Y), elementwise(lambda a, b: function(float(a), float(b))), label="floats"),
    ]


CASES = [
    *on_both("add", lambda a, b: a + b),
    *on_both("subtract", lambda a, b: a - b),
    *on_both("multiply", lambda a, b: a * b),
    Case("add", (A, B, B), refused="does not take these arguments", label="three"),
    Case("multiply", (A, B, B), refused="does not take these arguments", label="three"),
    Case("tile", (A, B), refused="does not take these arguments", attrs={"reps": (2, 2)},
         label="two tensors"),
    *on_both("divide", quotient),
    *on_both("trunc_divide", toward_zero),
    *on_both("floor_divide", lambda a, b: a // b),
    *on_both("mod", rest),
    *on_both("trunc_mod", rest),
    *on_both("floor_mod", lambda a, b: a - a // b * b),
    *on_both("maximum", max),
    *on_both("minimum", min),
    Case("power", (np.abs(X), Y), lambda a, b: a**b),
    Case("power", (A, np.abs(B)), lambda a, b: a**b, label="ints", dialects=("torch",)),
    Case("divide", (A.astype(np.uint8), np.abs(B).astype(np.uint8)), lambda a, b: a // b,
         label="unsigned"),
    Case("where", (CONDITION, X, np.zeros((1, 3), np.float32)), np.where),
    Case("where", (CONDITION, A, np.zeros((2, 1), np.int32)), np.where, label="ints"),
    Case("where", (np.array([1.0, 0.0, 2.0], np.float32), X, -X),
         lambda c, x, y: np.where(c != 0, x, y), label="a float condition broadcasts"),
    Case("where", (np.array([True, False]), X, -X), lambda c, x, y: np.where(c[:, None], x, y),
         label="rows: it would not broadcast"),
    Case("where", (np.array([True, False]), X[:, :2], -X[:, :2]),
         lambda c, x, y: np.where(c[:, None], x, y), version=(0, 7), label="rows before 0.8"),
    Case("where", (np.array([True, False]), X[:, :2], -X[:, :2]), np.where, version=(0, 8)),
]  # fmt: skip
