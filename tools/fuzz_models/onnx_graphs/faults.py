"""What onnx's reference evaluator computes otherwise than ONNX says; such nodes are not drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

WINDOWS = ("Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool")


FLOAT32 = ("Erf", "HardSwish", "Gelu", "Swish", "Mish")
"""Computed in float32, or with constants of float32."""
Inputs = Sequence[Any]


def _windows(node: Any, opset: int, inputs: Inputs, a: dict[str, Any]) -> bool:
    """It mixes up axes and sides of uneven pads, steps beyond a kernel, and rounding up."""
    pads, padded = a.get("pads", []), a.get("auto_pad", b"NOTSET") != b"NOTSET"
    if "Pool" in node.op_type and (len(set(pads)) > 1 or (a.get("ceil_mode") and (padded or pads))):
        return True
    return padded and max(a.get("strides", []), default=1) > 1


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
    ),
    **dict.fromkeys(
        ("ScatterElements", "GatherElements"),
        lambda node, opset, inputs, a: (  # an extent may be 1 in another run
            inputs[0].ndim != inputs[1].ndim or (inputs[1] < -1).any()
        ),
    ),
    "NonMaxSuppression": lambda node, opset, inputs, a: any(x.size != 1 for x in inputs[2:]),
    "TopK": lambda node, opset, inputs, a: any(x.size != 1 for x in inputs[1:]),
    "OneHot": lambda node, opset, inputs, a: inputs[1].dtype.kind == "f" or inputs[1].size != 1,
    "Split": lambda node, opset, inputs, a: any(
        x.sum() != inputs[0].shape[a.get("axis", 0)] for x in inputs[1:]
    ),
    "Slice": lambda node, opset, inputs, a: any(x.shape != inputs[1].shape for x in inputs[2:]),
    "MaxUnpool": lambda node, opset, inputs, a: (
        inputs[1].shape != inputs[0].shape or (inputs[1] < 0).any()
    ),
    "RoiAlign": lambda node, opset, inputs, a: (
        (inputs[2] < 0) | (inputs[2] >= inputs[0].shape[0])
    ).any(),
    "PRelu": lambda node, opset, inputs, a: not _broadcasts_to(inputs[1], inputs[0]),
}


def _broadcasts_to(x: Any, y: Any) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return x.ndim <= y.ndim and all(m in (1, n) for m, n in pairs)


def _is_float32(x: Any) -> bool:
    return np.array_equal(x.astype(np.float32).astype(x.dtype), x, equal_nan=True)


def is_miscomputed(node: Any, opset: int, inputs: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether the evaluator computes a node otherwise, or in another precision than its dtype's."""
    rule = RULES.get(node.op_type)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if rule is not None and rule(node, opset, inputs, attributes):
        return True
    floats = [v for v in inputs if v.dtype == np.float64]
    return any(v.dtype == np.float64 and v.size and _is_float32(v) for v in results) and not all(
        _is_float32(v) for v in floats
    )
