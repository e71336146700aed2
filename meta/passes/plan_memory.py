"""Memory planning: what lives inside of a function gets a fixed place in one arena (see
`meta.runtime.arena`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import ADJACENT, ALLOCATES, FUSED
from meta.dialect.core.ir_calls import base_op, called_op, declared_call, flat_atoms
from meta.ir import Binding, Call, Expr, Function, Module, Tuple
from meta.op.core import View
from meta.passes.dispatch import kernel_of
from meta.passes.liveness import Buffer, Liveness, fused_function, in_time_order
from meta.passes.rewrite import map_functions, rewrite_function, with_value
from meta.runtime.allocate import ALIGNMENT, aligned
from meta.runtime.arena import Lifetime, plan

ARENA, OFFSETS, RESIDENT = "arena", "offsets", "resident"
"""The attributes of a planned function: see `plan_memory`."""


def plan_memory(
    module: Module,
    *,
    device: Device,
    results: Sequence[int] = (),
    resident: Sequence[tuple[int, int]] = (),
    segment: int = 0,
) -> Module:
    """Write into every function, closures included, where its intermediate results live.

    ``arena`` is the size in bytes of the function's memory. ``offsets`` has an entry ``(i, j, at)``
    for result ``j`` of binding number ``i`` (see `liveness`): it lives ``at`` bytes, a multiple of
    64, behind the arena's start. Results that are not in use at the same time share space; a view
    is part of what it views. The results of a kernel that wants them side by side, evenly spaced
    (``adjacent``), are one piece of memory. A result without an entry is allocated when it is
    computed: it leaves the function, its extents are not known yet, or its kernel allocates it.
    The values of a bucket (`bucket_collectives`) lie one behind the other.

    ``results``: the numbers of results of main that may stay in its arena, at the bottom, the first
    that is computed first: whoever calls it sees to it that it does not run as long as somebody has
    one. ``resident``: pairs ``(k, at)`` for parameters of main that lie in its arena when it is
    called, and whose memory it may use when it has read them for the last time: they become its
    attribute ``resident``. ``segment``: bytes, unless 0, behind which the arena goes on in other
    memory: no result lies in both, nor in the 64 bytes there.

    Each activation of a function needs an arena of its own. To be run last, since the numbers of
    the bindings count.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("tvm"):
    ...     print(meta.passes.plan_memory(dispatch(parse('''
    ... func @f(%x: bool[9]) -> bool[9] {
    ...   %a: bool[9] = logical_not(%x)
    ...   %b: bool[9] = logical_not(%a)
    ...   %c: bool[9] = logical_not(%b)
    ...   %d: bool[9] = logical_not(%c)
    ...   return %d
    ... }'''), device=CPU), device=CPU))
    func @f(%x: bool[9]) -> bool[9] attrs(arena=128, offsets=((0, 0, 0), (1, 0, 64), (2, 0, 0))) {
      %a: bool[9] = tvm.logical_not(%x)
      %b: bool[9] = tvm.logical_not(%a)
      %c: bool[9] = tvm.logical_not(%b)
      %d: bool[9] = tvm.logical_not(%c)
      return %d
    }
    """

    def closure(binding: Binding) -> Binding:
        value = binding.value
        if not isinstance(value, Function) or FUSED in value.attrs:
            return binding
        return with_value(binding, _planned(value, module, device))

    def planned(function: Function) -> Function:
        if FUSED in function.attrs:
            return function
        options: tuple[Any, ...] = ()
        if function is module.functions.get("main"):
            options = results, resident, segment
        return _planned(rewrite_function(function, closure), module, device, *options)

    return map_functions(module, planned)


def planned_peak(function: Function, module: Module) -> int:
    """Return the bytes that a function takes at its worst moment, inputs and constants not counted.

    That is its arena and what is allocated beside it; without a plan, what is in use.
    """
    live = Liveness(function, module)
    if ARENA not in function.attrs:
        return max(live.live_bytes(), default=0)
    placed = {(i, j) for i, j, _ in function.attrs[OFFSETS]}
    beside = live.live_bytes(lambda b: (b.binding, b.output) not in placed)
    return int(function.attrs[ARENA]) + max(beside, default=0)


def _planned(
    function: Function,
    module: Module,
    device: Device,
    results: Sequence[int] = (),
    resident: Sequence[tuple[int, int]] = (),
    segment: int = 0,
) -> Function:
    filled = {b.var for b in in_time_order(function.body) if _fills(b.value, module, device)}
    owned = dict(resident)
    live = Liveness(function, module, lambda b: b.var in filled, owned)
    staying = _staying(function, live, results)
    fixed = {n: owned[b.output] for n, b in enumerate(live.buffers) if b.binding < 0}
    inside = [
        number
        for number, b in enumerate(live.buffers)
        if (not b.leaves or number in staying)
        and b.type.is_static
        and b.over is None
        and b.binding >= 0
        and live.bindings[b.binding].var in filled
    ]
    places, size = _placed(inside, live, module, fixed, staying, segment)
    at = {**fixed, **places}
    places |= {n: at[b.over] for n, b in enumerate(live.buffers) if b.over is not None}
    entries = sorted(
        (live.buffers[n].binding, live.buffers[n].output, at) for n, at in places.items()
    )
    own = {RESIDENT: tuple(resident)} if resident else {}
    return replace(function, attrs={**function.attrs, ARENA: size, OFFSETS: tuple(entries), **own})


def _staying(function: Function, live: Liveness, results: Sequence[int]) -> frozenset[int]:
    """Return the buffers that nobody holds when the function has returned but who has these of its
    results.
    """
    if not results:
        return frozenset()
    result = function.body.result
    fields = result.fields if isinstance(result, Tuple) else (result,)
    ours, others = frozenset[int](), live.captured
    for number, field in enumerate(fields):
        if number in results:
            ours |= live.of(field)
        else:
            others |= live.of(field)
    return ours - others


def _placed(
    inside: list[int],
    live: Liveness,
    module: Module,
    fixed: Mapping[int, int],
    staying: frozenset[int],
    segment: int,
) -> tuple[dict[int, int], int]:
    """Return where each of these buffers lives, and the size of the arena. fixed: by number, where
    further ones lie. staying: those of results, at the bottom. segment: see `plan_memory`.
    """
    pieces: dict[int, list[int]] = {}
    for number in inside:
        binding = live.buffers[number].binding
        kernel = fused_function(live.bindings[binding].value, module)
        together = kernel is not None and ADJACENT in kernel.attrs
        pieces.setdefault(-1 - binding if together else number, []).append(number)
    key_of = {number: key for key, piece in pieces.items() for number in piece}
    for row in _rows(live):
        # What has no place, or is in a piece whose order is another one, is exchanged apart.
        placed = [number for number in row if number in key_of]
        keys: list[int] = []
        for i, number in enumerate(placed):
            piece = pieces[key_of[number]]
            if placed[i : i + len(piece)] == piece:
                keys.append(key_of[number])
        joined = [number for key in keys for number in pieces[key]]
        for key in keys[1:]:
            del pieces[key]
        for number in joined:
            key_of[number] = keys[0]
        if keys:
            pieces[keys[0]] = joined
    lives = [_lifetime([live.buffers[n] for n in p]) for p in pieces.values()]
    stacked = [i for i, piece in enumerate(pieces.values()) if staying.issuperset(piece)]
    stacked.sort(key=lambda i: lives[i].first)
    at_offsets = {len(lives) + i: at for i, at in enumerate(fixed.values())}
    lives += [_lifetime([live.buffers[n]]) for n in fixed]
    if segment:
        at_offsets[len(lives)] = aligned(segment)
        lives.append(Lifetime(ALIGNMENT, -1, len(live.bindings)))
    offsets, size = plan(lives, at_offsets, () if fixed else stacked)
    places: dict[int, int] = {}
    for piece, at in zip(pieces.values(), offsets, strict=False):
        for number in piece:
            places[number] = at
            at += aligned(live.buffers[number].size)
    return places, size


def _rows(live: Liveness) -> Iterator[list[int]]:
    """Yield the buffers of each bucket of values (`bucket_collectives`) that has several."""
    for binding in live.bindings:
        if called_op(binding.value) not in BUCKETS:
            continue
        assert isinstance(binding.value, Call)
        row = list[int]()
        for atom in flat_atoms(binding.value.args[0]):
            for number in live.of(atom):
                over = live.buffers[number].over
                row.append(number if over is None else over)
        if len(row) == len(set(row)) > 1:
            yield row


BUCKETS = op.multi_tensor_all_reduce, op.multi_tensor_all_reduce_start
"""The operators on several tensors that lie one behind the other."""


def _lifetime(piece: list[Buffer]) -> Lifetime:
    """Return the lifetime of buffers that lie side by side: while any of them is in use."""
    *front, end = piece
    size = sum(aligned(b.size) for b in front) + end.size
    return Lifetime(size, min(b.binding for b in piece), max(b.last for b in piece))


def _fills(value: Expr, module: Module, device: Device) -> bool:
    """Whether a value is that of a kernel that fills memory it is given."""
    if not isinstance(value, Call):
        return False
    kernel = fused_function(value, module)
    if kernel is not None:
        return not kernel.attrs.get(ALLOCATES, False)
    called = base_op(value.callee)
    if called is None:
        return False
    call = declared_call(called, value, device)
    if call.callee is None or isinstance(call.out, View):
        return False
    return not kernel_of(value.callee, call).allocates
