"""What onnx's reference evaluator computes otherwise than ONNX says, or takes although ONNX does
not allow it; such nodes are not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

WINDOWS = ("Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool")


FLOAT32 = ("Attention", "Erf", "HardSwish", "Gelu", "Swish", "Mish")
"""Computed in float32, or with constants of float32, by the evaluator or by ONNX's function."""
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
Inputs = Sequence[Any]
"""By position; None for one that is left out."""


def _windows(node: Any, opset: int, inputs: Inputs, a: dict[str, Any]) -> bool:
    """It mixes up axes and sides of uneven pads, steps beyond a kernel, and rounding up."""
    pads, padded = a.get("pads", []), a.get("auto_pad", b"NOTSET") != b"NOTSET"
    if "Pool" in node.op_type and (len(set(pads)) > 1 or (a.get("ceil_mode") and (padded or pads))):
        return True
    return padded and max(a.get("strides", []), default=1) > 1


def _shapes_differ(inputs: Inputs, shapes: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether an input that is there has another shape than the one of its position."""
    return any(
        i < len(inputs) and inputs[i] is not None and inputs[i].shape != shape
        for i, shape in shapes.items()
    )


def _recurrent(node: Any, opset: int, inputs: Inputs, a: dict[str, Any]) -> bool:
    """Weights and states of other shapes are taken; sequences have the lengths that are stated."""
    x, hidden = inputs[0], a.get("hidden_size", inputs[2].shape[-1])
    steps, batch = x.shape[1::-1] if a.get("layout") else x.shape[:2]
    directions = 2 if a.get("direction") == b"bidirectional" else 1
    rows = GATES[node.op_type] * hidden
    state = (batch, directions, hidden) if a.get("layout") else (directions, batch, hidden)
    shapes = {
        1: (directions, rows, x.shape[2]),
        2: (directions, rows, hidden),
        3: (directions, 2 * rows),
        4: (batch,),
        5: state,
        6: state,
        7: (directions, 3 * hidden),
    }
    lengths = inputs[4] if len(inputs) > 4 else None
    return _shapes_differ(inputs, shapes) or (lengths is not None and (lengths != steps).any())


def _suppression(node: Any, opset: int, inputs: Inputs, a: dict[str, Any]) -> bool:
    boxes, scores, *numbers = inputs
    return (
        boxes.shape != (scores.shape[0], scores.shape[2], 4)
        or scores.ndim != 3
        or any(x is not None and x.size != 1 for x in numbers)
    )


def _transform(node: Any, opset: int, inputs: Inputs, a: dict[str, Any]) -> bool:
    """An axis may be any number, and the one of the parts of numbers."""
    axis = a.get("axis", 1 if opset < 20 else -2)
    if len(inputs) > 2 and inputs[2] is not None:
        if inputs[2].size != 1:
            return True
        axis = int(inputs[2].reshape(-1)[0])
    last = inputs[0].ndim - 1
    return not (-last - 1 <= axis < last and axis != -1)


Rule = Callable[[Any, int, Inputs, dict[str, Any]], bool]
RULES: dict[str, Rule] = {
    **dict.fromkeys(WINDOWS, _windows),
    **dict.fromkeys(FLOAT32, lambda node, opset, inputs, a: inputs[0].dtype == np.float64),
    # Indices count the padding.
    "MaxPool": lambda node, opset, inputs, a: (
        _windows(node, opset, inputs, a) or (len(node.output) > 1 and bool(a.get("pads")))
    ),
    # As many channels as there are images are normalised.
    "LRN": lambda node, opset, inputs, a: inputs[0].shape[0] != inputs[0].shape[1],
    # The sum is not one of absolute values.
    "LpNormalization": lambda node, opset, inputs, a: a.get("p") == 1,
    # The maximum of other than images has another shape.
    "GlobalMaxPool": lambda node, opset, inputs, a: inputs[0].ndim != 4,
    # Until opset 13 the axes behind were one.
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "Hardmax"),
        lambda node, opset, inputs, a: (
            opset < 13 and a.get("axis", 1) % inputs[0].ndim != inputs[0].ndim - 1
        ),
    ),
    # Statistics are computed.
    "BatchNormalization": lambda node, opset, inputs, a: opset < 14,
    "Unsqueeze": lambda node, opset, inputs, a: opset < 13 and min(a.get("axes", [0])) < 0,
    # A quotient by 0 is 0.
    **dict.fromkeys(
        ("Div", "Mod"),
        lambda node, opset, inputs, a: inputs[1].dtype.kind != "f" and not inputs[1].all(),
    ),
    # In training it draws random numbers.
    "Dropout": lambda node, opset, inputs, a: len(inputs) > 1,
    # What ONNX does not allow is taken: other numbers of parameters and lengths, indices of another
    # rank.
    "InstanceNormalization": lambda node, opset, inputs, a: (
        inputs[1].shape != (inputs[0].shape[1],)
        or inputs[2].shape != inputs[1].shape
        or inputs[0][0, 0].size < 2  # what is left of the only element is rounding
    ),
    "ReverseSequence": lambda node, opset, inputs, a: (
        inputs[1].shape != (inputs[0].shape[a.get("batch_axis", 1)],)
        or (inputs[1] < 0).any()
        or (inputs[1] > inputs[0].shape[a.get("time_axis", 0)]).any()
    ),
    **dict.fromkeys(GATES, _recurrent),
    "DFT": _transform,
    **dict.fromkeys(
        ("ScatterElements", "GatherElements"),
        lambda node, opset, inputs, a: (
            inputs[0].ndim != inputs[1].ndim
            or (inputs[1] < -1).any()
            or (inputs[1] >= inputs[0].shape[a.get("axis", 0)]).any()
        ),
    ),
    "NonMaxSuppression": _suppression,
    "TopK": lambda node, opset, inputs, a: any(x.size != 1 for x in inputs[1:]),
    "OneHot": lambda node, opset, inputs, a: inputs[1].dtype.kind == "f" or inputs[1].size != 1,
    "Split": lambda node, opset, inputs, a: any(
        x.sum() != inputs[0].shape[a.get("axis", 0)] for x in inputs[1:]
    ),
    "Slice": lambda node, opset, inputs, a: any(
        x is not None and x.shape != inputs[1].shape for x in inputs[2:]
    ),
    "MaxUnpool": lambda node, opset, inputs, a: (
        inputs[1].shape != inputs[0].shape or (inputs[1] < 0).any()
    ),
    "RoiAlign": lambda node, opset, inputs, a: (
        _shapes_differ(inputs, {1: (inputs[2].size, 4), 2: (inputs[2].size,)})
        or ((inputs[2] < 0) | (inputs[2] >= inputs[0].shape[0])).any()
    ),
    "PRelu": lambda node, opset, inputs, a: not _broadcasts_to(inputs[1], inputs[0]),
}


def _broadcasts_to(x: Any, y: Any) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return x.ndim <= y.ndim and all(m in (1, n) for m, n in pairs)


def _is_float32(x: Any) -> bool:
    return np.array_equal(x.astype(np.float32).astype(x.dtype), x, equal_nan=True)


def is_miscomputed(node: Any, opset: int, inputs: Inputs, results: Sequence[Any]) -> bool:
    """Whether the evaluator computes a node otherwise, or in another precision than its dtype's."""
    rule = RULES.get(node.op_type)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if rule is not None and rule(node, opset, inputs, attributes):
        return True
    floats = [v for v in inputs if v is not None and v.dtype == np.float64]
    return any(v.dtype == np.float64 and v.size and _is_float32(v) for v in results) and not all(
        _is_float32(v) for v in floats
    )
