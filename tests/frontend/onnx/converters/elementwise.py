"""Cases of elementwise functions."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(2, 3)
UNIT = data(2, 3, low=-0.9, high=0.9)
ABOVE = data(2, 3, low=1.1, high=3.0)
INTEGERS = np.array([[7, -7, 3], [-3, 0, 120]], np.int32)
DIVISORS = np.array([[2, 2, -2], [-2, 5, 7]], np.int32)
TRUTH = np.array([[True, False, True], [False, False, True]])
OTHER = np.array([[True, True, False], [False, True, True]])
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -1.5], np.float32)

CASES: list[OnnxCase] = [
    *(
        c
        for n in ("Abs", "Ceil", "Exp", "Floor", "Neg", "Tanh")
        for c in calls(n, X, opsets=(6, 13))
    ),
    *(c for n in ("Cos", "Sin", "Tan", "Atan") for c in calls(n, X, opsets=(7, 22))),
    *(c for n in ("Sinh", "Cosh", "Asinh", "Erf", "Sign") for c in calls(n, X, opsets=(9, 23))),
    *(c for n in ("Acos", "Asin", "Atanh") for c in calls(n, UNIT, opsets=(9, 22))),
    *calls("Acosh", ABOVE, opsets=(9, 22)),
    *(c for n in ("Log", "Sqrt", "Reciprocal") for c in calls(n, ABOVE, opsets=(6, 13))),
    *calls("Round", np.array([0.5, 1.5, 2.5, -0.5, -1.2], np.float32), opsets=(11, 22)),
    *calls("IsNaN", SPECIAL, opsets=(9, 13, 20)),
    *calls("IsInf", SPECIAL, opsets=(10, 20)),
    *calls("IsInf", SPECIAL, opsets=(10, 20), detect_negative=0),
    *calls("IsInf", SPECIAL, opsets=(20,), detect_positive=0, detect_negative=0),
    *(c for n in ("Add", "Sub", "Mul") for c in calls(n, X, data(3), opsets=(7, 14))),
    *(c for n in ("Add", "Sub", "Mul", "Div") for c in calls(n, X, ABOVE[0], opsets=(7, 14))),
    *calls(
        "Add",
        data(2, 3, 4),
        data(3),
        opsets=(6,),
        axis=1,
        broadcast=1,
        expected=lambda a, b: a + b[:, None],
    ),
    *calls("Mul", data(2, 3), data(3), opsets=(1, 6), broadcast=1, expected=lambda a, b: a * b),
    *calls(
        "Div",
        INTEGERS,
        DIVISORS,
        opsets=(7, 14),
        label="drops the fraction",
        expected=lambda a, b: np.trunc(a / b).astype(np.int32),
    ),
    *calls(
        "Greater",
        data(2, 3),
        data(2),
        opsets=(6,),
        axis=0,
        broadcast=1,
        expected=lambda a, b: a > b[:, None],
    ),
    *(
        c
        for n in ("Greater", "Less", "Equal")
        for c in calls(n, INTEGERS, DIVISORS, opsets=(11, 13) if n == "Equal" else (9, 13))
    ),
    *(c for n in ("GreaterOrEqual", "LessOrEqual") for c in calls(n, X, X[::-1], opsets=(12, 16))),
    *calls("And", TRUTH, OTHER[0], opsets=(1,), broadcast=1, expected=lambda a, b: a & b),
    *calls("Max", X, data(3), np.float32([[0.1]]), opsets=(8, 12, 13)),
    *calls("Min", X, data(3), opsets=(8, 13)),
    *calls("Max", X, opsets=(13,), label="one"),
    *calls("Max", INTEGERS, DIVISORS, opsets=(12,), label="integers"),
    *calls("Sum", X, data(3), np.float32([[0.1]]), opsets=(8, 13)),
    *calls("Mean", X, data(3), np.float32([[0.1]]), opsets=(8, 13)),
    *calls("Pow", ABOVE, data(3), opsets=(7, 12, 15)),
    *calls(
        "Pow",
        ABOVE,
        np.array([2, 3, -1]),
        opsets=(15,),
        label="an integer exponent",
        expected=lambda a, b: (a.astype(np.float64) ** b).astype(np.float32),
    ),
    *calls(
        "Pow",
        INTEGERS,
        np.float32(2.0),
        opsets=(15,),
        label="a float exponent",
        expected=lambda a, b: (a.astype(np.float64) ** 2).astype(np.int32),
    ),
    *calls("Mod", INTEGERS, DIVISORS, opsets=(10, 13)),
    *calls("Mod", INTEGERS, DIVISORS, opsets=(13,), fmod=1),
    *calls("Mod", X, ABOVE, opsets=(13,), fmod=1),
    *calls(
        "BitShift",
        np.uint8([1, 2, 255]),
        np.uint8([1, 7, 9]),
        opsets=(11,),
        direction="LEFT",
        expected=lambda a, b: np.uint8([2, 0, 0]),
    ),
    *calls("BitShift", np.uint32([8, 2**31]), np.uint32([2, 31]), opsets=(11,), direction="RIGHT"),
    *calls(
        "BitShift",
        np.int32([-8, 7]),
        np.int32([1, 40]),
        opsets=(28,),
        direction="RIGHT",
        expected=lambda a, b: np.int32([-4, 0]),
    ),
    *calls(
        "BitShift",
        np.uint8([1]),
        np.uint8([1]),
        opsets=(11,),
        direction="UP",
        refused="LEFT or RIGHT",
    ),
    *calls("Where", TRUTH, X, data(3), opsets=(9, 16)),
    *calls("BitCast", X, opsets=(26,), to=TensorProto.INT16, refused="not of the same width"),
    *calls("Identity", X, opsets=(1, 13, 23)),
]
