"""Operators that read and write at positions, and that search."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz_models.onnx_graphs.draw import Draw, Node, Rejected, Row, Value
from tools.fuzz_models.onnx_graphs.rows.shapes import axis_of


def _least(x: Value, axis: int) -> int:
    extent = min(s[axis] for s in x.shapes)
    if extent < 1:
        raise Rejected("nothing to read")
    return extent


def _positions(draw: Draw, shape: tuple[int, ...], extent: int) -> Any:
    low = -extent if draw.opset >= 11 and draw.chance(0.5) else 0
    return draw.array(shape, draw.random.choice(("int64", "int64", "int32")), low, extent - 1)


def gather(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim >= 1)
    axis = axis_of(draw, x)
    shape = draw.random.choice(((), (3,), (2, 2), (1,)))
    names = (x.name, draw.constant(_positions(draw, shape, _least(x, axis))))
    return Node("Gather", names, {"axis": axis})


def gather_elements(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 1)
    axis = axis_of(draw, x) % x.ndim
    shape = tuple(_least(x, i) for i in range(x.ndim))
    shape = (*shape[:axis], draw.random.randint(1, 3), *shape[axis + 1 :])
    return Node(
        "GatherElements",
        (x.name, draw.constant(_positions(draw, shape, _least(x, axis)))),
        {"axis": axis},
    )


def gather_nd(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 2)
    depth = draw.random.randint(1, x.ndim)
    columns = [draw.array((3, 1), "int64", 0, _least(x, i) - 1) for i in range(depth)]
    return Node("GatherND", (x.name, draw.constant(np.concatenate(columns, 1))))


def scatter_elements(draw: Draw) -> Node:
    """Where an element is written more than once, there is a reduction."""
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 1 and v.dtype in ("float32", "float64", "int64"))
    axis = axis_of(draw, x) % x.ndim
    shape = [_least(x, i) for i in range(x.ndim)]
    count = draw.random.randint(1, shape[axis])
    shape[axis] = count
    order = np.argsort(
        draw.numbers.random((*shape[:axis], _least(x, axis), *shape[axis + 1 :])), axis
    )
    places = np.take(order, range(count), axis).astype(np.int64)
    attributes: dict[str, Any] = {"axis": axis}
    if draw.opset >= 18 and draw.chance(0.5):
        attributes["reduction"] = draw.random.choice(("add", "mul", "max", "min"))
    return Node(
        "ScatterElements",
        (x.name, draw.constant(places), draw.constant(draw.array(shape, x.dtype))),
        attributes,
    )


def scatter_nd(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 1 and all(v.fixed[1:]) and v.dtype in ("float32", "int64"))
    count = draw.random.randint(1, _least(x, 0))
    places = draw.numbers.permutation(_least(x, 0))[:count].reshape(-1, 1)
    attributes: dict[str, Any] = {}
    if draw.opset >= 18 and draw.chance(0.4):
        attributes["reduction"] = draw.random.choice(("add", "mul", "max", "min"))
    updates = draw.array((count, *x.shape[1:]), x.dtype)
    return Node("ScatterND", (x.name, draw.constant(places), draw.constant(updates)), attributes)


def compress(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim >= 1)
    axis = axis_of(draw, x) % x.ndim
    condition = draw.array((_least(x, axis),), "bool")
    condition[0] = True
    attributes = {"axis": axis} if draw.chance(0.8) else {}
    return Node("Compress", (x.name, draw.constant(condition)), attributes)


def non_zero(draw: Draw) -> Node:
    return Node("NonZero", (draw.pick(lambda v: v.ndim >= 1 and not v.is_float).name,))


def one_hot(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.dtype == "int64" and v.ndim <= 3)
    depth = draw.constant(np.array(draw.random.randint(2, 5)))
    values = draw.constant(draw.array((2,), draw.random.choice(("float32", "int64"))))
    axis = draw.random.randint(-1, x.ndim)
    return Node("OneHot", (x.name, depth, values), {"axis": axis})


def top_k(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.is_float and v.ndim >= 1)
    axis = axis_of(draw, x)
    k = draw.random.randint(1, _least(x, axis))
    attributes: dict[str, Any] = {"axis": axis}
    if draw.opset >= 11 and draw.chance(0.5):
        attributes["largest"] = draw.random.randint(0, 1)
    if draw.opset < 10:
        return Node("TopK", (x.name,), {**attributes, "k": k}, 2)
    return Node("TopK", (x.name, draw.ints(k)), attributes, 2)


def unique(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 1 and v.dtype in ("int64", "float32"))
    # The reference evaluator sorts what is the one result.
    results = draw.random.randint(1, 4)
    ordered = 1 if results == 1 else draw.random.randint(0, 1)
    return Node("Unique", (x.name,), {"sorted": ordered}, results)


ROWS: dict[str, Row] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Compress": compress,
    "NonZero": non_zero,
    "OneHot": one_hot,
    "TopK": top_k,
    "Unique": unique,
}
