"""Dominators of a graph, by the iterative algorithm of Cooper, Harvey and Kennedy.

K. D. Cooper, T. J. Harvey, K. Kennedy, "A Simple, Fast Dominance Algorithm", Rice University,
TR-06-33870, 2001: a node's immediate dominator is where the paths from its predecessors up the
dominator tree meet; repeated in reverse postorder until nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence


def reversed_edges(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the graph with every edge turned round: post-dominators are its dominators."""
    found: list[list[int]] = [[] for _ in successors]
    for node, following in enumerate(successors):
        for other in following:
            found[other].append(node)
    return found


def immediate_dominators(successors: Sequence[Sequence[int]], entry: int) -> list[int | None]:
    """Return the last node, but for itself, that all paths from the entry to a node go through.

    ``successors`` has the nodes that follow each node, which is its index. The entry and what it
    does not reach have None.
    """
    order = _reverse_postorder(successors, entry)
    number = {node: i for i, node in enumerate(order)}
    predecessors = reversed_edges(successors)
    found: list[int | None] = [None] * len(successors)
    found[entry] = entry  # while it runs: the tree's root is its own parent

    def meet(a: int, b: int) -> int:
        while a != b:
            while number[a] > number[b]:
                a = found[a]  # type: ignore[assignment]
            while number[b] > number[a]:
                b = found[b]  # type: ignore[assignment]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [p for p in predecessors[node] if found[p] is not None]
            new = known[0]
            for other in known[1:]:
                new = meet(new, other)
            if found[node] != new:
                found[node], changed = new, True
    found[entry] = None
    return found


def _reverse_postorder(successors: Sequence[Sequence[int]], entry: int) -> list[int]:
    seen, order = {entry}, []
    stack = [(entry, iter(successors[entry]))]
    while stack:
        node, following = stack[-1]
        for other in following:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(successors[other])))
                break
        else:
            order.append(node)
            stack.pop()
    return order[::-1]
