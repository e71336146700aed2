"""Liveness: which memory the results of a function take, and how long each is in use.

Time is counted in bindings, in the order of the text: those of the blocks of an `If` follow their
owner. That order is right for either block, since only one runs. The body of a closure is a
function of its own, with a time and memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from meta.dialect.core import FUSED, IN_PLACE
from meta.dialect.core.ir_calls import base_op, view_source
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    free_vars,
    operands,
    type_bytes,
    type_of,
)
from meta.ir.visit import inner_blocks

Memory = int | Expr
"""A buffer of the function by its number, or what is not the function's own: a parameter, a
constant, a variable that a closure captures, or what was in a data value or a reference."""
MemorySets = Any
"""What a variable is made of: the memories that it may be, a frozenset, or a tuple of places."""
_NO_MEMORY: frozenset[Memory] = frozenset()


@dataclass(slots=True)
class Buffer:
    """The memory of one result of a binding.

    binding: the number of the binding that computes it, its first moment; -1 of the memory of a
        parameter. output: which result, or which parameter.
    name: of the variable that the binding makes. type: of the tensor.
    last: the last binding that uses it, or a view of it.
    leaves: whether others may hold it when the function has returned: it is a result, an argument
        of a call of a function, or in a closure, a data value or a reference.
    over: the buffer whose memory it takes, if it is written over one; that one then lives as long.
    """

    binding: int
    output: int
    name: str
    type: TensorType
    last: int
    leaves: bool = False
    over: int | None = None

    @property
    def size(self) -> int:
        """Its bytes; an extent that is not known counts as one."""
        return type_bytes(self.type)


def in_time_order(block: Block) -> Iterator[Binding]:
    """Yield the bindings of a function's body in order of time; see the head of this file."""
    for binding in block.bindings:
        yield binding
        if isinstance(binding.value, If):
            for inner in inner_blocks(binding.value):
                yield from in_time_order(inner)


class Liveness:
    """The buffers of one function, typed and in any stage of compilation.

    bindings: as `in_time_order`. buffers: one per result that a kernel computes; a view and a field
    have that of their source, parameters and constants have none.

    captured: those that others than the caller may hold when the function has returned.

    ``has_place`` says of a binding whether the memory of its result can be chosen, without which
    nothing else is written there. ``owned``: where parameters lie whose memory is the function's,
    by their numbers: they have buffers, which results may be written over unless two of them meet.
    """

    def __init__(
        self,
        function: Function,
        module: Module,
        has_place: Callable[[Binding], bool] = lambda binding: True,
        owned: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.bindings = list(in_time_order(function.body))
        self.buffers: list[Buffer] = []
        # Results that may be written over an argument: the call's arguments, and which one.
        self._over: list[tuple[int, tuple[Expr, ...], int]] = []
        self._meeting: set[int] = set()  # parameters' that share memory
        self.module = module
        self._places: dict[Expr, MemorySets] = {}
        self._now = -1
        self._own(function.params, owned)
        result = self._block(function.body)
        self._now = len(self.bindings)
        self.captured = frozenset(n for n, b in enumerate(self.buffers) if b.leaves)
        self._use(result, leaves=True)
        for number, args, which in self._over:
            root = self.overwritable(number, args, which)
            if root is None:
                continue
            begin = self.buffers[root].binding
            if begin < 0 or has_place(self.bindings[begin]):
                self.buffers[number].over = root
                self.buffers[root].last = self.buffers[number].last

    def _own(self, params: Sequence[Var], owned: Mapping[int, int]) -> None:
        """Give parameters whose memory is the function's a buffer each."""
        meeting, end = list[int](), 0
        for number in sorted(owned, key=owned.__getitem__):
            var = params[number]
            self._places[var] = self._new(var.type, var.name, [number])
            if owned[number] >= end:
                meeting = []
            meeting.append(len(self.buffers) - 1)
            if len(meeting) > 1:
                self._meeting.update(meeting)
            end = max(end, owned[number] + self.buffers[-1].size)

    def overwritable(self, number: int, args: Sequence[Expr], which: int) -> int | None:
        """Return the buffer of one argument of an elementwise call if the result, itself buffer
        ``number``, may be written over it: it dies here, and other arguments are apart from it.
        """
        memories = [self.memory(a) for a in args]
        if len(memories[which]) != 1 or self.buffers[number].leaves:
            return None
        (root,) = memories[which]
        if not isinstance(root, int) or root in self._meeting:
            return None
        if any(root in m for i, m in enumerate(memories) if i != which):
            return None
        over = self.buffers[root].over
        root = root if over is None else over
        old, new = self.buffers[root], self.buffers[number]
        dies = old.last == new.binding and not old.leaves
        # An argument may be a view of a part of the buffer.
        is_whole = old.size == type_bytes(type_of(args[which])) == new.size
        return root if dies and is_whole else None

    def of(self, atom: Expr) -> frozenset[int]:
        """Return the numbers of the buffers that an atom may be, all those of a tuple."""
        return frozenset(_buffer_numbers(self._place(atom)))

    def made(self) -> dict[Var, list[int]]:
        """Return the numbers of the buffers that each binding makes, by its variable."""
        found: dict[Var, list[int]] = {}
        for number, buffer in enumerate(self.buffers):
            found.setdefault(self.bindings[buffer.binding].var, []).append(number)
        return found

    def memory(self, atom: Expr) -> frozenset[Memory]:
        """Return all memory that an atom may be; what two atoms share, writing to one changes."""
        return frozenset(_flatten(self._place(atom)))

    def _place(self, atom: Expr) -> MemorySets:
        if isinstance(atom, Tuple):
            return tuple(map(self._place, atom.fields))
        return self._places.get(atom, frozenset((atom,)))

    def _use(self, place: MemorySets, leaves: bool = False) -> None:
        for number in _buffer_numbers(place):
            self.buffers[number].last = self._now
            self.buffers[number].leaves |= leaves

    def _block(self, block: Block) -> MemorySets:
        for binding in block.bindings:
            self._now += 1
            self._places[binding.var] = self._value(binding)
        return self._place(block.result)

    def _value(self, binding: Binding) -> MemorySets:
        value = binding.value
        match value:
            case If():
                self._use(self._place(value.condition))
                return _union(self._block(value.then_block), self._block(value.else_block))
            case Function():
                for var in free_vars(value):
                    self._use(self._place(var), leaves=True)
                return _NO_MEMORY
            case TupleGetItem():
                owner = self._place(value.value)
                return owner[value.index] if isinstance(owner, tuple) else owner
            case Call():
                return self._call(value, binding.var)
        if value.spec.is_atom:
            return self._place(value)
        used = list(operands(value))
        for atom in used:
            self._use(self._place(atom), leaves=value.opaque)
        gives_back = used and not value.stored
        return frozenset((binding.var,)) if gives_back else _no_memory(binding.var.type)

    def _call(self, call: Call, var: Var) -> MemorySets:
        viewed = view_source(call)
        used = [self._place(atom) for atom in operands(call)]
        if viewed is not None:
            self._use(used)
            return self._place(viewed)
        kernel = fused_function(call, self.module)
        self._use(used, leaves=base_op(call.callee) is None and kernel is None)
        place = self._new(var.type, var.name, [0])
        if kernel is not None and IN_PLACE in kernel.attrs:
            self._over.append((max(_buffer_numbers(place)), call.args, kernel.attrs[IN_PLACE]))
        return place

    def _new(self, type_: Type | None, name: str, count: list[int]) -> MemorySets:
        if isinstance(type_, TupleType):
            return tuple(self._new(field, name, count) for field in type_.fields)
        if not isinstance(type_, TensorType):
            return _NO_MEMORY
        self.buffers.append(Buffer(self._now, count[0], name, type_, self._now))
        count[0] += 1
        return frozenset((len(self.buffers) - 1,))

    def live_bytes(self, counts: Callable[[Buffer], bool] = lambda buffer: True) -> list[int]:
        """Return the bytes in use while each binding is evaluated, of the buffers that count;
        inputs and constants have none.

        What a binding reads for the last time and what it computes are both in use.
        """
        change = [0] * (len(self.bindings) + 1)
        for buffer in self.buffers:
            if buffer.over is not None or not counts(buffer):
                continue
            change[max(buffer.binding, 0)] += buffer.size
            if buffer.last + 1 < len(change):
                change[buffer.last + 1] -= buffer.size
        return list(accumulate(change[:-1]))


def fused_function(value: Expr, module: Module) -> Function | None:
    """Return the fused function, a kernel, that a value calls; None if it is no such call."""
    if not isinstance(value, Call) or not isinstance(value.callee, GlobalVar):
        return None
    function = module.functions[value.callee.name]
    return function if FUSED in function.attrs else None


def _buffer_numbers(place: MemorySets | Sequence[MemorySets]) -> Iterator[int]:
    return (memory for memory in _flatten(place) if isinstance(memory, int))


def _flatten(place: MemorySets | Sequence[MemorySets]) -> Iterator[Memory]:
    if isinstance(place, frozenset):
        yield from place
    else:
        for part in place:
            yield from _flatten(part)


def _no_memory(type_: Type | None) -> MemorySets:
    """Return the place of what has no memory that is known, in the form of its type."""
    return tuple(map(_no_memory, type_.fields)) if isinstance(type_, TupleType) else _NO_MEMORY


def _union(a: MemorySets, b: MemorySets) -> MemorySets:
    """Return a place that is one or the other."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(map(_union, a, b))
    return frozenset((*_flatten(a), *_flatten(b)))
