"""Primitives: what computes with values that are no tensors, as one node kind.

A `Primitive` names an entry of `PRIMITIVES`, which declares what it takes, what it does and how it
runs; passes, interpreter and compiler follow from it. ::

    %l: type List = construct Cons(%x, %xs) -> type List  # a value of a data type
    %c: bool[] = is_variant Cons(%l)                      # whether Cons made it
    %h: float32[] = get_field Cons.0(%l) -> float32[]     # a field of what Cons made
    %r: ref(float32[]) = make_ref(%h)                     # a mutable cell
    %y: float32[] = read_ref(%r)
    %u: () = write_ref(%r, %x)
    %z: float32[] = fail "no case fits"() -> float32[]    # ends the program

A new primitive is an entry here. Its *details* are names and numbers that the program fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from meta.base.errors import ExecutionError
from meta.base.registry import nearest
from meta.ir.expr import ConstructorDefinition, TypeDefinition, TypeOf
from meta.ir.fields import Atoms, Details, NodeVerifier, ResultType, Word
from meta.ir.names import name_text
from meta.ir.node import Effect, Expr, node, type_of
from meta.ir.types import BOOL, DataType, RefType, TupleType, Type, compatible


class DataValue:
    """A value of a data type: which constructor made it, and of what.

    A long list of them is freed without recursion: CPython defers what nests deep.
    """

    __slots__ = ("constructor", "fields")

    def __init__(self, constructor: str, *fields: Any) -> None:
        self.constructor, self.fields = constructor, fields

    def __repr__(self) -> str:
        return f"<{self.constructor} of {len(self.fields)} fields>"


class RefCell:
    """A reference: what holds one value that may be exchanged."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<reference>"


@dataclass(frozen=True, slots=True)
class PrimitiveRule:
    """What a primitive takes and does.

    Attributes
    ----------
    run: computes the value of details and operands.
    details: the Python types of the details. arity: the number of operands; None for any number.
    follows: returns the result's type, which follows from the operands; without it, the node has
    the type. check: raises IRError for a node that does not fit the types around it.
    wanted: returns the type that each operand must have, None for any, by the data types of the
    module and the type of the variable. found: returns the type that the result is known to have by
    these, of which the node's type may say more. stores: the first operand of those that a value in
    memory holds from then on. predicate: ``run`` returns a Python bool, which a branch takes
    and of which a tensor is made elsewhere. effect, opaque: as of `meta.ir.node.NodeSpec`.
    """

    run: Callable[..., Any]
    details: tuple[type, ...] = ()
    arity: int | None = 1
    follows: Callable[[Type | None], Type | None] | None = None
    check: Callable[[Primitive, NodeVerifier], object] | None = None
    wanted: Callable[[Primitive, Definitions, Type | None], tuple[Type | None, ...]] | None = None
    found: Callable[[Primitive, Definitions], Type] | None = None
    stores: int | None = None
    predicate: bool = False
    effect: Effect = Effect.NONE
    opaque: bool = True


Definitions = Mapping[str, TypeDefinition]


# Data types.


def _is_variant(constructor: str, value: DataValue) -> bool:
    return value.constructor == constructor


def _get_field(constructor: str, index: int, value: DataValue) -> Any:
    if value.constructor != constructor:
        raise ExecutionError(
            f"field {index} of {constructor} is taken of a value that is none",
            found=f"a {value.constructor}",
            hint="ask with is_variant first",
        )
    return value.fields[index]


def _check_construct(value: Primitive, verifier: NodeVerifier) -> None:
    if not isinstance(value.type, DataType):
        verifier.fail(f"construct makes a value of type {value.type}", expected="a data type")
    name, fields = value.details[0], value.operands
    expected = _constructor(value.type, name, verifier).fields
    if len(expected) != len(fields):
        verifier.fail(
            f"{name_text(name)} has {len(expected)} fields and is given {len(fields)}",
            expected=f"({', '.join(map(str, expected))})",
        )
    for i, (field, type_) in enumerate(zip(fields, expected, strict=True)):
        verifier.fits(type_, verifier.type_of(field), f"field {i} has type")


def _check_variant(value: Primitive, verifier: NodeVerifier) -> ConstructorDefinition | None:
    """Check that the operand is of a data type with this constructor; return its definition."""
    type_ = verifier.type_of(value.operands[0])
    if type_ is None:
        return None
    if not isinstance(type_, DataType):
        verifier.fail(f"a constructor is asked of a value of type {type_}", expected="a data type")
    return _constructor(type_, value.details[0], verifier)


def _check_field(value: Primitive, verifier: NodeVerifier) -> None:
    constructor, index = _check_variant(value, verifier), value.details[1]
    if constructor is None:
        return
    if not 0 <= index < len(constructor.fields):
        verifier.fail(
            f"there is no field {index} of {name_text(constructor.name)}",
            expected=f"0 <= index < {len(constructor.fields)}",
        )
    found = constructor.fields[index]
    if not compatible(value.type, found):
        verifier.fail(f"field {index} is said to have type {value.type}", expected=found)


def _constructor(type_: DataType, name: str, verifier: NodeVerifier) -> ConstructorDefinition:
    definition: TypeDefinition = verifier.defined(type_)
    found = definition.constructor(name)
    if found is None:
        known = [c.name for c in definition.constructors]
        verifier.fail(f"{type_} has no constructor {name_text(name)}", hint=nearest(name, known))
    return found


def field_types(type_: Type | None, constructor: str, types: Definitions) -> tuple[Type, ...]:
    """Return the types of the fields of a constructor that is known to exist."""
    assert isinstance(type_, DataType)
    found = types[type_.name].constructor(constructor)
    assert found is not None
    return found.fields


# References.


def _write_ref(ref: RefCell, value: Any) -> tuple[()]:
    ref.value = value
    return ()


def _referenced_type(ref: Type | None) -> Type | None:
    return ref.value if isinstance(ref, RefType) else None


def _check_ref(value: Primitive, verifier: NodeVerifier) -> None:
    type_ = verifier.type_of(value.operands[0])
    if type_ is not None and not isinstance(type_, RefType):
        verifier.fail(f"a value of type {type_} is no reference", expected="ref(...)")


def _check_write(value: Primitive, verifier: NodeVerifier) -> None:
    _check_ref(value, verifier)
    held, found = (
        _referenced_type(verifier.type_of(value.operands[0])),
        verifier.type_of(value.operands[1]),
    )
    if not compatible(held, found):
        verifier.fail(f"a value of type {found} is written", expected=held)


def _fail(message: str) -> None:
    raise ExecutionError(message)


PRIMITIVES: dict[str, PrimitiveRule] = {
    "construct": PrimitiveRule(
        DataValue,
        details=(str,),
        arity=None,
        check=_check_construct,
        wanted=lambda value, types, own: field_types(value.type, value.details[0], types),
        stores=0,
    ),
    "is_variant": PrimitiveRule(
        _is_variant,
        details=(str,),
        follows=lambda value: BOOL,
        check=_check_variant,
        predicate=True,
        opaque=False,
    ),
    "get_field": PrimitiveRule(
        _get_field,
        details=(str, int),
        check=_check_field,
        found=lambda value, types: field_types(type_of(value.operands[0]), value.details[0], types)[
            value.details[1]
        ],
    ),
    "make_ref": PrimitiveRule(
        RefCell,
        follows=lambda value: None if value is None else RefType(value),
        wanted=lambda value, types, own: (_referenced_type(own),),
        stores=0,
        effect=Effect.NEW,
    ),
    "read_ref": PrimitiveRule(
        lambda ref: ref.value, follows=_referenced_type, check=_check_ref, effect=Effect.READ
    ),
    "write_ref": PrimitiveRule(
        _write_ref,
        arity=2,
        follows=lambda ref: TupleType(()),
        check=_check_write,
        wanted=lambda value, types, own: (None, _referenced_type(type_of(value.operands[0]))),
        stores=1,
        effect=Effect.WRITE,
    ),
    "fail": PrimitiveRule(_fail, details=(str,), arity=0, effect=Effect.FAIL, opaque=False),
}


@node("{name}{details}{operands}{type}")
@dataclass(eq=False, slots=True)
class Primitive(Expr):
    """A primitive applied to atoms. ``type`` is there where it does not follow from these.

    >>> function = meta.ir.parse_function("fn(%r: ref(float32[3])) { %x = read_ref(%r) return %x }")
    >>> function.body.bindings[0].value.name
    'read_ref'
    """

    name: Annotated[str, Word(PRIMITIVES)]
    operands: Annotated[tuple[Expr, ...], Atoms("operand")]
    details: Annotated[tuple[Any, ...], Details()] = ()
    type: Annotated[Type | None, ResultType()] = None

    @property
    def rule(self) -> PrimitiveRule:
        """What the primitive is."""
        return PRIMITIVES[self.name]

    @property
    def effect(self) -> Effect:
        return self.rule.effect

    @property
    def opaque(self) -> bool:
        return self.rule.opaque

    @property
    def stored(self) -> tuple[Expr, ...]:
        return () if self.rule.stores is None else self.operands[self.rule.stores :]

    def wanted(self, types: Definitions, own: Type | None) -> tuple[Type | None, ...]:
        """Return the type that each operand must have, None for any; ``own``: the variable's."""
        wanted = self.rule.wanted
        return (None,) * len(self.operands) if wanted is None else wanted(self, types, own)

    def type_by(self, type_of: TypeOf) -> Type | None:
        follows = self.rule.follows
        return self.type if follows is None else follows(type_of(self.operands[0]))

    def verify(self, verifier: NodeVerifier) -> None:
        rule, given = self.rule, len(self.operands)
        if rule.arity not in (None, given):
            verifier.fail(f"{self.name} is given {given} operands", expected=rule.arity)
        if tuple(map(type, self.details)) != rule.details:
            kinds = ", ".join(kind.__name__ for kind in rule.details)
            verifier.fail(f"the details of {self.name} are {self.details}", expected=f"({kinds})")
        if (self.type is None) != (rule.follows is not None):
            verifier.fail(f"{self.name} says its type exactly if nothing else does")
        if rule.check is not None:
            rule.check(self, verifier)
