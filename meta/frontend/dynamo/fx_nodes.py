"""Nodes of torch's graphs: what torch says of their values, and calls that are written anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx


def fake_value(node: fx.Node) -> Any:
    """Return what Dynamo or AOTAutograd says of a value: a tensor without numbers, a SymInt."""
    return node.meta.get("val", node.meta.get("example_value"))


def is_tensor(node: Any) -> bool:
    """Whether something is a node of a tensor."""
    return isinstance(node, fx.Node) and isinstance(fake_value(node), Tensor)


def storage_of(node: Any) -> int | None:
    """Return which memory the tensor of a node is in; None for all else."""
    if not is_tensor(node) or fake_value(node).layout is not torch.strided:
        return None
    found: int = fake_value(node).untyped_storage()._cdata
    return found


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call of an overload by name, with defaults."""
    schema = cast(torch._ops.OpOverload, node.target)._schema.arguments
    given = zip((a.name for a in schema), node.args, strict=False)
    return {a.name: a.default_value for a in schema} | dict(given) | dict(node.kwargs)


def set_arguments(node: fx.Node, given: Mapping[str, Any]) -> None:
    """Set all arguments of a call of an overload."""
    schema = cast(torch._ops.OpOverload, node.target)._schema.arguments
    node.args = tuple(given[a.name] for a in schema if not a.kwarg_only)
    node.kwargs = {a.name: given[a.name] for a in schema if a.kwarg_only}


def insert_call(like: fx.Node, target: Any, *args: Any) -> fx.Node:
    """Return a call, with its value, where the graph inserts; what else is said of it is what is
    said of another node.
    """
    made = like.graph.call_function(target, args)
    name = "val" if "val" in like.meta else "example_value"
    made.meta = {**like.meta, name: target(*fx.map_arg(args, fake_value))}
    return made


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
