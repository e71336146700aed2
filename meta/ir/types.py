"""Types of values in the IR: tensors with static, symbolic or unknown dims, tuples, functions, data
values, references.

``str(type)`` is the text form, which `type_parser.py` reads back: ``float32[3, 2*n, ?]``,
``(float32[3], int64[])``, ``fn(float32[3]) -> float32[]``, ``type List``, ``ref(float32[3])``.
Dimensions are in `dims.py`. A new kind of type is a class here, and a case in each of
`type_parser.py`, `typeof.py` and `verify.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from meta.base.errors import TypeInferError
from meta.ir.dims import UNKNOWN, Dim, SymbolicDim, UnknownDim, product
from meta.ir.quoting import is_identifier, quote

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


class Type:
    """Base class of all types. Types compare and hash by value."""

    __slots__ = ()


@dataclass(frozen=True)
class TensorType(Type):
    """A dense tensor: its shape (dimensions, outermost first) and canonical dtype name."""

    shape: tuple[Dim, ...]
    dtype: str

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
    """A fixed number of values of given types."""

    fields: tuple[Type, ...]

    def __str__(self) -> str:
        inner = ", ".join(str(f) for f in self.fields)
        return f"({inner},)" if len(self.fields) == 1 else f"({inner})"


@dataclass(frozen=True, slots=True)
class FuncType(Type):
    """A function from parameters to one result."""

    params: tuple[Type, ...]
    result: Type

    def __str__(self) -> str:
        return f"fn({', '.join(str(p) for p in self.params)}) -> {self.result}"


@dataclass(frozen=True, slots=True)
class DataType(Type):
    """An algebraic data type, by its name in `Module.types`, where its constructors are.

    It has no parameters: who brings in a generic type defines one type for each use of it. A field
    of a constructor may be of the type itself (lists, trees).
    """

    name: str

    def __str__(self) -> str:
        return f"type {self.name if is_identifier(self.name) else quote(self.name)}"


@dataclass(frozen=True, slots=True)
class RefType(Type):
    """A mutable cell that holds one value."""

    value: Type

    def __str__(self) -> str:
        return f"ref({self.value})"
