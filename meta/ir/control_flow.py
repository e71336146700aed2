"""A function's control flow: its basic blocks, where each may go on, and what dominates what.

The IR nests: an `If` is a binding with two blocks. Some questions are easier to ask of a flat
graph: which bindings run whenever this one runs, where do two ways meet again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meta.ir.dominators import immediate_dominators, reversed_edges
from meta.ir.expr import Binding, Block, Function, If


@dataclass(eq=False)
class BasicBlock:
    """Bindings that run one after another, all or none.

    Attributes
    ----------
    index: its place in `ControlFlow.blocks`. block: the block of the program that it is a part of.
    joins: the `If` whose value is known where this begins, if it begins behind one.
    bindings: in their order; no `If` is among them.
    branch: the `If` by which it ends; then ``successors`` are its then and its else side.
    """

    index: int
    block: Block
    joins: Binding | None = None
    bindings: list[Binding] = field(default_factory=list)
    branch: Binding | None = None
    successors: list[BasicBlock] = field(default_factory=list)
    predecessors: list[BasicBlock] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<basic block {self.index}, {len(self.bindings)} bindings>"


class ControlFlow:
    """The basic blocks of a function. Closures are values in them; their bodies are not entered.

    Attributes
    ----------
    blocks: all of them, each after its predecessors. entry, exit: the first and the last.
    immediate_dominators: by block the last one that is always run before it; the entry has none.
    immediate_post_dominators: the first that is always run after it; the exit has none.
    """

    def __init__(self, function: Function) -> None:
        self.blocks: list[BasicBlock] = []
        self._owner: dict[Binding, BasicBlock] = {}
        self.entry = self._new(function.body)
        self.exit = self._walk(function.body, self.entry)
        following = [[s.index for s in b.successors] for b in self.blocks]
        self.immediate_dominators = self._tree(following, self.entry)
        self.immediate_post_dominators = self._tree(reversed_edges(following), self.exit)

    def _new(self, block: Block, *predecessors: BasicBlock) -> BasicBlock:
        made = BasicBlock(len(self.blocks), block, predecessors=list(predecessors))
        for predecessor in predecessors:
            predecessor.successors.append(made)
        self.blocks.append(made)
        return made

    def _walk(self, block: Block, current: BasicBlock) -> BasicBlock:
        """Add a block's bindings from ``current`` on; return where it ends."""
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value, If):
                current.bindings.append(binding)
                self._owner[binding] = current
                continue
            current.branch = binding
            then = self._walk(value.then_block, self._new(value.then_block, current))
            other = self._walk(value.else_block, self._new(value.else_block, current))
            current = self._new(block, then, other)
            current.joins = binding
            self._owner[binding] = current
        return current

    def _tree(self, following: list[list[int]], root: BasicBlock) -> dict[BasicBlock, BasicBlock]:
        found = immediate_dominators(following, root.index)
        return {b: self.blocks[i] for b, i in zip(self.blocks, found, strict=True) if i is not None}

    def block_of(self, binding: Binding) -> BasicBlock:
        """Return where a binding's variable gets its value: for an `If` where its sides meet."""
        return self._owner[binding]

    def dominates(self, a: BasicBlock, b: BasicBlock) -> bool:
        """Tell whether ``a`` is run whenever ``b`` is, before it; every block dominates itself."""
        return a in _up(self.immediate_dominators, b)

    def post_dominates(self, a: BasicBlock, b: BasicBlock) -> bool:
        """Tell whether ``a`` is run whenever ``b`` is, after it; every block does so itself."""
        return a in _up(self.immediate_post_dominators, b)


def _up(tree: dict[BasicBlock, BasicBlock], block: BasicBlock) -> Iterator[BasicBlock]:
    yield block
    while block in tree:
        block = tree[block]
        yield block
