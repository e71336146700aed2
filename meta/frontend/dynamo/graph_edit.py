"""Edits of graphs of PyTorch's: calls in the place of others, and calls that nothing reads."""

from __future__ import annotations

from typing import Any

from torch import fx


def replace_call(node: fx.Node, target: Any, *args: Any) -> fx.Node:
    """Put a call with the result of the same types in the place of a node; return it."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return made


def erase(*nodes: fx.Node) -> None:
    """Erase calls that nobody reads, and what only they read."""
    pending, erased = list(nodes), set[fx.Node]()
    while pending:
        node = pending.pop()
        called = node.op in ("call_function", "call_method")
        if called and not node.users and node not in erased:
            pending += node.all_input_nodes
            node.graph.erase_node(node)
            erased.add(node)
