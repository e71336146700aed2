"""Text of ONNX models, which no array holds: it is data while converting.

Constants may be text, and what follows from constants alone is computed by onnx's reference
evaluator: text again, or arrays. A model returns text as nested lists of str. Text that only the
run time knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from meta.base.device import Device
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.values import NarrowValue, Text, value_of
from meta.runtime.ndarray import ndarray

STRUCTURAL = frozenset(
    (
        *("Identity", "If", "Loop", "SequenceAt", "SequenceConstruct", "SequenceErase"),
        *("SequenceInsert", "SequenceLength", "SequenceMap", "Optional", "OptionalGetElement"),
        "OptionalHasElement",
    )
)
"""Operators that hand values on, whatever these are."""
MAX_TEXTS = 1 << 16
"""Elements of text that are computed with while converting."""


def has_text(value: Any) -> bool:
    """Whether a value is text, or has some in it."""
    if isinstance(value, tuple | list):
        return any(map(has_text, value))
    return isinstance(value, Text)


def as_lists(value: Any) -> Any:
    """Return text as nested lists of str, and other values as they are."""
    if isinstance(value, tuple | list):
        return type(value)(map(as_lists, value))
    return value.values.tolist() if isinstance(value, Text) else value


def is_of_text(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> bool:
    """Whether a node computes with text or makes some."""
    if name in STRUCTURAL:
        return False
    to_text = name == "Cast" and attributes.get("to") in (TensorProto.STRING, "STRING")
    return to_text or has_text(inputs)


def fold_text(
    node: NodeProto, opsets: Mapping[str, int], inputs: Sequence[Any], device: Device
) -> tuple[Any, ...]:
    """Return the results of a node with text, whose inputs are given in order, None for one that is
    left out. The node states its attributes itself.

    Raises Unconvertible for inputs that are not known, operators of patterns, and what the
    reference evaluator refuses.
    """
    if node.op_type == "RegexFullMatch":
        # A pattern of a file may take any time.
        raise Unconvertible("patterns are not searched for")
    names = [n if n else "" for n in node.input]
    given = {n: _plain(v) for n, v in zip(names, inputs, strict=False) if n}
    outputs = [o for o in node.output if o]
    function = FunctionProto(
        name="text",
        domain="meta",
        input=list(given),
        output=outputs,
        node=[node],
        opset_import=[helper.make_opsetid(d, v) for d, v in opsets.items()],
    )
    try:
        found = ReferenceEvaluator(function).run(None, given, attributes={})
    except Exception as error:  # the evaluator's exceptions are of many kinds
        raise Unconvertible(f"onnx's reference evaluator refuses it: {error}") from error
    results = iter(found)
    return tuple(_value(next(results), device) if o else None for o in node.output)


def _plain(value: Any) -> Any:
    """Return a known value as NumPy's."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, Text):
        if value.values.size > MAX_TEXTS:
            raise Unconvertible(f"more than {MAX_TEXTS} texts")
        return value.values
    if isinstance(value, NarrowValue) and isinstance(value.held, ndarray):
        return value.held.numpy().astype(np.dtype(value.dtype))
    if isinstance(value, ndarray) and value.size <= MAX_TEXTS:
        return value.numpy()
    raise Unconvertible(
        "arrays have no texts: what is computed with them has to follow from constants",
        hint="from_onnx(model, constants={...})",
    )


def _value(value: Any, device: Device) -> Any:
    """Return a value of NumPy as one of the conversion."""
    if isinstance(value, list):
        return [_value(v, device) for v in value]
    return value_of(np.asarray(value), device)
