"""Operators of elements, with their attributes, and those of two or more that broadcast."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from tools.fuzz_models.onnx_graphs.draw import Draw, Node, Rejected, Row, Value

FLOATS = (
    *("Abs", "Neg", "Ceil", "Floor", "Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Relu", "Sin"),
    *("Cos", "Tan", "Sinh", "Cosh", "Atan", "Asin", "Acos", "Asinh", "Erf", "Softplus"),
    *("Softsign", "Reciprocal", "Sign", "Identity", "HardSwish", "Mish", "Round", "Not", "IsNaN"),
)
SINCE = {"Round": 11, "HardSwish": 14, "Mish": 18, "Gelu": 20, "IsInf": 10, "Mod": 10, "Swish": 24}
POSITIVE = ("Sqrt", "Log")
DTYPES = ("float32", "float64", "float16")
FLOAT32 = ("Erf", "HardSwish", "Gelu", "Swish", "Mish")
"""Computed in float32, or with constants of float32, by the reference evaluator."""
BELOW_ONE = ("Asin", "Acos")


def floats(value: Value) -> bool:
    return value.is_float


def of_float(draw: Draw, op: str, attributes: Any = None) -> Node:
    """An operator of one floating point value."""
    if draw.opset < SINCE.get(op, 1):
        raise Rejected("too old")
    kinds = ("bool",) if op == "Not" else ("float32",) if op in FLOAT32 else DTYPES
    x = draw.pick(lambda v: v.dtype in kinds)
    if op in POSITIVE:
        (x,) = draw.add(Node("Abs", (x.name,)))
    if op in BELOW_ONE:
        (x,) = draw.add(Node("Tanh", (x.name,)))
        (x,) = draw.add(Node("Mul", (x.name, draw.constant(np.array(0.9, x.dtype)))))
    return Node(op, (x.name,), attributes(draw) if attributes else {})


def some(draw: Draw, **ranges: tuple[float, float]) -> dict[str, Any]:
    """Return some of the attributes, which lie in ranges."""
    return {n: draw.random.uniform(*r) for n, r in ranges.items() if draw.chance(0.6)}


WITH_ATTRIBUTES = {
    "LeakyRelu": lambda d: some(d, alpha=(-0.5, 0.5)),
    "Elu": lambda d: some(d, alpha=(0.2, 2)),
    "Selu": lambda d: some(d, alpha=(0.5, 2), gamma=(0.5, 2)),
    "Celu": lambda d: some(d, alpha=(0.5, 2)),
    "HardSigmoid": lambda d: some(d, alpha=(0.1, 0.4), beta=(0.2, 0.6)),
    # ONNX rounds what is compared to the dtype of the data; the evaluator does not.
    "ThresholdedRelu": lambda d: {"alpha": d.random.randint(-64, 128) / 128},
    "Shrink": lambda d: {"lambd": d.random.randint(25, 128) / 128, **some(d, bias=(-0.5, 0.5))},
    "Gelu": lambda d: {"approximate": d.random.choice(("none", "tanh"))},
    "IsInf": lambda d: {"detect_negative": d.random.randint(0, 1)} if d.chance(0.5) else {},
}


def partner(draw: Draw, x: Value) -> str:
    """Return the name of what broadcasts against a value: another value, or a constant."""
    like = [v for v in draw.values if v.dtype == x.dtype]
    random = draw.random
    if like and draw.chance(0.6):
        return random.choice(like).name
    shape = [e if f and draw.chance(0.7) else 1 for e, f in zip(x.shape, x.fixed, strict=True)]
    shape = shape[random.randint(0, len(shape)) :] if draw.chance(0.4) else shape
    return draw.constant(draw.array(shape, x.dtype))


def binary(draw: Draw, op: str) -> Node:
    """An arithmetic operator or a comparison."""
    if draw.opset < SINCE.get(op, 1):
        raise Rejected("too old")
    numbers = ("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less", "Mod")
    x = draw.pick(lambda v: v.dtype != "bool" and v.dtype != "uint8" if op in numbers else True)
    other = partner(draw, x)
    if op == "Div" or op == "Mod":
        other = draw.constant(nonzero(draw, x))
    if op == "Pow":
        (x,) = draw.add(Node("Abs", (x.name,)))
        other = draw.constant(np.array(draw.random.choice((2, 3, 1, 0.5, -1)), "float32"))
        if draw.opset < 12 or not x.is_float:
            other = draw.constant(np.array(2, x.dtype))
        return Node(op, (x.name, other))
    attributes = {"fmod": 1} if op == "Mod" and (x.is_float or draw.chance(0.3)) else {}
    pair = (x.name, other)
    return Node(
        op, pair[::-1] if draw.chance(0.3) and op not in ("Div", "Mod") else pair, attributes
    )


def nonzero(draw: Draw, x: Value) -> Any:
    """Return numbers of a dtype that are far from 0."""
    shape = x.shape[-1:] if x.ndim and x.fixed[-1] and draw.chance(0.6) else ()
    values = draw.array(shape, x.dtype, 1, 3)
    signs = 1 if x.dtype == "uint8" else draw.numbers.choice([-1, 1], shape)
    return (values * signs).astype(x.dtype)


def logical(draw: Draw, op: str) -> Node:
    x = draw.pick(lambda v: v.dtype == "bool")
    return Node(op, (x.name, partner(draw, x)))


def variadic(draw: Draw, op: str) -> Node:
    x = draw.pick(
        floats if op in ("Mean", "Sum") or draw.opset < 12 else lambda v: v.dtype != "bool"
    )
    return Node(op, (x.name, *(partner(draw, x) for _ in range(draw.random.randint(0, 2)))))


def where(draw: Draw) -> Node:
    c = draw.pick(lambda v: v.dtype == "bool")
    x = draw.pick(lambda v: v.ndim <= 4)
    return Node("Where", (c.name, x.name, partner(draw, x)))


def clip(draw: Draw) -> Node:
    x = draw.pick(
        floats if draw.opset < 12 else lambda v: v.dtype in ("float32", "int64", "float64")
    )
    low, high = sorted((draw.random.uniform(-1, 1), draw.random.uniform(-1, 1)))
    if x.is_integer:
        low, high = -1, 2
    if draw.opset < 11:
        given = {"min": low, "max": high}
        return Node("Clip", (x.name,), {n: v for n, v in given.items() if draw.chance(0.7)})
    bounds = [draw.constant(np.array(v, x.dtype)) if draw.chance(0.7) else "" for v in (low, high)]
    return Node("Clip", (x.name, *bounds))


def prelu(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.is_float and v.ndim >= 1)
    shape = [e if f else 1 for e, f in zip(x.shape, x.fixed, strict=True)]
    return Node("PRelu", (x.name, draw.constant(draw.array(shape, x.dtype))))


TARGETS = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}


def cast(draw: Draw) -> Node:
    x = draw.pick()
    to = draw.random.choice(list(TARGETS))
    if to == "uint8" and x.dtype not in ("bool", "uint8"):
        (x,) = draw.add(Node("Abs", (x.name,)))
    return Node("Cast", (x.name,), {"to": TARGETS[to]})


def cast_like(draw: Draw) -> Node:
    if draw.opset < 15:
        raise Rejected("too old")
    return Node("CastLike", (draw.pick().name, draw.pick(floats).name))


def bitwise(draw: Draw, op: str) -> Node:
    if draw.opset < 18:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.is_integer)
    return Node(op, (x.name,) if op == "BitwiseNot" else (x.name, partner(draw, x)))


def shift(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.dtype == "uint8")
    by = draw.constant(draw.array((), "uint8", 0, 3))
    return Node("BitShift", (x.name, by), {"direction": draw.random.choice(("LEFT", "RIGHT"))})


ROWS: dict[str, Row] = {
    **{op: partial(of_float, op=op) for op in FLOATS},
    **{op: partial(of_float, op=op, attributes=a) for op, a in WITH_ATTRIBUTES.items()},
    **{
        op: partial(binary, op=op)
        for op in ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Equal", "Greater", "Less")
    },
    **{op: partial(logical, op=op) for op in ("And", "Or", "Xor")},
    **{op: partial(variadic, op=op) for op in ("Max", "Min", "Sum", "Mean")},
    **{
        op: partial(bitwise, op=op)
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
    },
    "BitShift": shift,
    "Where": where,
    "Clip": clip,
    "PRelu": prelu,
    "Cast": cast,
    "CastLike": cast_like,
}
