"""The traversals that passes need, and views: definitions and uses, a block as a graph. No
traversal recurses over program length, only over nesting.

A pass of its own rewrites bindings in a loop; these helpers know where atoms and blocks sit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import is_not
from typing import Any

from meta.ir.expr import Binding, Block, Function, GlobalVar, Var
from meta.ir.node import Expr
from meta.ir.types import Type, with_data_names


def operands(expr: Expr) -> Iterator[Expr]:
    """Return the atoms that an expression uses itself, callee first, tuples taken apart.

    >>> x, y = meta.ir.Var("x"), meta.ir.Var("y")
    >>> call = meta.ir.Call(meta.op.concat, (meta.ir.Tuple((x, y)), 0))
    >>> [atom.name for atom in meta.ir.operands(call)]
    ['concat', 'x', 'y']
    """
    uses = expr.spec.uses
    if uses is None:
        return iter((expr,))
    found: list[Expr] = []
    for atom in uses(expr):
        if isinstance(atom, Expr):
            if atom.spec.uses is None:
                found.append(atom)
            else:
                found += operands(atom)
    return iter(found)


def inner_blocks(expr: Expr) -> tuple[Block, ...]:
    """Return the blocks of an `If` or of a closure; nothing for other expressions."""
    blocks = expr.spec.blocks
    return tuple([getattr(expr, name) for name in blocks]) if blocks else ()


def bindings(root: Function | Block) -> Iterator[Binding]:
    """Yield all bindings in the order of the text, those of nested blocks after their owner.

    >>> traced = meta.model.trace(lambda x: meta.cond(x.sum() > 0, meta.exp, meta.log, x))
    >>> main = traced.program(meta.ones(3)).module.main
    >>> [b.value.callee.name for b in meta.ir.bindings(main) if isinstance(b.value, meta.ir.Call)]
    ['sum', 'greater', 'exp', 'log']
    """
    stack = [iter((root.body if isinstance(root, Function) else root).bindings)]
    while stack:
        binding = next(stack[-1], None)
        if binding is None:
            stack.pop()
            continue
        yield binding
        if binding.value.spec.blocks:
            stack.extend(iter(b.bindings) for b in reversed(inner_blocks(binding.value)))


def nested_bindings(value: Expr) -> Iterator[Binding]:
    """Yield the bindings of the blocks of an `If` or of a closure, and of blocks in these."""
    for block in inner_blocks(value):
        yield from bindings(block)


def used_atoms(root: Function | Block) -> Iterator[Expr]:
    """Yield every atom that is used, as often as it is, in nested blocks too."""
    for binding in bindings(root):
        yield from operands(binding.value)
        for block in inner_blocks(binding.value):
            yield from operands(block.result)
    yield from operands((root.body if isinstance(root, Function) else root).result)


def uses(value: Expr) -> Iterator[Expr]:
    """Yield the atoms that a value uses, its blocks included."""
    yield from operands(value)
    for block in inner_blocks(value):
        yield from used_atoms(block)


def binders(root: Function | Block) -> Iterator[Var]:
    """Yield all variables that are bound, parameters included, in the order of the text.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> [var.name for var in meta.ir.binders(function)]
    ['x', 'y']
    """
    if isinstance(root, Function):
        yield from root.params
    for binding in bindings(root):
        yield binding.var
        parameters = binding.value.spec.binds
        if parameters is not None:
            yield from getattr(binding.value, parameters)


def free_vars(root: Function | Block) -> list[Var]:
    """Return the variables that are used and not bound, each once, in order of first use.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> meta.ir.free_vars(function), [var.name for var in meta.ir.free_vars(function.body)]
    ([], ['x'])
    """
    bound = set(binders(root))
    return list(dict.fromkeys(a for a in used_atoms(root) if isinstance(a, Var) and a not in bound))


def map_atoms(expr: Expr, new: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with ``new`` applied to its `operands`; inner blocks stay.

    >>> x, y = meta.ir.Var("x"), meta.ir.Var("y")
    >>> call = meta.ir.Call(meta.op.add, (x, x))
    >>> print(meta.ir.map_atoms(call, lambda atom: y if atom is x else atom))
    add(%y, %y)
    """

    spec = expr.spec
    if spec.uses is None:
        return new(expr)
    changed: dict[str, Any] = {}
    for name, is_tuple in spec.atoms:
        old = getattr(expr, name)
        if is_tuple:
            atoms = [map_atoms(a, new) if isinstance(a, Expr) else a for a in old]
            if any(map(is_not, atoms, old)):
                changed[name] = tuple(atoms)
        elif (atom := map_atoms(old, new)) is not old:
            changed[name] = atom
    return _with_fields(expr, changed)


def _with_fields(expr: Expr, changed: Mapping[str, Any]) -> Expr:
    """Return a node with other values of some fields; itself if there are none."""
    if not changed:
        return expr
    return type(expr)(*[changed[n] if n in changed else getattr(expr, n) for n in expr.spec.names])


class _AtomRewriter:
    """Applies ``leaf`` to the atoms that are used; puts new binders into ``renewed``, if given.

    data: other names of data types.
    """

    def __init__(
        self,
        leaf: Callable[[Expr], Expr],
        renewed: dict[Expr, Expr] | None = None,
        data: Mapping[str, str] | None = None,
    ) -> None:
        self.leaf, self.renewed, self.data = leaf, renewed, data

    def binder(self, var: Var) -> Var:
        if self.renewed is None:
            return var
        new = self.renewed[var] = Var(var.name, self.type(var.type))
        return new

    def type(self, type_: Type | None) -> Type | None:
        return with_data_names(type_, self.data) if self.data and type_ is not None else type_

    def block(self, block: Block) -> Block:
        new = tuple(map(self.binding, block.bindings))
        result = map_atoms(block.result, self.leaf)
        same = all(a is b for a, b in zip(new, block.bindings, strict=True))
        return block if same and result is block.result else Block(new, result)

    def binding(self, binding: Binding) -> Binding:
        # The variable comes after its value: a value does not see its own variable.
        value = self.value(binding.value)
        var = self.binder(binding.var)
        same = value is binding.value and var is binding.var
        return binding if same else Binding(var, value, binding.span)

    def value(self, value: Expr) -> Expr:
        value = map_atoms(value, self.leaf)
        if self.data:
            value = _with_fields(value, {n: self.type(getattr(value, n)) for n in value.spec.types})
        return self.inner(value) if value.spec.blocks else value

    def inner(self, value: Expr) -> Expr:
        """Rewrite the blocks of a value, and the parameters that they see."""
        changed: dict[str, Any] = {}
        spec = value.spec
        if self.renewed is not None and spec.binds is not None:
            changed[spec.binds] = tuple(map(self.binder, getattr(value, spec.binds)))
        for name in spec.blocks:
            old = getattr(value, name)
            if (new := self.block(old)) is not old:
                changed[name] = new
        return _with_fields(value, changed)

    def function(self, function: Function) -> Function:
        new = self.inner(function)
        assert isinstance(new, Function)
        attrs = {k: self.leaf(v) if isinstance(v, Expr) else v for k, v in new.attrs.items()}
        if attrs != new.attrs:
            new = replace(new, attrs=attrs)
        return replace(new, result_type=self.type(new.result_type)) if self.data else new


def with_operands(expr: Expr, mapping: Mapping[Any, Expr]) -> Expr:
    """Return the expression with its `operands` replaced by what they map to; inner blocks stay.

    >>> x, y = meta.ir.Var("x"), meta.ir.Var("y")
    >>> print(meta.ir.with_operands(meta.ir.Call(meta.op.exp, (x,)), {x: y}))
    exp(%y)
    """
    return map_atoms(expr, lambda atom: mapping.get(atom, atom)) if mapping else expr


def substitute(block: Block, mapping: Mapping[Any, Expr]) -> Block:
    """Return the block with every use of a variable replaced by the atom it maps to.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> print(meta.ir.substitute(function.body, {function.params[0]: meta.ir.Var("z")}))
    {
      %y = exp(%z)
      yield %y
    }
    """
    return _AtomRewriter(lambda atom: mapping.get(atom, atom)).block(block)


def with_fresh_vars(function: Function, data: Mapping[str, str] | None = None) -> Function:
    """Return a copy with new variables, so that it can stand beside the original (inlining).

    data: other names of data types.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> copy = meta.ir.with_fresh_vars(function)
    >>> copy.params[0] is function.params[0], meta.ir.structural_equal(copy, function)
    (False, True)
    """
    renewed: dict[Expr, Expr] = {}

    def new(atom: Expr) -> Expr:
        if data and isinstance(atom, GlobalVar) and atom.type is not None:
            return GlobalVar(atom.name, with_data_names(atom.type, data))
        return renewed.get(atom, atom)

    return _AtomRewriter(new, renewed, data).function(function)


def replace_atoms(function: Function, new: Callable[[Expr], Expr]) -> Function:
    """Return the function with ``new`` applied to every atom that is used, also in blocks."""
    return _AtomRewriter(new).function(function)


def rename_globals(function: Function, names: Mapping[str, str]) -> Function:
    """Return the function with global functions called by their new names, also in its blocks."""

    def renamed(atom: Expr) -> Expr:
        if isinstance(atom, GlobalVar) and atom.name in names:
            return GlobalVar(names[atom.name], atom.type)
        return atom

    return replace_atoms(function, renamed)


# Views of a function: definitions and uses of its variables, and a block's bindings as a directed
# acyclic graph of dependences, for scheduling. A view is computed once and not kept up to date.


User = Binding | Block
"""Who uses a variable: a binding in its value, or a block as (a part of) its result."""


class DefUse:
    """Who defines and who uses each variable of a function, nested blocks included.

    A use inside of a nested block is the inner binding's, not that of the `If` or closure around.

    Attributes
    ----------
    definitions: the binding of each variable; parameters and free variables have none.

    >>> source = "fn(%x: float32[3]) { %y = exp(%x) %z = add(%y, %y) return %z }"
    >>> function = meta.ir.parse_function(source)
    >>> uses = meta.ir.DefUse(function)
    >>> y = function.body.bindings[0].var
    >>> uses.definitions[y].value.callee.name, len(uses.users(y))
    ('exp', 1)
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

    >>> source = "fn(%x: float32[3]) { %y = exp(%x) %z = add(%y, %x) return %z }"
    >>> first, second = meta.ir.to_graph(meta.ir.parse_function(source).body)
    >>> second.position, second.inputs == [first], second.after
    (1, True, [])
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

    >>> source = "fn(%x: float32[3]) { %y = exp(%x) %z = add(%y, %x) return %z }"
    >>> nodes = meta.ir.to_graph(meta.ir.parse_function(source).body)
    >>> [[node.position for node in one.inputs] for one in nodes]
    [[], [0]]
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
