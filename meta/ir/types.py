"""Types of values in the IR: tensors with static, symbolic or unknown dims, tuples, functions, data
values, references; and which of them go together.

``str(type)`` is the text form, which `type_parser.py` reads back: ``float32[3, 2*n, ?]``,
``(float32[3], int64[])``, ``fn(float32[3]) -> float32[]``, ``type List``, ``ref(float32[3])``.
Dimensions are in `dims.py`. A new kind of type is a class here, and a case in each of
`type_parser.py` and `verify.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from meta.base.dtype import bits
from meta.base.errors import TypeInferError
from meta.base.source import Span, line_of
from meta.ir.dims import UNKNOWN, Dim, SymbolicDim, UnknownDim, product
from meta.ir.names import name_text

__all__ = [
    "UNKNOWN",
    "DataType",
    "Dim",
    "FuncType",
    "RefType",
    "SymbolicDim",
    "TensorType",
    "TupleType",
    "Type",
    "UnknownDim",
]


_NAMED = (SymbolicDim, UnknownDim)


class Type:
    """Base class of all types. Types compare and hash by value.

    >>> meta.ir.parse_type("float32[3]") == meta.ir.TensorType((3,), "float32")
    True
    >>> len({meta.ir.TensorType((3,), "float32"), meta.ir.TensorType((3,), "float32")})
    1
    """

    __slots__ = ()


@dataclass(frozen=True)
class TensorType(Type):
    """A dense tensor: its shape (dimensions, outermost first) and canonical dtype name.

    TypeInferError for a dimension that is neither an int, nor symbolic, nor unknown.

    >>> n = meta.ir.SymbolicDim("n")
    >>> type_ = meta.ir.TensorType((n, 3), "float16")
    >>> str(type_), type_.is_static, str(type_.elements)
    ('float16[n, 3]', False, '3*n')
    """

    shape: tuple[Dim, ...]
    dtype: str

    def __post_init__(self) -> None:
        if isinstance(self.shape, tuple):
            for dim in self.shape:
                if dim.__class__ is not int and not isinstance(dim, _NAMED):
                    break
            else:
                return
        _refuse_shape(self)

    @property
    def ndim(self) -> int:
        """Number of dimensions; 0 for a scalar tensor."""
        return len(self.shape)

    @cached_property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(d, int) for d in self.shape)

    @cached_property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints; TypeInferError if a dimension is symbolic or unknown."""
        dims = tuple(d for d in self.shape if isinstance(d, int))
        if len(dims) != len(self.shape):
            raise TypeInferError("a static shape is needed here", found=str(self))
        return dims

    @cached_property
    def known_shape(self) -> tuple[int | SymbolicDim, ...]:
        """The shape as numbers and symbolic dims; TypeInferError if a dimension is unknown."""
        dims = tuple(d for d in self.shape if not isinstance(d, UnknownDim))
        if len(dims) != len(self.shape):
            raise TypeInferError("a shape without unknown dims is needed here", found=str(self))
        return dims

    @cached_property
    def elements(self) -> Dim:
        """Number of elements, as far as it is known."""
        return product(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements of a static type."""
        return prod(self.static_shape)

    def with_dtype(self, dtype: str) -> TensorType:
        """Return the same shape with another dtype."""
        return TensorType(self.shape, dtype)

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        """Return the same dtype with another shape."""
        return TensorType(tuple(shape), self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class TupleType(Type):
    """A fixed number of values of given types.

    >>> tensor = meta.ir.TensorType((3,), "float32")
    >>> print(meta.ir.TupleType((tensor, tensor)))
    (float32[3], float32[3])
    """

    fields: tuple[Type, ...]

    def __str__(self) -> str:
        inner = ", ".join(str(f) for f in self.fields)
        return f"({inner},)" if len(self.fields) == 1 else f"({inner})"


@dataclass(frozen=True, slots=True)
class FuncType(Type):
    """A function from parameters to one result.

    >>> x = meta.ir.TensorType((3,), "float32")
    >>> print(meta.ir.FuncType((x, x), x))
    fn(float32[3], float32[3]) -> float32[3]
    """

    params: tuple[Type, ...]
    result: Type

    def __str__(self) -> str:
        return f"fn({', '.join(str(p) for p in self.params)}) -> {self.result}"


@dataclass(frozen=True, slots=True)
class DataType(Type):
    """An algebraic data type, by its name in `Module.types`, where its constructors are.

    It has no parameters: who brings in a generic type defines one type for each use of it. A field
    of a constructor may be of the type itself (lists, trees).

    >>> module = meta.ir.parse("type List { Nil() Cons(int64[], type List) }")
    >>> module.types["List"].constructors[1].fields[1] == meta.ir.DataType("List")
    True
    """

    name: str

    def __str__(self) -> str:
        return f"type {name_text(self.name)}"


@dataclass(frozen=True, slots=True)
class RefType(Type):
    """A mutable cell that holds one value.

    >>> print(meta.ir.RefType(meta.ir.TensorType((3,), "float32")))
    ref(float32[3])
    """

    value: Type

    def __str__(self) -> str:
        return f"ref({self.value})"


def _refuse_shape(type_: TensorType) -> None:
    """Raise TypeInferError for a shape with what is no dimension; an int of a subclass is one."""
    shape: object = type_.shape
    what, wrong = "this is no shape of a tensor", shape
    if isinstance(shape, tuple):
        others = [d for d in shape if not isinstance(d, (int, *_NAMED)) or isinstance(d, bool)]
        if not others:
            return
        what, wrong = "this is no extent of a tensor", others[0]
    line = line_of(sys._getframe(3))  # above what `dataclass` makes
    raise TypeInferError(
        what,
        expected="ints, SymbolicDims, or UNKNOWN where only the data can say it, in a tuple",
        found=f"{wrong!r} ({type(wrong).__name__}) in the shape {shape!r}",
        span=None if line is None else Span(*line),
    )


BOOL = TensorType((), "bool")


# Which types go together: `verify.py` compares those that are declared with those that follow.


def either_type(a: Type | None, b: Type | None) -> Type | None:
    """Return the type of a value of one of two compatible types: dimensions that differ are
    unknown. What is not known, or does not fit (which `verify` says), is as in the other type.
    """
    match a, b:
        case TensorType(), TensorType() if compatible(a, b):
            dims = zip(a.shape, b.shape, strict=True)
            return a.with_shape(tuple(x if x == y else UNKNOWN for x, y in dims))
        case TupleType(), TupleType() if compatible(a, b):
            return TupleType(_either_types(a.fields, b.fields))
        case FuncType(), FuncType() if compatible(a, b):
            params = _either_types(a.params, b.params)
            return FuncType(params, *_either_types((a.result,), (b.result,)))
        case RefType(), RefType() if compatible(a, b):
            value = either_type(a.value, b.value)
            return a if value is None else RefType(value)
        case _:
            return b if a is None else a


def _either_types(mine: Sequence[Type], others: Sequence[Type]) -> tuple[Type, ...]:
    found = (either_type(x, y) for x, y in zip(mine, others, strict=True))
    return tuple(t for t in found if t is not None)


def compatible(a: Type | None, b: Type | None) -> bool:
    """Tell whether one value may have both types; unknown types and dimensions fit anything.

    >>> x = meta.ir.parse_type("float32[n]")
    >>> meta.ir.compatible(x, meta.ir.parse_type("float32[?]")), meta.ir.compatible(x, None)
    (True, True)
    >>> meta.ir.compatible(x, meta.ir.parse_type("int64[n]"))
    False
    """
    match a, b:
        case (None, _) | (_, None):
            return True
        case TensorType(), TensorType():
            dims = zip(a.shape, b.shape, strict=False)
            return a.dtype == b.dtype and a.ndim == b.ndim and all(_same_dim(*d) for d in dims)
        case TupleType(), TupleType():
            return _all_compatible(a.fields, b.fields)
        case FuncType(), FuncType():
            return _all_compatible(a.params, b.params) and compatible(a.result, b.result)
        case RefType(), RefType():
            return compatible(a.value, b.value)
        case _:
            return a == b


def _all_compatible(a: Sequence[Type], b: Sequence[Type]) -> bool:
    return len(a) == len(b) and all(compatible(x, y) for x, y in zip(a, b, strict=True))


def _same_dim(a: Dim, b: Dim) -> bool:
    return isinstance(a, UnknownDim) or isinstance(b, UnknownDim) or a == b


def bind_dims(param: Type, arg: Type | None, symbols: dict[str, Dim]) -> bool:
    """Tell whether an argument fits a parameter, whose symbolic dimensions it binds.

    ``float32[n, n]`` accepts ``float32[3, 3]`` and not ``float32[3, 4]``.
    """
    match param, arg:
        case TensorType(), TensorType():
            if param.ndim != arg.ndim:
                return False
            for p, a in zip(param.shape, arg.shape, strict=True):
                name = p.name if isinstance(p, SymbolicDim) else None
                if name is None:
                    continue
                bound = symbols.get(name, UNKNOWN)
                if not _same_dim(bound, a):
                    return False
                symbols[name] = a if bound is UNKNOWN else bound
            return compatible(_replace_dims(param, symbols), arg)
        case TupleType(), TupleType():
            return len(param.fields) == len(arg.fields) and all(
                bind_dims(p, a, symbols) for p, a in zip(param.fields, arg.fields, strict=True)
            )
        case FuncType(), FuncType():
            # The inner function's own symbols are not this call's to bind.
            return compatible(_replace_dims(param, symbols), _replace_dims(arg, {}))
        case RefType(), RefType():
            return bind_dims(param.value, arg.value, symbols)
        case _:
            return compatible(param, arg)


def call_type(function: FuncType, args: Sequence[Type | None], *, is_local: bool = False) -> Type:
    """Return the type of a call. Symbolic dimensions that no argument binds become unknown; those
    of a local function, a closure, are of the function around.
    """
    symbols: dict[str, Dim] = {}
    for param, arg in zip(function.params, args, strict=False):
        bind_dims(param, arg, symbols)
    return _replace_dims(function.result, symbols, is_local)


def without_names(type_: Type) -> Type:
    """Return a type outside of the function that its symbolic dimensions belong to: unknown ones
    are in their place.
    """
    return _replace_dims(type_, {})


def _replace_dims(type_: Type, symbols: dict[str, Dim], keep: bool = False) -> Type:
    """Return a type with dimensions for names; others stay if they are kept, or are unknown."""

    def value(name: str) -> Dim:
        return symbols.get(name, SymbolicDim(name) if keep else UNKNOWN)

    def replaced(inner: Type) -> Type:
        match inner:
            case TensorType():
                dims = (
                    d.substitute(value) if isinstance(d, SymbolicDim) else d for d in inner.shape
                )
                return inner.with_shape(tuple(dims))
            case TupleType():
                return TupleType(tuple(map(replaced, inner.fields)))
            case FuncType():
                return FuncType(tuple(map(replaced, inner.params)), replaced(inner.result))
            case RefType():
                return RefType(replaced(inner.value))
        return inner

    return replaced(type_)


def with_data_names(type_: Type, names: Mapping[str, str]) -> Type:
    """Return a type with other names of data types."""
    match type_:
        case DataType():
            return DataType(names.get(type_.name, type_.name))
        case TupleType():
            return TupleType(tuple(with_data_names(f, names) for f in type_.fields))
        case FuncType():
            params = tuple(with_data_names(p, names) for p in type_.params)
            return FuncType(params, with_data_names(type_.result, names))
        case RefType():
            return RefType(with_data_names(type_.value, names))
    return type_


def with_declared_names(found: Type, declared: Type | None) -> Type:
    """Return a type with the symbolic dimensions of another one where it has unknown ones; as it is
    if the two are not compatible.
    """
    match found, declared:
        case TensorType(), TensorType() if compatible(found, declared):
            dims = zip(found.shape, declared.shape, strict=True)
            return found.with_shape(
                tuple(d if f is UNKNOWN and isinstance(d, SymbolicDim) else f for f, d in dims)
            )
        case TupleType(), TupleType() if len(found.fields) == len(declared.fields):
            return TupleType(tuple(map(with_declared_names, found.fields, declared.fields)))
        case FuncType(), FuncType() if len(found.params) == len(declared.params):
            params = tuple(map(with_declared_names, found.params, declared.params))
            return FuncType(params, with_declared_names(found.result, declared.result))
    return found


def type_bytes(type_: Type | None) -> int:
    """Return the bytes of the tensors of a type; an extent that is not known counts as one.

    >>> meta.ir.type_bytes(meta.ir.TensorType((2, 3), "float16")), meta.ir.type_bytes(None)
    (12, 0)
    """
    if isinstance(type_, TupleType):
        return sum(map(type_bytes, type_.fields))
    if not isinstance(type_, TensorType):
        return 0
    known = (d for d in type_.shape if isinstance(d, int))
    return -(-prod(known) * bits(type_.dtype) // 8)
