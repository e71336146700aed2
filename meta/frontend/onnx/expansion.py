"""How many nodes an ONNX model has once its functions are inlined: counted before that is done.

Of thirty functions that each call the next one twice, a billion nodes are made.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from meta.frontend.relax.errors import RelaxError

MAX_NODES = 1 << 20
"""Nodes that a model may have then."""
MAX_DEPTH = 100
"""How deep functions may be in functions."""

Key = tuple[str, str, str]


def require_bounded(model: onnx.ModelProto) -> None:
    """Raise RelaxError for a model whose functions, inlined, are too many nodes, or have no end."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[Key, int] = {}
    under_way: list[Key] = []

    def of_function(key: Key) -> int:
        if key in sizes:
            return sizes[key]
        if key in under_way or len(under_way) >= MAX_DEPTH:
            raise RelaxError(
                f"the function {key[1]!r} of the model calls itself, or is too deep in others",
                expected=f"at most {MAX_DEPTH} functions in one another",
            )
        under_way.append(key)
        sizes[key] = of_nodes(functions[key].node)
        under_way.pop()
        return sizes[key]

    def of_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += of_function(key) if key in functions else 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += of_nodes(graph.node)
        return total

    found = of_nodes(model.graph.node)
    if found > MAX_NODES:
        raise RelaxError(
            "the functions of the model, each written out where it is called, are too many nodes",
            expected=f"at most {MAX_NODES:,}",
            found=f"{found:,}" if found < 10**18 else "more than 10**18",
        )
