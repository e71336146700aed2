"""What TVM's ONNX importer reads as something else, without an error: refused, or put right here.

Found with the tests of onnx itself, ``python -m tools.onnx_node_tests``. Add a rule to `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
from onnx import helper

from meta.frontend.relax.errors import Failure, failed

Attributes = Mapping[str, Any]


def _resize(node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any) -> str | None:
    if given.get("antialias"):
        return "filtering before it makes an image smaller (antialias) is not supported"
    scales = values.get(node.input[2]) if len(node.input) > 2 else None
    shape = shapes.get(node.input[0])
    if scales is None or not len(scales) or "axes" in given:
        return None
    extents = shape if shape is not None else (1,) * len(scales)
    if all(float(e * s).is_integer() for e, s in zip(extents, scales, strict=True)):
        return None
    return "scales that give no whole extents are not supported"


def _is_inf(node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any) -> str | None:
    both = given.get("detect_negative", 1) and given.get("detect_positive", 1)
    return None if both else "infinity of one sign is not supported"


def _roi_align(node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any) -> str | None:
    if given.get("mode", b"avg") == b"avg":
        return None
    return "the greatest of weighted elements (mode='max') is not supported"


def _conv_transpose(
    node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any
) -> str | None:
    return "output_shape is not supported" if "output_shape" in given else None


def _space_to_depth(
    node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any
) -> str | None:
    mode = given.get("mode", b"DCR")
    return None if mode == b"DCR" else f"mode={mode.decode()!r} is not supported"


def _suppression(node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any) -> str | None:
    unknown = [n for n in node.input[2:] if n and n not in values]
    return f"{unknown[0]!r} must be a constant" if unknown else None


RULES: dict[str, Callable[..., str | None]] = {
    "ConvTranspose": _conv_transpose,
    "IsInf": _is_inf,
    "NonMaxSuppression": _suppression,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _space_to_depth,
}
"""By operator, a function of its node, attributes, the values and the shapes that are known, which
returns why it cannot be imported, or None.
"""


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs in it, the branches of `If`."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs
            for part in inner:
                yield from all_nodes(part)


def refuse_misread(
    graph: onnx.GraphProto, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise RelaxError, listing all of them, for nodes that the importer would read wrongly."""
    failures = []
    for node in all_nodes(graph):
        rule = RULES.get(node.op_type)
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        why = rule(node, given, values, shapes) if rule is not None else None
        if why is not None:
            failures.append(Failure(node.op_type, why, place=node.name or node.output[0]))
    if failures:
        raise failed(failures)


def correct_momentum(graph: onnx.GraphProto) -> None:
    """Give batch normalisation the momentum of TVM, which is the weight of what is new; in ONNX it
    is that of what was there.
    """
    for node in all_nodes(graph):
        if node.op_type == "BatchNormalization":
            found = [a for a in node.attribute if a.name == "momentum"]
            if not found:
                node.attribute.append(helper.make_attribute("momentum", 0.9))
            attribute = next(a for a in node.attribute if a.name == "momentum")
            attribute.f = 1.0 - attribute.f
