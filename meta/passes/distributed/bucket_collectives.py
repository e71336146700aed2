"""Gradients that are reduced over the ranks together, in buckets, without copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from meta import op
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Module,
    TensorType,
    Tuple,
    TupleType,
    Var,
    operands,
    substitute,
)
from meta.ir.visit import uses
from meta.passes.buffers import Buffers, Summaries, owner
from meta.passes.calls import base_op, called_op, has_effect, is_pure, new_call, view_source
from meta.passes.lifetimes import type_bytes
from meta.passes.plan_memory import ALIGNMENT
from meta.passes.rewrite import with_main

MIB = 1 << 20
Key = tuple[int, int, int]
"""Where a binding comes: behind which one of the program, in which turn there, and where it was."""
_OWN, _BEFORE, _BUCKET, _AFTER = range(4)
"""The turns behind a binding: itself, what a bucket takes, the bucket, what is made of it."""


def bucket_collectives(
    module: Module, *, bucket_mib: float = 25.0, first_mib: float = 1.0
) -> Module:
    """Make one in-place collective of several `all_reduce` of main, such as those of gradients.

    A bucket has values of one dtype that are reduced alike, in the order in which they are ready,
    up to ``bucket_mib`` MiB; the first one is smaller (``first_mib``), so that it can begin early,
    and a larger value is alone. It comes as soon as its last value is there, the casts before it
    and behind it next to it, and before any of its results is needed. `plan_memory` lets the values
    lie one behind the other, so that nothing is copied. What is not this program's own memory, or
    is needed as it was, is copied first; what the caller gets is left alone.

    Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020,
    section 3.2.3, whose sizes the defaults are.

    >>> from meta.ir import parse
    >>> print(bucket_collectives(parse('''
    ... func @main(%x: float32[8], %y: float32[8]) -> float32[8] {
    ...   %g: float32[8] = exp(%x)
    ...   %h: float32[8] = tanh(%y)
    ...   %a: float32[8] = all_reduce(%g, over="dp", size=2, reduction="mean")
    ...   %b: float32[8] = all_reduce(%h, over="dp", size=2, reduction="mean")
    ...   %z: float32[8] = add(%a, %b)
    ...   return %z
    ... }''')))
    func @main(%x: float32[8], %y: float32[8]) -> float32[8] {
      %g: float32[8] = exp(%x)
      %h: float32[8] = tanh(%y)
      %bucket: () = multi_tensor_all_reduce((%g, %h), over="dp", size=2, reduction="mean", align=64)
      %z: float32[8] = add(%g, %h)
      return %z
    }
    """
    if not any(_reduction(b) for b in module.main.body.bindings):
        return module
    main = _Main(module, Buffers(module.main, Summaries(module)))
    limits = round(bucket_mib * MIB), round(first_mib * MIB)
    made = main.with_buckets(list(main.buckets(*limits)))
    stands_for = {y: main.final(y) for y in main.results}
    body = substitute(Block(tuple(made), module.main.body.result), stands_for)
    return with_main(module, body.bindings)


@dataclass
class _Part:
    """A value that is reduced.

    at: the number of the binding that does so. x, y: before and after. kind: what those of a bucket
    have in common. ready: the number of the binding after which x can be there. need: that of the
    first one that reads y. before: casts and views of which x is made, which may come at once.
    after: those of y. copied: whether x is another's memory.
    """

    at: int
    x: Expr
    y: Var
    kind: tuple[Any, ...]
    bytes: int
    ready: int = -1
    need: int = 0
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    copied: bool = False


class _Main:
    """The bindings of main by their numbers. results: what stands for what was reduced."""

    def __init__(self, module: Module, buffers: Buffers) -> None:
        self.bindings = module.main.body.bindings
        self.result = module.main.body.result
        self.buffers = buffers
        self.results: dict[Expr, Expr] = {}
        self.made = {b.var: i for i, b in enumerate(self.bindings)}
        self.readers: dict[Expr, list[int]] = {}
        self.of_memory: dict[Expr, list[int]] = {}
        for i, binding in enumerate(self.bindings):
            for atom in set(uses(binding.value)):
                self.readers.setdefault(atom, []).append(i)
                self.of_memory.setdefault(buffers.of(atom), []).append(i)
        self.reduced = {b.var for b in self.bindings if _reduction(b)}
        # What casts and views of what is reduced are: it comes where it is, or behind a bucket.
        self.follows = set[Expr](self.reduced)
        for i, binding in enumerate(self.bindings):
            if self._source(i) in self.follows:
                self.follows.add(binding.var)
        self.parts = [p for i, b in enumerate(self.bindings) if (p := self._part(i, b)) is not None]

    def _part(self, at: int, binding: Binding) -> _Part | None:
        """Return what a binding reduces, if its result is this function's own."""
        found = _reduction(binding)
        type_ = binding.var.type
        if found is None or not isinstance(type_, TensorType) or not type_.is_static:
            return None
        x, *kind = found
        mine = self.buffers.of(binding.var)
        if mine in self.buffers.leaving or mine in self.buffers.written:
            return None
        part = _Part(at, x, binding.var, (type_.dtype, *kind), type_bytes(type_))
        part.ready = self._ready(x, part.before)
        part.need = self._need(binding.var, part)
        memory = self.buffers.of(x)
        later = any(i > part.ready and i != at for i in self._reads(memory, part))
        part.copied = later or not self._is_own(memory)
        return part

    def _ready(self, atom: Expr, before: set[int]) -> int:
        """Return the number of the binding after which an atom can be there; add the casts and
        views that can come at once.
        """
        at = self.made.get(atom, -1) if isinstance(atom, Var) else -1
        source = None if at < 0 else self._source(at)
        if source is None or source in self.follows:
            return at
        before.add(at)
        return self._ready(source, before)

    def _need(self, var: Var, part: _Part) -> int:
        """Return the number of the first binding that reads a variable, of the result if there is
        none; casts and views of it are left to come when they can, and noted.
        """
        first = len(self.bindings)
        for i in self.readers.get(var, ()):
            reader = self.bindings[i].var
            if reader in self.reduced:  # which may come right behind this one
                return part.at
            if self._source(i) is None or any(
                self.bindings[j].var in self.reduced for j in self.readers.get(reader, ())
            ):
                first = min(first, i)
            else:
                part.after.add(i)
                first = min(first, self._need(reader, part))
        return first

    def _source(self, at: int) -> Expr | None:
        """Return what a binding is a cast or a view of; None for another one, or where the memory
        is written.
        """
        binding = self.bindings[at]
        call = binding.value
        if not isinstance(call, Call) or not is_pure(binding):
            return None
        source = view_source(call)
        if source is None and called_op(call) is op.astype:
            source = call.args[0]
        # The callee and one atom.
        if source is None or len(list(operands(call))) != 2:
            return None
        return source if self.buffers.of(source) not in self.buffers.written else None

    def _reads(self, memory: Expr, part: _Part) -> Iterator[int]:
        """Yield the numbers of the bindings that read some memory, views of it left out."""
        for i in self.of_memory.get(memory, ()):
            call = self.bindings[i].value
            if not (isinstance(call, Call) and view_source(call) is not None):
                yield i

    def _is_own(self, memory: Expr) -> bool:
        """Whether memory is what one call of main makes, and nobody writes or hands on."""
        at = self.made.get(owner(memory), -1)  # type: ignore[call-overload]
        if at < 0 or self.buffers.sharing({memory}) != {memory}:
            return False
        call = self.bindings[at].value
        made = isinstance(call, Call) and base_op(call.callee) not in (None, op.torch_call)
        kept = memory in self.buffers.written or memory in self.buffers.leaving
        return made and not kept and not has_effect(self.bindings[at])

    def buckets(self, limit: int, first: int) -> Iterator[list[_Part]]:
        """Yield the values that are reduced together, in the order in which they are ready."""
        kinds: dict[tuple[Any, ...], list[_Part]] = {}
        for part in sorted(self.parts, key=lambda p: (p.ready, p.at)):
            kinds.setdefault(part.kind, []).append(part)
        for parts in kinds.values():
            bucket: list[_Part] = []
            room = first
            for part in parts:
                full = sum(p.bytes for p in bucket) + part.bytes > room
                if bucket and (full or part.ready >= min(p.need for p in (*bucket, part))):
                    yield bucket
                    bucket, room = [], limit
                bucket.append(part)
            yield bucket

    def final(self, atom: Expr) -> Expr:
        """Return what stands for a value that was reduced, perhaps several times."""
        while atom in self.results:
            atom = self.results[atom]
        return atom

    def with_buckets(self, buckets: list[list[_Part]]) -> list[Binding]:
        """Return the bindings in their new order, with a collective for each bucket."""
        placed: list[tuple[Key, Binding]] = []
        moved: dict[int, Key] = {}
        for bucket in sorted(buckets, key=lambda b: (b[-1].ready, min(p.at for p in b))):
            if len(bucket) == 1 and bucket[0].copied:
                continue
            at = max(p.ready for p in bucket)
            first = self.bindings[min(p.at for p in bucket)]
            values: list[Expr] = []
            for part in bucket:
                moved |= {i: (part.ready, _BEFORE, i) for i in part.before}
                moved |= {i: (at, _AFTER, i) for i in part.after}
                moved[part.at] = (-2, 0, 0)  # left out
                value = part.x
                if part.copied:
                    value = Var(part.y.name, part.y.type)
                    copy = Binding(value, new_call(op.astype, part.x, part.kind[0]), first.span)
                    placed.append(((part.ready, _BEFORE, part.at), copy))
                self.results[part.y] = value
                values.append(value)
            call = new_call(
                op.multi_tensor_all_reduce, Tuple(tuple(values)), *bucket[0].kind[1:], ALIGNMENT
            )
            together = Binding(Var("bucket", TupleType(())), call, first.span)
            placed.append(((at, _BUCKET, len(placed)), together))
        for i, binding in enumerate(self.bindings):
            placed.append((moved.get(i, (i, _OWN, i)), binding))
        return [b for key, b in sorted(placed, key=lambda pair: pair[0]) if key[0] > -2]


def _reduction(binding: Binding) -> tuple[Expr, str, int, str] | None:
    """Return what a binding reduces over several ranks, over which and how; None if nothing."""
    call = binding.value
    called = called_op(call)
    if called is op.all_reduce:
        x, over, size, reduction = call.args  # type: ignore[attr-defined]
    elif called is op.reduce_from:
        x, over, size = call.args  # type: ignore[attr-defined]
        reduction = "sum"
    else:
        return None
    return (x, over, size, reduction) if size > 1 else None
