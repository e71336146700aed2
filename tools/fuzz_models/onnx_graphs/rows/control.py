"""If, Loop and Scan: graphs inside of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from tools.fuzz_models.onnx_graphs.draw import Draw, Node, Rejected, Row, Value
from tools.fuzz_models.onnx_graphs.program import kind_of

UNARY = ("Neg", "Tanh", "Sigmoid", "Abs", "Relu", "Identity", "Sin", "Softplus")
BINARY = ("Add", "Sub", "Mul", "Max")


def chain(draw: Draw, start: str, beside: tuple[str, ...]) -> tuple[list[Any], str]:
    """Return nodes that keep the shape of a value, and the last result."""
    nodes, last = [], start
    for _ in range(draw.random.randint(1, 3)):
        name = draw.fresh("i")
        if draw.chance(0.5):
            nodes.append(helper.make_node(draw.random.choice(UNARY), [last], [name]))
        else:
            other = draw.random.choice((start, *beside))
            nodes.append(helper.make_node(draw.random.choice(BINARY), [last, other], [name]))
        last = name
    return nodes, last


def typed(name: str, value: Value) -> Any:
    return helper.make_tensor_value_info(name, kind_of(value.arrays[0][0]), None)


def graph(draw: Draw, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> GraphProto:
    return helper.make_graph(nodes, draw.fresh("g"), inputs, outputs)


def condition(draw: Draw) -> str:
    """Return the name of a bool scalar: an input, computed of one, known, or of an extent."""
    kind = draw.random.random()
    if kind < 0.3:
        (made,) = draw.add(Node("Size", (draw.pick().name,)))
        bound = draw.constant(np.array(draw.random.randint(1, 30)))
        return draw.add(Node("Less", (made.name, bound)))[0].name
    if kind < 0.45:
        return draw.constant(np.array(draw.chance(0.5)))
    scalars = [v for v in draw.values if v.dtype == "bool" and v.ndim == 0]
    return draw.random.choice(scalars).name if scalars else draw.input((), "bool").name


def if_(draw: Draw) -> Node | None:
    """Branches of one type, or of other extents."""
    x = draw.pick(lambda v: v.is_float)
    test = condition(draw)
    branches = []
    other = draw.chance(0.2) and x.ndim >= 1
    for which in range(2):
        nodes, last = chain(draw, x.name, ())
        if other and which:
            name = draw.fresh("i")
            nodes.append(helper.make_node("Concat", [last, x.name], [name], axis=0))
            last = name
        branches.append(graph(draw, nodes, [], [typed(last, x)]))
    node = helper.make_node(
        "If", [test], [draw.fresh()], then_branch=branches[0], else_branch=branches[1]
    )
    draw.add(Node("If", (test,)), node, used=(x.name,))
    return None


def loop(draw: Draw) -> Node | None:
    """A trip count that is known or an extent, at times a condition, a state, and rows of it."""
    x = draw.pick(lambda v: v.is_float and v.ndim <= 3)
    outer = draw.pick(lambda v: v.dtype == x.dtype and v.shapes == x.shapes)
    if draw.chance(0.6):
        trips = draw.constant(np.array(draw.random.randint(1, 4)))
    else:
        (made,) = draw.add(Node("Size", (draw.pick(lambda v: v.ndim <= 1).name,)))
        trips = made.name
    i, on, state = (draw.fresh("i") for _ in range(3))
    nodes, last = chain(draw, state, (outer.name,))
    row_nodes, row = chain(draw, state, ())
    going = draw.fresh("i")
    ends = draw.chance(0.3)
    if ends:
        bound = draw.constant(np.array(draw.random.randint(1, 3)))
        nodes.append(helper.make_node("Less", [i, bound], [going]))
    else:
        nodes.append(helper.make_node("Identity", [on], [going]))
    tanh = draw.fresh("i")
    nodes.append(helper.make_node("Tanh", [last], [tanh]))
    inputs = [
        helper.make_tensor_value_info(i, TensorProto.INT64, []),
        helper.make_tensor_value_info(on, TensorProto.BOOL, []),
        typed(state, x),
    ]
    flag = helper.make_tensor_value_info(going, TensorProto.BOOL, [])
    rows = draw.chance(0.6)
    outputs = [flag, typed(tanh, x), *([typed(row, x)] if rows else [])]
    body = graph(draw, [*nodes, *(row_nodes if rows else [])], inputs, outputs)
    start = draw.constant(np.array(True)) if draw.chance(0.5) or ends else ""
    results = [draw.fresh() for _ in range(1 + rows)]
    node = helper.make_node("Loop", [trips, start, x.name], results, body=body)
    used = (outer.name, *(n for n in (bound,) if ends)) if ends else (outer.name,)
    draw.add(Node("Loop", (trips, start, x.name)), node, used=used)
    return None


def scan(draw: Draw) -> Node | None:
    """A state and a sequence, along the first axis, at times backwards."""
    xs = draw.pick(lambda v: v.is_float and v.ndim >= 2 and min(s[0] for s in v.shapes) > 0)
    if not all(xs.fixed[1:]):
        raise Rejected("the state's shape is not fixed")
    start = draw.constant(draw.array(xs.shape[1:], xs.dtype))
    state, row, total, out = (draw.fresh("i") for _ in range(4))
    scaled = draw.fresh("i")
    nodes = [
        helper.make_node("Tanh", [state], [scaled]),
        helper.make_node("Add", [scaled, row], [total]),
        helper.make_node(draw.random.choice(("Mul", "Max")), [total, row], [out]),
    ]
    one = Value("", tuple((a[0], b[0]) for a, b in xs.arrays))
    body = graph(
        draw, nodes, [typed(state, one), typed(row, one)], [typed(total, one), typed(out, one)]
    )
    attributes: dict[str, Any] = {"num_scan_inputs": 1, "body": body}
    if draw.chance(0.3):
        attributes["scan_input_directions"] = [1]
    node = helper.make_node("Scan", [start, xs.name], [draw.fresh(), draw.fresh()], **attributes)
    draw.add(Node("Scan", (start, xs.name)), node)
    return None


ROWS: dict[str, Row] = {"If": if_, "Loop": loop, "Scan": scan}
