"""Expressions: the few node kinds of which programs are made.

A function body is a `Block`: a flat list of bindings in evaluation order (A-normal form) and a
result, so nothing recurses over program length. Blocks, tuples and types may nest `MAX_NESTING`
deep. Nodes compare by identity; `structural.py` compares by content.

*Atoms* may stand as arguments: `Var`, `Constant`, `GlobalVar`, `OpNode`, and a `Tuple` of atoms.
The arguments of a `Call` are atoms or plain Python literals (None, bool, int, float, str and nested
tuples of them): there are no attributes apart from arguments.

A new node kind is a class here, declared as `node.py` says, and a case in each of
`vm/run/interpreter.py` and `vm/compiler/emit.py`, which run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.source import Span
from meta.ir.fields import (
    Arguments,
    Atom,
    Atoms,
    Attributes,
    Body,
    Index,
    NodeVerifier,
    Parameters,
    ResultType,
)
from meta.ir.node import Expr, Node, node
from meta.ir.types import (
    BOOL,
    FuncType,
    TensorType,
    TupleType,
    Type,
    call_type,
    compatible,
    either_type,
    with_data_names,
)

Literal = Any
"""A plain Python argument: None, bool, int, float, str, or a tuple of these."""
TypeOf = Callable[[Expr], Type | None]
"""What gives the types of a node's operands."""


@dataclass(eq=False, slots=True)
class Var(Expr):
    """A local value. ``name`` is a hint for printing; identity is what counts.

    >>> x = meta.ir.Var("x", meta.ir.TensorType((3,), "float32"))
    >>> x.name, str(x.type), x == meta.ir.Var("x", x.type)
    ('x', 'float32[3]', False)
    """

    name: str
    type: Type | None = None


@dataclass(eq=False, slots=True)
class GlobalVar(Expr):
    """A reference to a function of the module by its name.

    >>> module = meta.ir.parse('''
    ... func @twice(%x: float32[3]) -> float32[3] { %y: float32[3] = add(%x, %x) return %y }
    ... func @main(%x: float32[3]) -> float32[3] { %y: float32[3] = @twice(%x) return %y }''')
    >>> module.main.body.bindings[0].value.callee.name
    'twice'
    """

    name: str
    type: Type | None = None


@dataclass(eq=False, slots=True)
class Constant(Expr):
    """A tensor known when the program is built; never written to.

    >>> import torch
    >>> str(meta.ir.Constant(torch.zeros(2, 3)).type)
    'float32[2, 3]'
    """

    data: torch.Tensor

    @property
    def type(self) -> TensorType:
        """The tensor's type."""
        return TensorType(tuple(self.data.shape), FROM_TORCH[self.data.dtype])


class OpNode(Expr):
    """A reference to an operator; the operators of `meta.op` and of the dialects derive from it.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> callee = function.body.bindings[0].value.callee
    >>> isinstance(callee, meta.ir.OpNode), callee.name, callee is meta.op.exp
    (True, 'exp', True)
    """

    __slots__ = ("__weakref__", "name")
    name: str

    def __init__(self, name: str) -> None:
        self.name = name

    def __deepcopy__(self, _: object) -> OpNode:
        return self  # an operator is one object, also in a copy of what refers to it

    def type_by(self, type_of: TypeOf) -> Type | None:
        return None


@node()
@dataclass(eq=False, slots=True)
class Call(Expr):
    """An operator, a global function or a closure applied to arguments.

    The arguments of an operator are in schema order, with defaults filled in.

    >>> x = meta.ir.Var("x", meta.ir.TensorType((3,), "float32"))
    >>> print(meta.ir.Call(meta.op.softmax, (x, -1)))
    softmax(%x)
    """

    callee: Annotated[Expr, Atom("the callee")]
    args: Annotated[tuple[Any, ...], Arguments("argument")]

    def type_by(self, type_of: TypeOf) -> Type | None:
        callee = type_of(self.callee)
        if not isinstance(callee, FuncType):
            return None
        args = [type_of(a) if isinstance(a, Expr) else None for a in self.args]
        return call_type(callee, args, is_local=isinstance(self.callee, Var))

    def verify(self, verifier: NodeVerifier) -> None:
        if isinstance(self.callee, (Constant, Tuple)):
            verifier.fail("the callee is not a function", expected="an operator or a function")
        verifier.call(self.callee, self.args)


@node(is_atom=True)
@dataclass(eq=False, slots=True)
class Tuple(Expr):
    """A tuple of atoms.

    >>> x = meta.ir.Var("x", meta.ir.TensorType((3,), "float32"))
    >>> pair = meta.ir.Tuple((x, x))
    >>> print(pair, meta.ir.type_of(pair))
    (%x, %x) (float32[3], float32[3])
    """

    fields: Annotated[tuple[Expr, ...], Atoms("field")]

    def type_by(self, type_of: TypeOf) -> Type | None:
        fields = [type_of(f) for f in self.fields]
        known = tuple(f for f in fields if f is not None)
        return TupleType(known) if len(known) == len(fields) else None


@node("{value}.{index}")
@dataclass(eq=False, slots=True)
class TupleGetItem(Expr):
    """Field ``index`` of a tuple-valued atom.

    >>> pair = meta.ir.Var("pair", meta.ir.parse_type("(float32[3], int64[])"))
    >>> print(meta.ir.type_of(meta.ir.TupleGetItem(pair, 1)))
    int64[]
    """

    value: Annotated[Expr, Atom("the tuple")]
    index: Annotated[int, Index("a field's index")]

    def type_by(self, type_of: TypeOf) -> Type | None:
        owner = type_of(self.value)
        if not isinstance(owner, TupleType) or not 0 <= self.index < len(owner.fields):
            return None
        return owner.fields[self.index]

    def verify(self, verifier: NodeVerifier) -> None:
        owner = verifier.type_of(self.value)
        if owner is None:
            return
        if not isinstance(owner, TupleType):
            verifier.fail(f"a field is taken of {verifier.show(self.value)}, which is {owner}")
        if not 0 <= self.index < len(owner.fields):
            verifier.fail(
                f"there is no field {self.index}", expected=f"0 <= index < {len(owner.fields)}"
            )


@dataclass(eq=False, slots=True)
class Binding(Node):
    """``var: type = value``, with the user's line that caused it.

    >>> program = meta.model.trace(lambda x: meta.exp(x) + 1.0).program(meta.ones(3))
    >>> binding = program.module.main.body.bindings[0]
    >>> binding.value.callee.name, str(binding.var.type)
    ('exp', 'float32[3]')
    """

    var: Var
    value: Expr
    span: Span | None = None


@dataclass(eq=False, slots=True)
class Block(Node):
    """Bindings in evaluation order, then the result, an atom.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) -> float32[3] { return %x }")
    >>> function.body.bindings, function.body.result.name
    ((), 'x')
    """

    bindings: tuple[Binding, ...]
    result: Expr


@node("if {condition} {then_block} else {else_block}")
@dataclass(eq=False, slots=True)
class If(Expr):
    """Evaluates one of two blocks, by a boolean scalar tensor.

    >>> traced = meta.model.trace(lambda x: meta.cond(x.sum() > 0, meta.exp, meta.log, x))
    >>> last = traced.program(meta.ones(3)).module.main.body.bindings[-1].value
    >>> type(last).__name__, last.then_block.bindings[0].value.callee.name
    ('If', 'exp')
    """

    condition: Annotated[Expr, Atom("the condition")]
    then_block: Annotated[Block, Body()]
    else_block: Annotated[Block, Body()]

    def type_by(self, type_of: TypeOf) -> Type | None:
        return either_type(type_of(self.then_block.result), type_of(self.else_block.result))

    def verify(self, verifier: NodeVerifier) -> None:
        verifier.fits(BOOL, verifier.type_of(self.condition), "the condition has type")
        then, other = (verifier.type_of(b.result) for b in (self.then_block, self.else_block))
        if not compatible(then, other):
            verifier.fail(f"the blocks yield {then} and {other}", expected="one type")
        verifier.declared(then)
        verifier.declared(other)


@node("fn{params}{result_type}{attrs} {body}")
@dataclass(eq=False, slots=True)
class Function(Expr):
    """Parameters and a body. As a binding's value it is a closure over the variables in scope.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) -> float32[3] { return %x }")
    >>> str(function.type), [p.name for p in function.params]
    ('fn(float32[3]) -> float32[3]', ['x'])
    """

    params: Annotated[tuple[Var, ...], Parameters()]
    body: Annotated[Block, Body("return")]
    result_type: Annotated[Type | None, ResultType()] = None
    attrs: Annotated[dict[str, Literal], Attributes()] = field(default_factory=dict)

    @property
    def type(self) -> FuncType | None:
        """The function's type, or None while a parameter or the result is untyped."""
        params = [p.type for p in self.params]
        if self.result_type is None or any(p is None for p in params):
            return None
        return FuncType(tuple(p for p in params if p is not None), self.result_type)

    def verify(self, verifier: NodeVerifier) -> None:
        if verifier.typed and self.result_type is None:
            verifier.fail("a function has no result type")
        result = self.body.result
        found = verifier.type_of(result)
        if not compatible(self.result_type, found):
            verifier.fail(
                f"the result {verifier.show(result)} has type {found}", expected=self.result_type
            )


CHECKPOINT = "checkpoint"
"""Attribute of a global function that is called again for its gradients, so that of what it
computes "nothing" is kept until then, or "products"."""
FWD, BWD, JVP, CLOSED_OVER = "fwd", "bwd", "jvp", "closed_over"
"""Attributes of a global function with a derivative of its own; see `meta.passes.autodiff`."""
DERIVATIVE_ATTRS = frozenset((CHECKPOINT, FWD, BWD, JVP, CLOSED_OVER))
"""Attributes that say nothing of what a function computes."""


@dataclass(frozen=True, slots=True)
class ConstructorDefinition:
    """One way to make a value of a data type: the types of its fields.

    >>> fields = meta.ir.parse_type("int64[]"), meta.ir.DataType("List")
    >>> cons = meta.ir.ConstructorDefinition("Cons", fields)
    >>> cons.name, [str(field) for field in cons.fields]
    ('Cons', ['int64[]', 'type List'])
    """

    name: str
    fields: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """A data type: its constructors, which have different names. Compares by value.

    >>> tree = meta.ir.parse("type List { Nil() Cons(int64[], type List) }").types["List"]
    >>> [c.name for c in tree.constructors], len(tree.constructor("Cons").fields)
    (['Nil', 'Cons'], 2)
    """

    name: str
    constructors: tuple[ConstructorDefinition, ...]

    def constructor(self, name: str) -> ConstructorDefinition | None:
        """Return the constructor of a name; None if there is none."""
        return next((c for c in self.constructors if c.name == name), None)


def renamed_data(definition: TypeDefinition, names: Mapping[str, str]) -> TypeDefinition:
    """Return the definition of a data type with other names of data types, its own included."""
    constructors = (
        ConstructorDefinition(c.name, tuple(with_data_names(f, names) for f in c.fields))
        for c in definition.constructors
    )
    name = names.get(definition.name, definition.name)
    return TypeDefinition(name, tuple(constructors))


@dataclass(eq=False, slots=True)
class Module(Node):
    """Functions by global name, and data types by name. ``main`` is the entry point where there is
    one. A pass makes its result by `with_functions`, so that nothing else is lost.

    >>> module = meta.ir.parse("func @main(%x: float32[3]) -> float32[3] { return %x }")
    >>> list(module.functions), module.main.params[0].name
    (['main'], 'x')
    >>> list(module.with_functions({}).functions)
    []
    """

    functions: dict[str, Function]
    types: dict[str, TypeDefinition] = field(default_factory=dict)

    def with_functions(
        self, functions: dict[str, Function], types: Mapping[str, TypeDefinition] | None = None
    ) -> Module:
        """Return a module with other functions and all else as it is here; ``types``: data types
        that are new, or in the place of those of their names.
        """
        return Module(functions, {**self.types, **types} if types else self.types)

    @property
    def main(self) -> Function:
        """The function named "main"."""
        return self.functions["main"]
