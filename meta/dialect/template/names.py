"""What a template sees of a call: the operator's slots and results, by their names.

A tensor ``x`` has the C name ``x``, its extents ``x_dim_0``, ``x_dim_1`` and so on; these are
parameters of the host function, so that one kernel serves all extents. Of several tensors in one
slot ``xs`` the names are ``xs_0``, ``xs_1``; the template sees a list. An attribute is its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meta.base.dtype import overflow_rounded
from meta.base.errors import RegistrationError, UnknownName
from meta.base.registry import nearest
from meta.dialect.core import Unsupported
from meta.dialect.template.target import WIDE, TargetSpec
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.op.core.slot import NUMBERS

FEW = 1 << 30
"""Elements up to which an index of 32 bits does, one that goes a grid further included."""
RESERVED = (
    *("out", "outputs", "inputs", "name", "index", "stream", "target", "prefix", "headers"),
    *("parameters", "arguments"),
)
"""Names that templates have besides those of slots; with an underscore behind for an operator that
has a slot of that name.
"""

_RESERVED_WORDS = (
    "alignas alignof and asm auto bool break case catch char class concept const continue default "
    "delete do double else enum explicit extern false float for friend goto if inline int long "
    "mutable namespace new not nullptr operator or private protected public register return short "
    "signed sizeof static struct switch template this throw true try typedef typename union "
    "unsigned using virtual void volatile while xor half bfloat16 dim3 stream"
)
_WORDS = frozenset(_RESERVED_WORDS.split())


def c_name(name: str) -> str:
    """Return the name of a slot in source: with an underscore where C++ has a use for the word."""
    return f"{name}_" if name in _WORDS else name


class NeedsExtents(Unsupported):
    """Source text that follows from extents, of a call whose extents are not known yet."""


class Intrinsics:
    """The intrinsics of a target for one dtype: ``{{ x.math.exp }}``."""

    def __init__(self, target: TargetSpec, dtype: str) -> None:
        self._target, self._dtype = target, dtype

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._target.function_of(name, self._dtype)
        except UnknownName as error:  # of which Jinja would make an undefined value
            text = error.what, error.expected, error.hint
            raise RegistrationError(text[0], expected=text[1], hint=text[2]) from None


class TensorName:
    """A tensor argument or a result, as templates see it. Written out, it is its C name.

    Attributes
    ----------
    name: its C name. dtype: of its elements. ndim: the number of axes.
    is_result, is_written: whether the kernel makes it, and whether it writes it.
    """

    def __init__(
        self, name: str, type_: TensorType, target: TargetSpec, *, is_result: bool, is_written: bool
    ) -> None:
        self.name, self.dtype, self.ndim = name, type_.dtype, type_.ndim
        self.is_result, self.is_written = is_result, is_written
        self._type, self._target = type_, target

    def __str__(self) -> str:
        return self.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = [n for n in (*vars(self), *vars(TensorName)) if not n.startswith("_")]
        raise RegistrationError(
            f"a tensor in a template has no {name!r}",
            expected=f"one of {', '.join(known)}",
            hint=nearest(name, known),
        )

    @property
    def type(self) -> str:
        """The type of an element: ``half``."""
        return self._target.type_of(self.dtype)

    @property
    def wide(self) -> str:
        """The type in which to compute: ``float`` of half precision, else that of an element."""
        return self._target.type_of(WIDE.get(self.dtype, self.dtype))

    @property
    def up(self) -> str:
        """The function from an element to `wide`."""
        return self._target.conversions.get(self.dtype, (self.type, ""))[0]

    @property
    def down(self) -> str:
        """The function from `wide` to an element, which rounds to nearest."""
        return self._target.conversions.get(self.dtype, ("", self.type))[1]

    @property
    def math(self) -> Intrinsics:
        """The target's intrinsics for elements: ``{{ x.math.exp }}(v)``."""
        return Intrinsics(self._target, self.dtype)

    def vector(self, count: int) -> str:
        """Return the type of ``count`` elements: ``half2``."""
        return self._target.vector_of(self.dtype, count)

    @property
    def dims(self) -> tuple[str, ...]:
        """The extents, as names of run-time numbers."""
        return tuple(f"{self.name}_dim_{axis}" for axis in range(self.ndim))

    @property
    def size(self) -> str:
        """The number of elements, as an expression of run-time numbers."""
        return f"({' * '.join(self.dims)})" if self.ndim else "1"

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as numbers, each of which makes a source of its own. NeedsExtents where they
        are known at run time only.
        """
        if not self._type.is_static:
            raise NeedsExtents(f"the template writes the extents of {self.name} as numbers")
        return self._type.static_shape

    @property
    def pointer(self) -> str:
        """The type of its parameter: ``const half*``."""
        return f"{'' if self.is_written else 'const '}{self.type}*"


@dataclass(frozen=True)
class NumberName:
    """A run-time number, as templates see it. Written out, it is its C name."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name


def number_type(value: bool | int | float, dtype: str | None, target: TargetSpec) -> str:
    """Return the type of a run-time number that takes a dtype; None: it counts as it is."""
    if dtype is None:
        dtype = {bool: "bool", int: "int64", float: "float64"}[type(value)]
    return target.type_of(WIDE.get(dtype, dtype))


@dataclass(frozen=True)
class Names:
    """The names of a call for a target.

    Attributes
    ----------
    slots: by slot, what templates see. values: the run-time values in the order in which a kernel
    is given them, tensors and numbers. results: those that it makes, which come behind. index: the
    type of an index that reaches every element.
    """

    slots: dict[str, Any]
    values: tuple[TensorName | NumberName, ...]
    results: tuple[TensorName, ...]
    index: str

    @property
    def tensors(self) -> Iterator[TensorName]:
        """All tensors, results first."""
        yield from self.results
        yield from (v for v in self.values if isinstance(v, TensorName))

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """What the host function takes, types and names: results, arguments, extents."""
        found = [(t.pointer, t.name) for t in self.results]
        found += [(v.pointer if isinstance(v, TensorName) else v.type, v.name) for v in self.values]
        found += [("int64_t", dim) for tensor in self.tensors for dim in tensor.dims]
        return found


def names_of(call: CallValues, target: TargetSpec) -> Names:
    """Return the names of a call; Unsupported for a dtype that the target has no type of."""
    schema = call.op.schema
    single = "float64" not in {t.dtype for t in (*call.tensors(), *call.outputs)}
    dtypes = schema.number_dtypes(tuple(call.args), call.out)
    slots: dict[str, Any] = {}
    values: list[TensorName | NumberName] = []
    for i, (slot, value) in enumerate(zip(schema.slots, call.args, strict=True)):
        seen: Any = value
        if slot.kind == "attribute" or value is None:
            if single and isinstance(value, float) and value == value:
                seen = overflow_rounded(value, "float32")
        elif slot.kind == "tensors":
            written = slot.access == "RW"
            seen = [
                TensorName(f"{slot.name}_{n}", t, target, is_result=False, is_written=written)
                for n, t in enumerate(value)
            ]
            values += seen
        elif isinstance(value, NUMBERS):
            seen = NumberName(c_name(slot.name), number_type(value, dtypes.get(i), target))
            values.append(seen)
        else:
            written = slot.access == "RW"
            seen = TensorName(c_name(slot.name), value, target, is_result=False, is_written=written)
            values.append(seen)
        slots[slot.name] = seen
    out = schema.reserved("out")
    several = not isinstance(call.out, TensorType)
    results = [
        TensorName(f"{out}_{n}" if several else out, t, target, is_result=True, is_written=True)
        for n, t in enumerate(call.outputs)
    ]
    slots[out] = results if several else results[0]
    types = [*call.tensors(), *call.outputs]
    small = all(t.is_static and t.size <= FEW for t in types)
    found = Names(slots, tuple(values), tuple(results), "int32_t" if small else "int64_t")
    _require_distinct(call.op, found)
    for tensor in found.tensors:
        target.type_of(tensor.dtype)
    return found


def _require_distinct(op: Op, names: Names) -> None:
    """Raise RegistrationError for slots whose names in source are the same."""
    given = [name for _, name in names.parameters]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise RegistrationError(
            f"the arguments of {op.name!r} have names in source that are the same",
            found=", ".join(twice),
            hint="rename an argument of the operator",
        )


def known_names(op: Op, options: Sequence[str]) -> dict[str, None]:
    """Return the names that templates of an operator may use, besides Jinja's; ``options`` are
    those of configurations.
    """
    reserved = [op.schema.reserved(name) for name in RESERVED]
    return dict.fromkeys([*op.schema.names, *reserved, *options])
