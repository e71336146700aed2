"""Views of a function: definitions and uses of its variables, and a block's bindings as a directed
acyclic graph of dependences, for scheduling. A view is computed once and not kept up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from meta.ir.expr import Binding, Block, Function, Var
from meta.ir.node import Expr
from meta.ir.visit import bindings, inner_blocks, operands, uses

User = Binding | Block
"""Who uses a variable: a binding in its value, or a block as (a part of) its result."""


class DefUse:
    """Who defines and who uses each variable of a function, nested blocks included.

    A use inside of a nested block is the inner binding's, not that of the `If` or closure around.

    Attributes
    ----------
    definitions: the binding of each variable; parameters and free variables have none.
    """

    def __init__(self, root: Function | Block) -> None:
        self.definitions: dict[Var, Binding] = {}
        self._users: dict[Var, dict[User, None]] = {}
        self._result_of(root.body if isinstance(root, Function) else root)
        for binding in bindings(root):
            self.definitions[binding.var] = binding
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    self._users.setdefault(atom, {})[binding] = None
            for block in inner_blocks(binding.value):
                self._result_of(block)

    def _result_of(self, block: Block) -> None:
        for atom in operands(block.result):
            if isinstance(atom, Var):
                self._users.setdefault(atom, {})[block] = None

    def users(self, var: Var) -> tuple[User, ...]:
        """Return who uses a variable, each once; nothing for one that is dead."""
        return tuple(self._users.get(var, ()))


ReadsAndWrites = tuple[Iterable[Hashable], Iterable[Hashable]]
"""What evaluating a binding reads and what it writes: memory, the state of a generator, ..."""


@dataclass(eq=False)
class GraphNode:
    """A binding and its neighbours.

    Attributes
    ----------
    position: its index in the block.
    inputs: the nodes whose values it uses, in nested blocks too; each once, in order of first use.
    after: nodes that it must follow, although it does not use their values: one of the two writes
    what the other reads or writes.
    """

    binding: Binding
    position: int
    inputs: list[GraphNode] = field(default_factory=list)
    after: list[GraphNode] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<node {self.binding}>"


def to_graph(
    block: Block, places: Callable[[Binding], ReadsAndWrites] | None = None
) -> tuple[GraphNode, ...]:
    """Return the nodes of a block's own bindings, in their order; nested blocks stay within their
    nodes.

    ``places`` says of a binding what its evaluation reads and writes. Without it nothing is written
    and bindings are ordered by the values they use alone. A view is to be stated by the buffer that
    it shares; see `meta.passes.alias_analysis`.
    """
    nodes = tuple(GraphNode(b, i) for i, b in enumerate(block.bindings))
    by_var: dict[Expr, GraphNode] = {node.binding.var: node for node in nodes}
    for node in nodes:
        used = dict.fromkeys(uses(node.binding.value))
        node.inputs = [by_var[atom] for atom in used if atom in by_var]
    if places is not None:
        _add_memory_edges(nodes, places)
    return nodes


def _add_memory_edges(
    nodes: Iterable[GraphNode], places: Callable[[Binding], ReadsAndWrites]
) -> None:
    writer: dict[Hashable, GraphNode] = {}
    readers: dict[Hashable, list[GraphNode]] = {}
    for node in nodes:
        reads, writes = places(node.binding)
        before: dict[GraphNode, None] = {}
        written = set(writes)
        for place in {*reads, *written}:
            if place in writer:
                before[writer[place]] = None
        for place in written:
            before.update(dict.fromkeys(readers.pop(place, ())))
            writer[place] = node
        for place in set(reads) - written:
            readers.setdefault(place, []).append(node)
        known = set(node.inputs)
        node.after = sorted((n for n in before if n not in known), key=lambda n: n.position)
