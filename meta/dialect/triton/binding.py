"""What each parameter of a kernel is in a call of its operator.

A parameter is bound by its name, or by the word that ``names=`` has for it:

- a tensor argument of the operator: its pointer (of several tensors: a tuple of pointers; None if
  the argument is None); ``out``, or ``out_0``, ``out_1``, ... of several: those of the results;
- an attribute or a number of the operator: its value. A number is given at run time, so that no
  kernel is compiled per value, and cannot be ``tl.constexpr``;
- ``numel``: how many elements the (first) result has; of a tensor or result ``x``: ``x_numel``,
  ``x_ndim``, ``x_size_0``, ``x_stride_0``, ..., and ``x_dtype``, the type of its elements;
- ``index_dtype``: ``tl.int64`` where an offset into a tensor needs 64 bits, else ``tl.int32``;
- a meta-parameter of a configuration, a heuristic, or what ``bind=`` returns by this name;
- else the parameter's default.

Sizes and what follows from them are known when a kernel is prepared, and Triton compiles for them
as it does for arguments: for 1 and for multiples of 16. Strides are those of compact tensors, or,
in the general variant of the kernel, given in 64 bits at each launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from meta.base.errors import RegistrationError
from meta.dialect.core import Unsupported, decline_if, require_static
from meta.dialect.triton import type_names
from meta.dialect.triton.function import NO_DEFAULT, Parameter, Source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, number_positions, runtime_args, slot_positions
from meta.op.core.op import Op
from meta.op.core.slot import NUMBERS

NUMEL, INDEX = "numel", "index_dtype"
_DERIVED = re.compile(r"(?P<of>\w+?)_(?P<what>numel|ndim|dtype|(size|stride)_\d+)")
_OUT = re.compile(r"(?P<out>out_?)(_(?P<number>\d+))?")


@dataclass(frozen=True, slots=True)
class Word:
    """What a parameter stands for: ``kind`` is "argument", "out", "size", "stride", "numel",
    "ndim", "dtype", "index" or "given" (by a configuration, a heuristic, ``bind=`` or a default).
    ``of``: the slot, or "out"; ``number``: the result's; ``axis``: of a size or stride.
    """

    kind: str
    of: str = ""
    number: int | None = None
    axis: int = 0

    @property
    def tensor(self) -> tuple[str, int | None]:
        """The tensor that it is about."""
        return self.of, self.number


@dataclass(frozen=True, slots=True)
class Pointers:
    """Tensors behind a parameter: their positions among the values of a run."""

    name: str
    places: tuple[int, ...]
    types: tuple[TensorType, ...]
    several: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A number given at run time: its position among the values of a run, and its type."""

    name: str
    place: int
    word: str


@dataclass(frozen=True, slots=True)
class Stride:
    """A stride: of which value of a run, along which axis, and what it is of a compact tensor.
    ``wide``: whether it needs 64 bits there.
    """

    name: str
    place: int
    axis: int
    compact: int
    wide: bool


@dataclass(frozen=True, slots=True)
class Static:
    """A number known now, that is no constant of the compiled code."""

    name: str
    word: str
    value: Any


@dataclass
class Bound:
    """A kernel's parameters in one call, by name."""

    pointers: dict[str, Pointers] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    strides: dict[str, Stride] = field(default_factory=dict)
    statics: dict[str, Static] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    compact: tuple[int, ...] = ()
    results: int = 0
    """``compact``: positions of tensors whose strides the kernel does not ask for: they have to be
    compact. ``results``: the position of the first result."""


def word_of(name: str, op: Op) -> Word:
    """Return what a word stands for in calls of an operator."""
    schema = op.schema
    if name in schema.index:
        return Word("argument", name)
    if name == NUMEL:
        return Word("numel", "out")
    if name == INDEX:
        return Word("index")
    whole = _result(name, op)
    if whole is not None:
        return Word("out", *whole)
    match = _DERIVED.fullmatch(name)
    if match is None:
        return Word("given")
    of: tuple[str, int | None] | None = _result(match["of"], op)
    if of is None and match["of"] in schema.index:
        of = match["of"], None
    if of is None:
        return Word("given")
    kind, _, axis = match["what"].partition("_")
    return Word(kind, *of, axis=int(axis or 0))


def _result(name: str, op: Op) -> tuple[str, int | None] | None:
    match = _OUT.fullmatch(name)
    if match is None or match["out"] != op.schema.reserved("out"):
        return None
    return "out", None if match["number"] is None else int(match["number"])


class Binder:
    """Binds the parameters of a kernel in calls of an operator.

    Parameters
    ----------
    source: the kernel's function. op: the operator. names: by parameter, the word that it is.
    given: the parameters that configurations and heuristics state. bind: whether a function of the
    call states others.

    Raises RegistrationError, with the function's line, for parameters that nothing says the value
    of.
    """

    def __init__(
        self,
        source: Source,
        op: Op,
        names: Mapping[str, str],
        given: Iterable[str],
        bind: bool,
    ) -> None:
        self.source, self.op, self.names = source, op, names
        self.parameters = source.parameters
        known = [p.name for p in self.parameters]
        self.given = set(given)
        self._refuse([n for n in names if n not in known], "names= has what is no parameter")
        self.words = {n: word_of(names.get(n, n), op) for n in known}
        self._refuse(
            [n for n in names if self.words[n].kind == "given"],
            f"names= has words that {op.name!r} does not have",
        )
        twice = [n for n in known if n in self.given and self.words[n].kind != "given"]
        self._refuse(twice, f"configurations or heuristics state what the operator {op.name!r} has")
        constants = [
            p.name
            for p in self.parameters
            if p.constexpr and self._slot_kind(p.name) not in ("", "attribute")
        ]
        self._refuse(
            constants,
            "what is known at run time only cannot be tl.constexpr",
            "a kernel would be compiled for every value; take off the annotation",
        )
        if not bind:
            missing = [
                p.name
                for p in self.parameters
                if self.words[p.name].kind == "given"
                and p.name not in self.given
                and p.default is NO_DEFAULT
            ]
            self._refuse(missing, f"nothing says what a call of {op.name!r} gives as", _LISTED)
        if not op.schema.written and not any(w.kind == "out" for w in self.words.values()):
            raise RegistrationError(
                f"the kernel {source.name!r} of {op.name!r} has no parameter for the result",
                expected="out, or out_0, out_1 of several, which it writes",
                found=", ".join(known),
                hint='names={"output_ptr": "out"} says which it is',
                span=source.site,
            )
        self._asked = {
            w.tensor for w in self.words.values() if w.kind in ("size", "stride", "numel", "ndim")
        } - {("out", None)}

    def _slot_kind(self, name: str) -> str:
        word = self.words[name]
        if word.kind == "out":
            return "tensor"
        if word.kind != "argument":
            return ""
        kind: str = self.op.schema.slots[self.op.schema.index[word.of]].kind
        return kind

    def _refuse(self, names: Sequence[str], what: str, hint: str | None = None) -> None:
        if names:
            schema = self.op.schema
            raise RegistrationError(
                f"the kernel {self.source.name!r} of {self.op.name!r}: {what}: "
                f"{', '.join(map(repr, names))}",
                expected=f"arguments of {self.op.name}({', '.join(schema.names)}), results "
                f"({schema.reserved('out')}, or {schema.reserved('out')}_0, ...), numel, and of a "
                "tensor x: x_numel, x_ndim, x_dtype, x_size_0, x_stride_0",
                hint=hint,
                span=self.source.site,
            )

    def bound(self, call: CallValues, given: Mapping[str, Any]) -> Bound:
        """Return what the parameters are in a call. ``given``: values of configurations,
        heuristics and ``bind=``, by parameter.

        Raises Unsupported where the kernel's parameters do not describe the call's tensors.
        """
        return _Binding(self, call, given).bound


_LISTED = (
    "state it in configs=, heuristics= or bind=, give it a default, or say with names= what it is"
)


class _Binding:
    """One call of `Binder.bound`."""

    def __init__(self, binder: Binder, call: CallValues, given: Mapping[str, Any]) -> None:
        self.binder, self.call, self.given = binder, call, given
        types = [t for t in (*call.tensors(), *call.outputs) if isinstance(t, TensorType)]
        require_static(*types)
        self.double = any(t.dtype == "float64" for t in types)
        self.places: dict[str, Any] = slot_positions(call)
        self.count = len(runtime_args(call.op, call.args))
        self.numbers = dict(number_positions(call))
        self.several = not isinstance(call.out, TensorType)
        self.bound = Bound(results=self.count)
        words_ = binder.words.values()
        self.strided = {w.tensor for w in words_ if w.kind == "stride"}
        self._check_ranks()
        self.wide = {key for key, type_, _ in self._tensors() if not type_names.fits(type_.size)}
        self._check_sizes()
        for parameter in binder.parameters:
            self._bind(parameter, binder.words[parameter.name])

    def _tensors(self) -> list[tuple[tuple[str, int | None], TensorType, int]]:
        """Return the tensors that the kernel is given: which, its type, and its position."""
        found = []
        for word in self.binder.words.values():
            if word.kind == "out":
                found.append((word.tensor, self._out(word), self._out_place(word)))
            elif word.kind == "argument":
                value = self.call.args[self.call.op.schema.index[word.of]]
                if isinstance(value, TensorType):
                    found.append((word.tensor, value, self.places[word.of]))
                elif isinstance(value, tuple) and word.of in self.places:
                    at = self.places[word.of].start
                    found += [(word.tensor, t, at + i) for i, t in enumerate(value)]
        return found

    def _check_ranks(self) -> None:
        """Decline tensors of other ranks than those whose sizes or strides are parameters."""
        axes: dict[tuple[str, int | None], dict[str, int]] = {}
        for word in self.binder.words.values():
            if word.kind in ("size", "stride"):
                named = axes.setdefault(word.tensor, {})
                named[word.kind] = max(named.get(word.kind, 0), word.axis + 1)
        for tensor, named in axes.items():
            type_ = self._type(tensor)
            least = max(named.values())
            # Where strides alone are asked for, one may be left out: the last one, which is 1.
            ranks = [least] if "size" in named else [least, least + 1]
            name = self._named(tensor)
            decline_if(
                len(type_.shape) not in ranks,
                f"the kernel is made for {name} of {' or '.join(map(str, ranks))} axes, "
                f"which is {type_}",
            )

    def _check_sizes(self) -> None:
        """Decline tensors that a kernel would read or write beyond their end."""
        asks = any(w == Word("numel", "out") for w in self.binder.words.values())
        count = self.call.outputs[0].size if self.call.outputs else 0
        has_index = any(w.kind == "index" for w in self.binder.words.values())
        compact = []
        for tensor, type_, place in self._tensors():
            name = self._named(tensor)
            decline_if(
                asks and tensor not in self.binder._asked and type_.size != count,
                f"the kernel takes {name} to have as many elements as the result, {count}, "
                f"and nothing else of it; it is {type_}",
            )
            if tensor not in self.strided:
                compact.append(place)
                decline_if(
                    tensor in self.wide and not has_index,
                    f"{name} has {type_.size} elements, and offsets of 32 bits do not reach them; "
                    "a kernel with a parameter index_dtype: tl.constexpr may compute them in 64",
                )
        self.bound.compact = tuple(compact)

    def _named(self, tensor: tuple[str, int | None]) -> str:
        return tensor[0] if tensor[1] is None else f"{tensor[0]}_{tensor[1]}"

    def _out(self, word: Word) -> TensorType:
        outputs = self.call.outputs
        number = word.number or 0
        if (word.number is None) == self.several or number >= len(outputs):
            expected = [f"out_{i}" for i in range(len(outputs))] if self.several else ["out"]
            raise RegistrationError(
                f"the kernel {self.binder.source.name!r} of {self.call.op.name!r} asks for "
                f"{self._named(word.tensor)!r}",
                expected=f"results by the names {', '.join(expected)}",
                span=self.binder.source.site,
            )
        return outputs[number]

    def _out_place(self, word: Word) -> int:
        return self.count + (word.number or 0)

    def _type(self, tensor: tuple[str, int | None]) -> TensorType:
        if tensor[0] == "out":
            number = None if not self.several else tensor[1] or 0
            return self._out(Word("out", "out", number))
        value = self.call.args[self.call.op.schema.index[tensor[0]]]
        if not isinstance(value, TensorType):
            raise Unsupported(f"the kernel asks for the extents of {tensor[0]}, which is {value!r}")
        return value

    def _place(self, word: Word) -> int:
        if word.of == "out":
            return self._out_place(word)
        place: int = self.places[word.of]
        return place

    def _bind(self, parameter: Parameter, word: Word) -> None:
        name = parameter.name
        match word.kind:
            case "given":
                self._static(parameter, self._given(parameter))
            case "out":
                self._point(name, [self._out(word)], self._out_place(word), several=False)
            case "argument":
                self._argument(parameter, word)
            case "index":
                self._static(parameter, tl.int64 if self.wide else tl.int32)
            case "dtype":
                element = type_names.pointer(self._type(word.tensor).dtype, word.of)[1:]
                self._static(parameter, tl.dtype("int1" if element == "i1" else _NAMES[element]))
            case "numel":
                self._static(parameter, self._type(word.tensor).size)
            case "ndim":
                self._static(parameter, len(self._type(word.tensor).shape))
            case "size":
                self._static(parameter, self._type(word.tensor).static_shape[word.axis])
            case "stride":
                self._stride(parameter, word)

    def _given(self, parameter: Parameter) -> Any:
        if parameter.name in self.given:
            return self.given[parameter.name]
        if parameter.default is not NO_DEFAULT:
            return parameter.default
        raise RegistrationError(
            f"the kernel {self.binder.source.name!r} of {self.call.op.name!r} is not told "
            f"{parameter.name!r} in {self.call}",
            expected=f"bind= to return it, which returned {sorted(self.given) or 'nothing'}",
            span=self.binder.source.site,
        )

    def _argument(self, parameter: Parameter, word: Word) -> None:
        slot = self.call.op.schema.slots[self.call.op.schema.index[word.of]]
        value = self.call.args[self.call.op.schema.index[word.of]]
        name = parameter.name
        if slot.kind == "attribute" or value is None:
            self._static(parameter, value, constant=value is None)
        elif isinstance(value, NUMBERS):
            place = self.places[word.of]
            kind = type_names.number_word(self.numbers.get(place), value)
            self.bound.numbers[name] = Number(name, place, parameter.word or kind)
        elif isinstance(value, TensorType):
            self._point(name, [value], self.places[word.of], several=False)
        else:
            self._point(name, list(value), self.places[word.of].start, several=True)

    def _point(self, name: str, types: list[TensorType], first: int, several: bool) -> None:
        for type_ in types:
            type_names.pointer(type_.dtype, name)
        places = tuple(range(first, first + len(types)))
        self.bound.pointers[name] = Pointers(name, places, tuple(types), several)

    def _stride(self, parameter: Parameter, word: Word) -> None:
        type_ = self._type(word.tensor)
        compact = 1
        for extent in type_.static_shape[word.axis + 1 :]:
            compact *= max(extent, 1)
        if parameter.constexpr:
            raise RegistrationError(
                f"the kernel {self.binder.source.name!r} of {self.call.op.name!r} has the stride "
                f"{parameter.name!r} as a constant",
                expected="a plain parameter: Triton compiles for a stride of 1 by itself",
                span=self.binder.source.site,
            )
        wide = word.tensor in self.wide or parameter.word == "i64"
        place = self._place(word)
        self.bound.strides[parameter.name] = Stride(parameter.name, place, word.axis, compact, wide)

    def _static(self, parameter: Parameter, value: Any, constant: bool = False) -> None:
        name = parameter.name
        if parameter.constexpr or constant:
            self.bound.constants[name] = self._constant(name, value)
        elif isinstance(value, NUMBERS):
            wide = self.double and type(value) is float
            kind = parameter.word or type_names.static_word(value, wide)
            self.bound.statics[name] = Static(name, kind, value)
        else:
            raise RegistrationError(
                f"the kernel {self.binder.source.name!r} of {self.call.op.name!r} takes {name!r} "
                f"at run time, which is {value!r}",
                expected=f"a number, or {name}: tl.constexpr",
                span=self.binder.source.site,
            )

    def _constant(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, NUMBERS | str | tl.dtype | JITFunction):
            return value
        if isinstance(value, tuple):
            return tuple(self._constant(name, part) for part in value)
        raise RegistrationError(
            f"the kernel {self.binder.source.name!r} of {self.call.op.name!r} cannot be compiled "
            f"for {name}={value!r}",
            expected="None, a number, a text, a tl.dtype, a function of triton.jit, or a tuple",
            span=self.binder.source.site,
        )


_NAMES = {"i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
          "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64"}  # fmt: skip
_NAMES |= {n: n for n in ("fp8e4nv", "fp8e5", "fp16", "bf16", "fp32", "fp64")}
