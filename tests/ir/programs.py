"""Operators that exist in these tests only, and random typed modules that use every node kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from meta.base.dtype import DTYPES, TO_TORCH
from meta.base.source import Span
from meta.ir import (
    UNKNOWN,
    Binding,
    Block,
    Call,
    Constant,
    ConstructorDefinition,
    DataType,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    OpNode,
    Primitive,
    RefType,
    SymbolicDim,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    TypeDefinition,
    Var,
)


@dataclass(frozen=True)
class Slot:
    """As in the real schema."""

    name: str
    default: Any = None
    has_default: bool = False


@dataclass(frozen=True)
class Schema:
    """As in the real schema."""

    slots: tuple[Slot, ...]


class FakeOp(OpNode):
    """An operator that is a name and a schema."""

    def __init__(self, name: str, *slots: Slot) -> None:
        super().__init__(name)
        self.schema = Schema(slots)


ADD = FakeOp("test_add", Slot("x"), Slot("y"))
SUM = FakeOp("test_sum", Slot("x"), Slot("axis", -1, True), Slot("keep", False, True))
CLIP = FakeOp("test_clip", Slot("x"), Slot("low"), Slot("high"), Slot("out", None, True))
SCALE = FakeOp("test_scale", Slot("x"), Slot("by", 1.0, True), Slot("mode", ("a", 1), True))
CONCAT = FakeOp("test_concat", Slot("xs"), Slot("axis", 0, True))
BARE = OpNode("test_bare")  # without a schema: everything is positional
SOFTMAX = FakeOp("fake.softmax", Slot("x"), Slot("axis", float("nan"), True))
PLAIN_OPS = (ADD, SUM, CLIP, SCALE, CONCAT, BARE)
OPS = (*PLAIN_OPS, SOFTMAX)
SITE = Span(__file__, 1)

names = st.one_of(
    st.just(""), st.sampled_from(["x", "x_1", "0", "a.b", "if", "data", "é\n"]), st.text(max_size=4)
)
spans = st.none() | st.builds(Span, st.text(max_size=12), st.integers(0, 10**9 - 1))
symbols = st.builds(SymbolicDim, st.text(max_size=3) | st.sampled_from(["n", "m"]))
symbolic_dims = st.recursive(
    symbols,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner | st.integers(-9, 9)),
        st.builds(lambda a, b: a * b, inner, inner | st.integers(1, 9)),
        st.builds(lambda a, b: a // b, inner, st.integers(1, 9)),
    ).filter(lambda d: isinstance(d, SymbolicDim)),
    max_leaves=4,
)
literals = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        symbolic_dims,
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
dims = st.one_of(st.integers(0, 9), symbolic_dims, st.just(UNKNOWN))
tensor_types = st.builds(TensorType, st.lists(dims, max_size=3).map(tuple), st.sampled_from(DTYPES))


def types_with(data: list[str]) -> st.SearchStrategy[Type]:
    """Draw types, among them data types of these names."""
    known = st.sampled_from(data).map(DataType) if data else st.nothing()
    return st.recursive(
        tensor_types | known,
        lambda inner: (
            st.builds(TupleType, st.lists(inner, max_size=3).map(tuple))
            | st.builds(FuncType, st.lists(inner, max_size=2).map(tuple), inner)
            | inner.map(RefType)
        ),
        max_leaves=4,
    )


types = types_with(["List", "float32", "a b", "é\n"])
Definitions = dict[str, TypeDefinition]


@st.composite
def definitions(draw: st.DrawFn) -> Definitions:
    """Draw data types whose constructors may take values of all of them."""
    odd = st.sampled_from(["List", "Nil", "fn", "type", "float32"]) | st.text(max_size=4)
    data = draw(st.lists(odd, max_size=2, unique=True))
    fields = st.lists(types_with(data), max_size=2).map(tuple)
    constructor = st.builds(ConstructorDefinition, odd, fields)
    constructors = st.lists(constructor, max_size=3, unique_by=lambda c: c.name).map(tuple)
    return {name: TypeDefinition(name, draw(constructors)) for name in data}


@st.composite
def constants(draw: st.DrawFn) -> Constant:
    """Draw a tensor of any dtype and any bits: nan payloads, subnormals, -0.0."""
    shape = draw(st.sampled_from([(), (1,), (2, 3), (0, 4), (5, 5), (16,), (17,)]))
    dtype = TO_TORCH[draw(st.sampled_from(DTYPES))]
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        flags = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return Constant(torch.tensor(flags, dtype=dtype).reshape(shape))
    if draw(st.booleans()) and dtype.is_floating_point:
        numbers = draw(st.lists(st.floats(width=32), min_size=count, max_size=count))
        return Constant(torch.tensor(numbers, dtype=torch.float64).to(dtype).reshape(shape))
    size = count * dtype.itemsize
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    data = torch.frombuffer(raw, dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return Constant(data.reshape(shape))


class _Writer:
    """Draws one module, function by function, block by block, with what is in scope."""

    def __init__(
        self,
        draw: st.DrawFn,
        signatures: dict[str, tuple[list[Type], Type]],
        data: Definitions,
    ) -> None:
        self.draw, self.signatures, self.data = draw, signatures, data
        self.types = types_with(list(data))
        self.shared = [draw(constants()) for _ in range(draw(st.integers(0, 2)))]

    def var(self, type_: Type | None) -> Var:
        return Var(self.draw(names), type_)

    def atom(self, scope: list[Var], depth: int = 0) -> Expr:
        kinds = ["var"] * 4 * bool(scope) + ["constant", "shared", "tuple"]
        match self.draw(st.sampled_from(kinds)):
            case "var":
                return self.draw(st.sampled_from(scope))
            case "shared" if self.shared:
                return self.draw(st.sampled_from(self.shared))
            case "tuple" if depth < 2:
                count = self.draw(st.integers(0, 3))
                return Tuple(tuple(self.atom(scope, depth + 1) for _ in range(count)))
        return self.draw(constants())

    def atom_of(self, type_: Type, scope: list[Var]) -> Expr:
        """Return an atom of a type: a variable that has it, or the constant True."""
        fitting = [v for v in scope if v.type == type_]
        return self.draw(st.sampled_from(fitting)) if fitting else Constant(torch.tensor(True))

    def argument(self, scope: list[Var]) -> Any:
        if self.draw(st.booleans()):
            return self.draw(literals)
        return self.draw(st.sampled_from(OPS)) if self.draw(st.booleans()) else self.atom(scope)

    def call(self, op: OpNode, scope: list[Var]) -> Call:
        slots = op.schema.slots if isinstance(op, FakeOp) else [Slot("")] * 2
        return Call(
            op,
            tuple(
                s.default if s.has_default and self.draw(st.booleans()) else self.argument(scope)
                for s in slots
            ),
        )

    def value(self, scope: list[Var], depth: int) -> tuple[Expr, Type | None]:
        """Draw a value and the type that a variable for it may have."""
        kinds = ["op"] * 4 + ["atom", "field", "global", "closure call"]
        kinds += ["construct", "variant", "get field", "make ref", "read ref", "write ref", "fail"]
        kinds += ["if", "closure"] if depth < 2 else []
        match self.draw(st.sampled_from(kinds)):
            case "atom":
                op = self.draw(st.sampled_from(OPS))
                return (self.atom(scope) if self.draw(st.booleans()) else op), None
            case "field":
                owners = [v for v in scope if isinstance(v.type, TupleType) and v.type.fields]
                if owners:
                    owner = self.draw(st.sampled_from(owners))
                    index = self.draw(st.integers(0, len(owner.type.fields) - 1))
                    return TupleGetItem(owner, index), owner.type.fields[index]
            case "global":
                name = self.draw(st.sampled_from(sorted(self.signatures)))
                return GlobalVar(name), None
            case "closure call":
                found = [v for v in scope if isinstance(v.type, FuncType) and not v.type.params]
                if found:
                    return Call(self.draw(st.sampled_from(found)), ()), None
            case "if":
                condition = self.atom_of(TensorType((), "bool"), scope)
                result = self.draw(st.sampled_from(scope)) if scope else Tuple(())
                blocks = [self.block(scope, depth + 1, result) for _ in range(2)]
                return If(condition, *blocks), result.type if scope else None
            case "closure":
                function = self.function([self.draw(self.types)], None, scope, depth + 1)
                return function, function.type
            case "make ref":
                return Primitive("make_ref", (self.atom(scope),)), None
            case "fail":
                type_ = self.draw(self.types)
                return Primitive("fail", (), (self.draw(st.text(max_size=8)),), type_), type_
            case kind:
                found = self.data_value(kind, scope)
                if found is not None:
                    return found
        return self.call(self.draw(st.sampled_from(OPS)), scope), self.draw(st.none() | self.types)

    def data_value(self, kind: str, scope: list[Var]) -> tuple[Expr, Type | None] | None:
        """Draw what is about the data values and references in scope; None if there is none."""

        def fitting(type_: Type) -> list[Var]:
            return [v for v in scope if v.type is None or v.type == type_]

        made = [
            (DataType(name), c)
            for name, definition in self.data.items()
            for c in definition.constructors
        ]
        choices: list[tuple[Expr, Type | None]] = []
        match kind:
            case "construct":
                choices = [
                    (
                        Primitive(
                            "construct", tuple(fitting(f)[0] for f in c.fields), (c.name,), t
                        ),
                        t,
                    )
                    for t, c in made
                    if all(fitting(f) for f in c.fields)
                ]
            case "variant":
                variants = ((v, (c.name,)) for t, c in made for v in fitting(t))
                type_ = TensorType((), "bool")
                choices = [(Primitive("is_variant", (v,), of), type_) for v, of in variants]
            case "get field":
                choices = [
                    (Primitive("get_field", (v,), (c.name, i), f), f)
                    for t, c in made
                    for v in fitting(t)
                    for i, f in enumerate(c.fields)
                ]
            case "read ref":
                refs = [(v, v.type.value) for v in scope if isinstance(v.type, RefType)]
                choices = [(Primitive("read_ref", (v,)), t) for v, t in refs]
            case "write ref":
                refs = [(v, v.type.value) for v in scope if isinstance(v.type, RefType)]
                choices = [
                    (Primitive("write_ref", (v, a)), None) for v, t in refs for a in fitting(t)
                ]
        return self.draw(st.sampled_from(choices)) if choices else None

    def block(self, scope: list[Var], depth: int, result: Expr | None) -> Block:
        scope, bindings = list(scope), []
        for _ in range(self.draw(st.integers(0, 5 if depth == 0 else 2))):
            value, type_ = self.value(scope, depth)
            var = self.var(type_)
            bindings.append(Binding(var, value, self.draw(spans)))
            scope.append(var)
        return Block(tuple(bindings), result if result is not None else self.atom(scope))

    def function(
        self, params: list[Type], result: Type | None, scope: list[Var], depth: int = 0
    ) -> Function:
        own = [self.var(t) for t in params]
        attrs = self.draw(st.dictionaries(st.text(max_size=4), literals, max_size=2))
        body = self.block([*scope, *own], depth, None)
        return Function(tuple(own), body, result, attrs)


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """Draw a module that the verifier accepts."""
    global_names = draw(
        st.lists(
            st.sampled_from(["main", "f", "data"]) | st.text(max_size=4),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    data = draw(definitions())
    known = types_with(list(data))
    signatures = {n: (draw(st.lists(known, max_size=3)), draw(known)) for n in global_names}
    writer = _Writer(draw, signatures, data)
    return Module({n: writer.function(p, None, []) for n, (p, _) in signatures.items()}, data)
