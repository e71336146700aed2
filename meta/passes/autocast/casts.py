"""The casts of one function while it is rewritten: each is made once, and undone where it would be
cast back; and what autocast tells of them: for whom a cast is, and by which rule.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from meta import op
from meta.amp.cast_rule import Finite, cast_finite, stays_finite
from meta.base.dtype import FROM_TORCH, TO_TORCH, is_float, promote
from meta.base.registry import OPERATORS
from meta.base.source import Span
from meta.dialect.core.ir_calls import arg_types, leaf_types, new_call, tensor_of
from meta.ir import (
    Binding,
    Constant,
    Expr,
    Function,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    type_of,
)
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple
from meta.passes.simplify.casts import represents


@dataclass(frozen=True, slots=True)
class CastReason:
    """Who needs a value in another dtype, and why.

    consumer: an operator and its argument ("dense.x2"), or another place ("result of @main").
    reason: what decided, in words. rule: where the operator's cast rule is stated, if it was one.
    span: the user's line of the consumer.
    """

    consumer: str
    reason: str
    rule: Span | None = None
    span: Span | None = None


@dataclass(slots=True)
class Cast:
    """A cast that was put in.

    function: of the program, in which it stands. value: the name of what is cast. source: its type.
    dtype: the new one. needs: who needs it, in the order of the program; the first one's line is
    that of the cast.
    """

    function: str
    value: str
    source: TensorType
    dtype: str
    needs: list[CastReason] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """Return the same as plain values, which JSON has."""
        return {
            "function": self.function,
            "value": self.value,
            "shape": [d if isinstance(d, int) else str(d) for d in self.source.shape],
            "from": self.source.dtype,
            "to": self.dtype,
            "needs": [
                {
                    "consumer": w.consumer,
                    "reason": w.reason,
                    "rule": None if w.rule is None else str(w.rule),
                    "line": None if w.span is None else str(w.span),
                }
                for w in self.needs
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.source} -> {self.dtype}  %{self.value or '?'} in @{self.function}"]
        for why in self.needs:
            place = "" if why.span is None else f"  at {why.span}"
            rule = "" if why.rule is None else f" ({why.rule})"
            lines.append(f"  for {why.consumer}{place}\n      {why.reason}{rule}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CastReport:
    """The casts of a program in mixed precision, in the order of the program; ``str`` shows them.

    dtype: the half dtype. casts: those that were put in; the program's own are not among them.
    operators: how many calls there are, by what their floating point results are computed in.

    >>> module = meta.model.Linear(3, 2).program(meta.ones((4, 3))).module
    >>> report = meta.passes.explain_autocast(module, dtype="bfloat16")
    >>> report.dtype, len(report.casts), report.operators
    ('bfloat16', 4, {'bfloat16': 2, 'float32': 2})
    """

    dtype: str
    casts: tuple[Cast, ...]
    operators: dict[str, int]

    def __len__(self) -> int:
        return len(self.casts)

    def __iter__(self) -> Iterator[Cast]:
        return iter(self.casts)

    def as_data(self) -> dict[str, Any]:
        """Return the same as plain values, which JSON has."""
        casts = [cast.as_data() for cast in self.casts]
        return {"dtype": self.dtype, "operators": dict(self.operators), "casts": casts}

    def __str__(self) -> str:
        kinds = Counter(f"{c.source.dtype} -> {c.dtype}" for c in self.casts)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        calls = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(self.operators.items()))
        head = f"{len(self.casts)} casts" + (f": {shown}" if shown else "")
        return "\n".join([head, f"calls: {calls or 'none'}", *map(str, self.casts)])


Dtypes = tuple[str | None, ...]
"""The dtypes of a type's leaves, nested tuples flattened; None for what is no tensor."""


def dtypes_of(type_: Type) -> Dtypes:
    """Return the dtypes of a type's leaves."""
    return tuple(t.dtype if isinstance(t, TensorType) else None for t in leaf_types(type_))


def with_dtypes(type_: Type, dtypes: Dtypes) -> Type:
    """Return a type of the same structure and shapes with other dtypes."""
    return _replace_dtypes(type_, iter(dtypes))


def _replace_dtypes(type_: Type, dtypes: Iterator[str | None]) -> Type:
    if isinstance(type_, TupleType):
        return TupleType(tuple(_replace_dtypes(f, dtypes) for f in type_.fields))
    dtype = next(dtypes)
    return type_.with_dtype(dtype) if isinstance(type_, TensorType) and dtype else type_


def with_floats(type_: Type, dtype: str) -> Type:
    """Return a type with this dtype for every floating point tensor in it."""
    return with_dtypes(
        type_, tuple(dtype if d is not None and is_float(d) else d for d in dtypes_of(type_))
    )


def common_dtypes(a: Dtypes, b: Dtypes) -> Dtypes:
    """Return, leaf by leaf, the narrowest dtype that holds both: of a value of one of two types."""
    return tuple(
        x if x == y or x is None or y is None else promote(x, y) for x, y in zip(a, b, strict=True)
    )


_Entries = ChainMap[Any, tuple[Expr, int]]


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block under construction, with the casts that are known in it."""

    bindings: list[Binding]
    known: _Entries
    exact: _Entries


class CastEmitter:
    """Emits casts into the block under construction.

    A cast is shared by all who need it where it is known: later in its block, and in blocks inside.
    What it was made of may be written in place, and then it is made anew.
    """

    def __init__(self, name: str, function: Function, summaries: AliasSummaries) -> None:
        self.name = name
        self.out: list[Binding] = []
        self.made: dict[Expr, Cast] = {}
        self.buffers = AliasSets(function, summaries)
        # By atom, dtype and whether numbers stay finite: the cast, and how often its source had
        # been written by then.
        self._known: _Entries = ChainMap()
        # By the result of an exact cast: what was cast, and how often either had been written.
        self._exact: _Entries = ChainMap()
        # Parameters that are trained, and so no masks: they are cast without further ado.
        self.trained: set[Expr] = set()
        # The memory of the original program that an atom is in, and how often that was written.
        self._memory: dict[Expr, Expr] = {}
        self._writes: dict[Expr, int] = {}
        self._constants: dict[tuple[Constant, str, bool], Constant] = {}
        # Entries of maps that lie further out than this were made before a closure began.
        self._closures: list[int] = []

    def stands_for(self, atom: Expr, old: Var) -> None:
        """Take note of an atom which the original program calls ``old``."""
        if isinstance(atom, Var):
            self._memory[atom] = owning_tuple(self.buffers.of(old))

    def is_written(self, old: Var) -> bool:
        """Whether the original program writes to a variable's memory, now or later."""
        return self.buffers.of(old) in self.buffers.written

    def is_shared_view(self, old: Var) -> bool:
        """Whether a variable is a view that the program, or who gets it, may write through."""
        buffer = self.buffers.of(old)
        written, leaving = self.buffers.written, self.buffers.leaving
        return buffer is not old and (buffer in written or buffer in leaving)

    def wrote(self, binding: Binding) -> None:
        """Take note of what a binding of the original program writes."""
        for buffer in self.buffers.written_by(binding):
            place = owning_tuple(buffer)
            self._writes[place] = self._writes.get(place, 0) + 1

    @contextmanager
    def block(self, closure: bool = False) -> Iterator[OpenBlock]:
        """Emit into a block of its own. A closure runs later, when more may have been written."""
        new = OpenBlock([], self._known.new_child(), self._exact.new_child())
        if closure:
            self._closures.append(len(self._known.maps))
        with self.reopened(new):
            yield new
        if closure:
            self._closures.pop()

    @contextmanager
    def reopened(self, block: OpenBlock) -> Iterator[None]:
        """Emit into a block, at its end."""
        outer = OpenBlock(self.out, self._known, self._exact)
        self.out, self._known, self._exact = block.bindings, block.known, block.exact
        yield
        self.out, self._known, self._exact = outer.bindings, outer.known, outer.exact

    def emit(self, value: Expr, type_: Type | None, like: Binding | None, name: str = "") -> Var:
        """Append a binding with the line of another one; return its variable."""
        var = Var(name, type_)
        self.out.append(Binding(var, value, like.span if like is not None else None))
        return var

    def cast(self, atom: Expr, dtype: str, why: CastReason, at: Binding | None) -> Expr:
        """Return a tensor in a dtype; what holds no floating point numbers as it is."""
        type_ = tensor_of(atom)
        if type_.dtype == dtype or not is_float(type_.dtype):
            return atom
        if isinstance(atom, Constant):
            return self._constant(atom, dtype)
        exact = self._valid(self._exact, atom)
        if exact is not None:  # astype(astype(x, wide), dtype) is astype(x, dtype)
            return self.cast(exact, dtype, why, at)
        finite = stays_finite(type_.dtype, dtype) and atom not in self.trained
        key = (atom, dtype, finite)
        known = self._valid(self._known, key)
        if known is not None:
            if known in self.made:
                self.made[known].needs.append(why)
            return known
        if finite:
            result: Expr = cast_finite(atom, dtype, lambda *call: self._emitted(at, *call))
        else:
            result = self.emit(new_call(op.astype, atom, dtype), type_.with_dtype(dtype), at)
        name = atom.name if isinstance(atom, Var) else ""
        self.made[result] = Cast(self.name, name, type_, str(dtype), [why])
        self._known[key] = result, self._count(atom)
        self.is_cast_of(result, atom)
        return result

    def is_cast_of(self, result: Expr, atom: Expr) -> None:
        """Take note of a cast; that it is exact only if its dtype holds all values of the other."""
        wide, narrow = tensor_of(result), tensor_of(atom)
        if is_float(narrow.dtype) and is_float(wide.dtype) and represents(wide.dtype, narrow.dtype):
            self._exact[result] = atom, self._count(atom) + self._count(result)

    def _constant(self, atom: Constant, dtype: str) -> Constant:
        key = atom, dtype, isinstance(dtype, Finite)
        if key not in self._constants:
            self._constants[key] = Constant(_cast_data(atom.data, dtype))
        return self._constants[key]

    def _emitted(self, at: Binding | None, name: str, *given: Any) -> Var:
        """Emit the call of an operator with these first arguments, and defaults for the rest."""
        called = OPERATORS[name]
        call = new_call(called, *given)
        return self.emit(call, called.infer(arg_types(called, call)), at)

    def _count(self, atom: Expr) -> int:
        return self._writes.get(self._memory.get(atom, atom), 0)

    def _valid(self, entries: _Entries, key: Any) -> Expr | None:
        """Return an entry, unless what it is about was written since, or may be before it is used:
        the source of a cast; source and result, where one stands for the other.
        """
        outwards = reversed(range(len(entries.maps)))
        for depth, entry in zip(outwards, entries.maps, strict=True):
            if key in entry:  # the innermost is the last that was made
                atom, count = entry[key]
                about = key[:1] if isinstance(key, tuple) else (key, atom)
                return atom if self._still(about, count, depth) else None
        return None

    def _still(self, about: tuple[Expr, ...], count: int, depth: int) -> bool:
        if self._closures and depth < self._closures[-1]:
            places = {self._memory.get(atom, atom) for atom in about}
            if not places.isdisjoint(map(owning_tuple, self.buffers.written)):
                return False
        return sum(map(self._count, about)) == count

    def coerce(self, atom: Expr, type_: Type, why: CastReason, at: Binding | None) -> Expr:
        """Return an atom whose dtypes are those of a type, tuples taken apart where one differs."""
        found = type_of(atom)
        assert found is not None
        if dtypes_of(found) == dtypes_of(type_):
            return atom
        if isinstance(type_, TupleType):
            assert isinstance(found, TupleType)
            fields = (self.field(atom, i, at) for i in range(len(found.fields)))
            pairs = zip(fields, type_.fields, strict=True)
            return Tuple(tuple(self.coerce(f, t, why, at) for f, t in pairs))
        assert isinstance(type_, TensorType)
        return self.cast(atom, type_.dtype, why, at)

    def field(self, atom: Expr, index: int, at: Binding | None) -> Expr:
        """Return a field of a tuple."""
        if isinstance(atom, Tuple):
            return atom.fields[index]
        value = TupleGetItem(atom, index)
        return self.emit(value, type_of(value), at)

    def tuple_atom(self, atom: Expr, dtype: str, why: CastReason, at: Binding | None) -> Expr:
        """Return a tuple of tensors with the floating point ones in a dtype."""
        type_ = type_of(atom)
        assert isinstance(type_, TupleType)
        fields = (self.field(atom, i, at) for i in range(len(type_.fields)))
        return Tuple(tuple(self.cast(f, dtype, why, at) for f in fields))


def _cast_data(data: torch.Tensor, dtype: str) -> torch.Tensor:
    if stays_finite(FROM_TORCH[data.dtype], dtype):
        torchs: dict[str, Callable[..., Any]] = {
            "isinf": torch.isinf,
            "clip": torch.clamp,
            "where": torch.where,
            "astype": lambda x, name: x.to(TO_TORCH[name]),
        }
        made: torch.Tensor = cast_finite(data, dtype, lambda name, *args: torchs[name](*args))
        return made
    return data.to(TO_TORCH[dtype])
