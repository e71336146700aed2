"""Reductions, running sums and normalised exponentials."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tools.fuzz_models.onnx_graphs.draw import Draw, Node, Rejected, Row
from tools.fuzz_models.onnx_graphs.rows.shapes import axis_of

OPERATORS = (
    *("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"),
)


def reduction(draw: Draw, op: str) -> Node:
    """Axes are an attribute until opset 12 (sum) or 17."""
    x = draw.pick(lambda v: v.is_float or (v.dtype == "int64" and op in ("Sum", "Max", "Min")))
    if op == "LogSum":
        (x,) = draw.add(Node("Abs", (x.name,)))
    count = draw.random.randint(0, x.ndim)
    axes = draw.random.sample(range(x.ndim), count)
    axes = [a - x.ndim if draw.opset >= 11 and draw.chance(0.3) else a for a in axes]
    attributes: dict[str, Any] = {}
    if draw.chance(0.6):
        attributes["keepdims"] = draw.random.randint(0, 1)
    name = f"Reduce{op}"
    if draw.opset < (13 if op == "Sum" else 18):
        return Node(name, (x.name,), attributes | ({"axes": axes} if axes else {}))
    if not axes and draw.chance(0.5):
        attributes["noop_with_empty_axes"] = draw.random.randint(0, 1)
    return Node(name, (x.name, draw.ints(*axes)) if axes else (x.name,), attributes)


def arg(draw: Draw, op: str) -> Node:
    x = draw.pick(lambda v: v.is_float and v.ndim >= 1)
    attributes: dict[str, Any] = {
        "axis": axis_of(draw, x) % x.ndim,
        "keepdims": draw.random.randint(0, 1),
    }
    if draw.opset >= 12 and draw.chance(0.3):
        attributes["select_last_index"] = 1
    return Node(op, (x.name,), attributes)


def normalised(draw: Draw, op: str) -> Node:
    x = draw.pick(lambda v: v.is_float and v.ndim >= 1)
    if draw.opset < 13:
        # Until then the axes behind were one; the reference evaluator does not know that.
        return Node(op, (x.name,), {"axis": x.ndim - 1})
    return Node(op, (x.name,), {"axis": axis_of(draw, x)} if draw.chance(0.8) else {})


def cumsum(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 1 and v.dtype in ("float32", "float64", "int64"))
    attributes = {n: 1 for n in ("exclusive", "reverse") if draw.chance(0.4)}
    return Node("CumSum", (x.name, draw.constant(np.array(axis_of(draw, x)))), attributes)


ROWS: dict[str, Row] = {
    **{f"Reduce{op}": partial(reduction, op=op) for op in OPERATORS},
    **{op: partial(arg, op=op) for op in ("ArgMax", "ArgMin")},
    **{op: partial(normalised, op=op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    "CumSum": cumsum,
}
