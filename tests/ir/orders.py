"""Blocks in another order, which keeps every dependence."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from meta.ir import Block, Expr, GraphNode


def from_graph(
    nodes: Sequence[GraphNode], result: Expr, priority: Callable[[GraphNode], int] | None = None
) -> Block:
    """Return a block of nodes: of those that are ready, the one with the smallest ``priority``
    comes first, by default its position.
    """
    key = priority or (lambda node: node.position)
    waiting = {node: len({*node.inputs, *node.after}) for node in nodes}
    following: dict[GraphNode, list[GraphNode]] = {}
    for node in nodes:
        for source in {*node.inputs, *node.after}:
            following.setdefault(source, []).append(node)
    ready = [(key(n), n.position, n) for n in nodes if not waiting[n]]
    heapq.heapify(ready)
    bindings = []
    while ready:
        node = heapq.heappop(ready)[2]
        bindings.append(node.binding)
        for other in following.get(node, ()):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (key(other), other.position, other))
    return Block(tuple(bindings), result)
