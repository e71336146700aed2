"""If, Loop and Scan: graphs inside of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from tools.fuzz_models.generator import Missing
from tools.fuzz_models.onnx_graphs.program import kind_of

if TYPE_CHECKING:
    from tools.fuzz_models.onnx_graphs.draw import Draw

UNARY = ("Neg", "Tanh", "Sigmoid", "Abs", "Relu", "Identity", "Sin", "Softplus")
BINARY = ("Add", "Sub", "Mul", "Max")


def chain(draw: Draw, start: str, around: tuple[str, ...]) -> tuple[list[Any], str]:
    """Return nodes that keep the shape of a value, and the last result."""
    nodes, last = [], start
    for _ in range(draw.random.randint(1, 3)):
        name = draw.name("i")
        if draw.chance(0.5):
            nodes.append(helper.make_node(draw.random.choice(UNARY), [last], [name]))
        else:
            other = draw.random.choice((start, *around))
            nodes.append(helper.make_node(draw.random.choice(BINARY), [last, other], [name]))
        last = name
    return nodes, last


def typed(name: str, value: Any) -> Any:
    """Return the declaration of a value of an array's dtype."""
    return helper.make_tensor_value_info(name, kind_of(value), None)


def computed(draw: Draw, op: str, *names: str) -> Any:
    """Return the one result of a new node."""
    (found,) = draw.add(helper.make_node(op, names, [draw.name()]))
    return found


def graph(draw: Draw, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> GraphProto:
    return helper.make_graph(nodes, draw.name("g"), inputs, outputs)


def condition(draw: Draw) -> str:
    """Return the name of a bool scalar: an input, computed of one, known, or of an extent."""
    kind = draw.random.random()
    if kind < 0.3:
        size = computed(draw, "Size", draw.pick().name)
        bound = draw.constant(np.array(draw.random.randint(1, 30)))
        return str(computed(draw, "Less", size.name, bound).name)
    if kind < 0.45:
        return draw.constant(np.array(draw.chance(0.5)))
    scalars = [n for n in draw.scope if draw.value(n).dtype == "bool" and draw.value(n).ndim == 0]
    return draw.choice(scalars) if scalars else draw.input((), "bool").name


def if_(draw: Draw) -> None:
    """Branches of one type, or of other extents."""
    x = draw.pick(lambda v: v.is_float)
    test = condition(draw)
    branches = []
    other = draw.chance(0.2) and x.ndim >= 1
    for which in range(2):
        nodes, last = chain(draw, x.name, ())
        if other and which:
            name = draw.name("i")
            nodes.append(helper.make_node("Concat", [last, x.name], [name], axis=0))
            last = name
        branches.append(graph(draw, nodes, [], [typed(last, x.array)]))
    then, otherwise = branches
    draw.add(helper.make_node("If", [test], [draw.name()], then_branch=then, else_branch=otherwise))


def loop(draw: Draw) -> None:
    """A trip count that is known or an extent, at times a condition, a state, and rows of it."""
    x = draw.pick(lambda v: v.is_float and v.ndim <= 3)
    outer = draw.pick(lambda v: v.dtype == x.dtype and v.shapes == x.shapes)
    if draw.chance(0.6):
        trips = draw.constant(np.array(draw.random.randint(1, 4)))
    else:
        trips = computed(draw, "Size", draw.pick(lambda v: v.ndim <= 1).name).name
    i, on, state = (draw.name("i") for _ in range(3))
    nodes, last = chain(draw, state, (outer.name,))
    row_nodes, row = chain(draw, state, ())
    going = draw.name("i")
    ends = draw.chance(0.3)
    if ends:
        bound = draw.constant(np.array(draw.random.randint(1, 3)))
        nodes.append(helper.make_node("Less", [i, bound], [going]))
    else:
        nodes.append(helper.make_node("Identity", [on], [going]))
    tanh = draw.name("i")
    nodes.append(helper.make_node("Tanh", [last], [tanh]))
    inputs = [
        helper.make_tensor_value_info(i, TensorProto.INT64, []),
        helper.make_tensor_value_info(on, TensorProto.BOOL, []),
        typed(state, x.array),
    ]
    flag = helper.make_tensor_value_info(going, TensorProto.BOOL, [])
    rows = draw.chance(0.6)
    outputs = [flag, typed(tanh, x.array), *([typed(row, x.array)] if rows else [])]
    body = graph(draw, [*nodes, *(row_nodes if rows else [])], inputs, outputs)
    start = draw.constant(np.array(True)) if draw.chance(0.5) or ends else ""
    results = [draw.name() for _ in range(1 + rows)]
    draw.add(helper.make_node("Loop", [trips, start, x.name], results, body=body))


def scan(draw: Draw) -> None:
    """A state and a sequence, along the first axis, at times backwards."""
    xs = draw.pick(lambda v: v.is_float and v.ndim >= 2 and min(s[0] for s in v.shapes) > 0)
    if not all(xs.fixed[1:]):
        raise Missing("the state's shape is not fixed")
    start = draw.constant(draw.array(xs.shape[1:], xs.dtype))
    state, row, total, out = (draw.name("i") for _ in range(4))
    scaled = draw.name("i")
    nodes = [
        helper.make_node("Tanh", [state], [scaled]),
        helper.make_node("Add", [scaled, row], [total]),
        helper.make_node(draw.random.choice(("Mul", "Max")), [total, row], [out]),
    ]
    inputs, outputs = (
        [typed(name, xs.array) for name in names] for names in ((state, row), (total, out))
    )
    body = graph(draw, nodes, inputs, outputs)
    attributes: dict[str, Any] = {"num_scan_inputs": 1, "body": body}
    if draw.chance(0.3):
        attributes["scan_input_directions"] = [1]
    results = [draw.name(), draw.name()]
    draw.add(helper.make_node("Scan", [start, xs.name], results, **attributes))


CONTROL: dict[str, Callable[[Draw], None]] = {"If": if_, "Loop": loop, "Scan": scan}
"""How each is drawn and added."""
