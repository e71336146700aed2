"""Casts that cost less elsewhere, or are not needed: `bypass_casts` for calls that read any dtype,
`narrow_before_views` for casts behind views, `join_casts` for those of weights.

An operator belongs to `ANY_DTYPE` if the dtypes of a list of tensors that it reads decide nothing:
it computes in float32 (of float64, in that), whatever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from meta import op
from meta.base.device import Device
from meta.base.dtype import bits, is_float
from meta.dialect.core import answers
from meta.dialect.core.ir_calls import (
    base_op,
    called_op,
    declared_call,
    new_call,
    op_call,
    tensor_of,
    tensor_type,
)
from meta.dialect.core.preference import current
from meta.ir import Binding, Call, Expr, Function, Module, Tuple, TupleGetItem, Var, type_of
from meta.ir.visit import uses
from meta.op.core.update import OPTIMIZERS
from meta.passes.alias_analysis import (
    AliasSets,
    AliasSummaries,
    Definitions,
    map_functions_with_aliases,
)
from meta.passes.rewrite import rewrite, rewrite_function, with_main, with_value
from meta.passes.simplify.casts import represents
from meta.passes.simplify.shapes import VIEWS

ANY_DTYPE = {
    **dict.fromkeys(OPTIMIZERS, "dx"),
    op.multi_tensor_axpby: "x",
    op.multi_tensor_norm: "x",
}
"""By operator, the list that it reads in any dtypes."""


def bypass_casts(module: Module) -> Module:
    """Give calls that read any dtype what a widening cast was made of.

    The gradients of half precision weights are half precision, and so read half the bytes; what is
    computed is the same, bit for bit. A cast that nobody else needs is left to `dead_code`.

    >>> from meta.ir import parse
    >>> from meta.passes import dead_code
    >>> print(dead_code(meta.passes.bypass_casts(parse('''
    ... func @main(%x: float16[2], %y: float32[3]) -> float32[] {
    ...   %a: float32[2] = astype(%x, dtype="float32")
    ...   %b: float32[] = multi_tensor_norm((%a, %y))
    ...   return %b
    ... }'''))))
    func @main(%x: float16[2], %y: float32[3]) -> float32[] {
      %b: float32[] = multi_tensor_norm((%x, %y))
      return %b
    }
    """

    def change(function: Function, buffers: AliasSets) -> Function:
        rule = partial(_rule, buffers=buffers, known=Definitions(function, buffers))
        return rewrite_function(function, rule)

    return map_functions_with_aliases(module, change)


def _rule(binding: Binding, buffers: AliasSets, known: Definitions) -> Binding:
    value = binding.value
    called = called_op(value)
    if isinstance(value, Call) and called is not None and called in ANY_DTYPE:
        place = called.schema.index[ANY_DTYPE[called]]
        read = value.args[place]
        if isinstance(read, Tuple):
            written = buffers.written_by(binding)
            sources = ((field, _source(field, known)) for field in read.fields)
            fields = tuple(f if buffers.of(s) in written else s for f, s in sources)
            args = (*value.args[:place], Tuple(fields), *value.args[place + 1 :])
            binding = with_value(binding, Call(value.callee, args))
    known.add(binding)
    return binding


def _source(atom: Expr, known: Definitions) -> Expr:
    """Return what an exact cast was made of; an atom that is none, as it is."""
    value = known.get(atom)
    if not isinstance(value, Call) or base_op(value.callee) is not op.astype:
        return atom
    source: Expr = value.args[0]
    found = tensor_of(source).dtype
    return source if is_float(found) and represents(tensor_of(atom).dtype, found) else atom


def narrow_before_views(module: Module) -> Module:
    """Exchange a reshape and the cast to fewer bits that follows it.

    A view ends a kernel: the cast then fuses with what is before it, which writes narrow numbers
    only, and the view, which costs nothing, is one of these.

    >>> from meta.ir import parse
    >>> print(meta.passes.narrow_before_views(parse('''
    ... func @main(%x: float32[2, 3, 4]) -> float16[6, 4] {
    ...   %p: float32[2, 3, 4] = softmax(%x)
    ...   %v: float32[6, 4] = reshape(%p, shape=(6, 4))
    ...   %y: float16[6, 4] = astype(%v, "float16")
    ...   return %y
    ... }''')))
    func @main(%x: float32[2, 3, 4]) -> float16[6, 4] {
      %p: float32[2, 3, 4] = softmax(%x)
      %v: float32[6, 4] = reshape(%p, shape=(6, 4))
      %narrow: float16[2, 3, 4] = astype(%p, dtype="float16")
      %y: float16[6, 4] = reshape(%narrow, shape=(6, 4))
      return %y
    }
    """
    return rewrite(module, partial(_cast_before_view, known={}))


def _cast_before_view(binding: Binding, known: dict[Var, Expr]) -> list[Binding]:
    """Return a cast and the view of it; another binding as it is."""
    known[binding.var] = binding.value
    cast, type_ = op_call(binding.value), tensor_type(binding.var)
    if cast is None or cast.op is not op.astype or type_ is None or not type_.is_static:
        return [binding]
    source = _behind_views(cast.args[0], known)
    before = tensor_type(source)
    if source is cast.args[0] or before is None or not before.is_static:
        return [binding]
    if bits(before.dtype) <= bits(type_.dtype):
        return [binding]
    narrow = Var("narrow", before.with_dtype(type_.dtype))
    first = Binding(narrow, new_call(op.astype, source, type_.dtype), binding.span)
    view = new_call(op.reshape, narrow, type_.static_shape)
    return [first, Binding(binding.var, view, binding.span)]


def _behind_views(atom: object, known: Mapping[Var, Expr]) -> object:
    while isinstance(atom, Var) and (made := op_call(known.get(atom))) is not None:
        if made.op not in VIEWS:
            break
        atom = made.args[0]
    return atom


MIN_JOINED_CASTS = 3
"""Casts that are joined: of two, one launch is saved, and both live longer."""


def join_casts(module: Module, *, device: Device, devices: tuple[str, ...] = ("cuda",)) -> Module:
    """Cast the parameters of main that are cast alone in one call, on ``devices``, and in another
    one the results of main.

    That is what fusion leaves of the casts of a mixed precision program: those of the weights that
    library kernels read, one launch each, of which a transformer has two hundred. They move to the
    beginning, so that all copies are in memory at once, as they are when the backward pass begins.
    A parameter that is written before it is cast keeps its own cast, and so does one that is cast
    twice, as `rematerialize` lets it be; all do if no dialect that may be used has such a call.
    A cast of what is gathered from other ranks comes with the gather (`schedule_collectives`).
    What is cast only to be returned, such as the gradients of weights, is cast at the end. On
    the CPU a launch costs little, and a cast close to its use finds the caches warm. To be run
    after `fuse_operators`.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("torch"):
    ...     print(meta.passes.join_casts(dispatch(parse('''
    ... func @main(%x: float16[2], %u: float32[2], %v: float32[2], %w: float32[2]) -> float16[2] {
    ...   %a: float16[2] = astype(%u, "float16")
    ...   %b: float16[2] = multiply(%x, %a)
    ...   %c: float16[2] = astype(%v, "float16")
    ...   %d: float16[2] = multiply(%b, %c)
    ...   %e: float16[2] = astype(%w, "float16")
    ...   %f: float16[2] = multiply(%d, %e)
    ...   return %f
    ... }'''), device=CPU), device=CPU, devices=("cpu",)))
    func @main(%x: float16[2], %u: float32[2], %v: float32[2], %w: float32[2]) -> float16[2] {
      %casts: (float16[2], float16[2], float16[2]) = torch.multi_tensor_cast((%u, %v, %w), \
dtype="float16")
      %a: float16[2] = %casts.0
      %c: float16[2] = %casts.1
      %e: float16[2] = %casts.2
      %b: float16[2] = torch.multiply(%x, %a)
      %d: float16[2] = torch.multiply(%b, %c)
      %f: float16[2] = torch.multiply(%d, %e)
      return %f
    }
    """
    if device.kind not in devices:
        return module
    main = module.main
    buffers = AliasSets(main, AliasSummaries(module))
    first, begun = _join_groups(_casts(main, buffers), device)
    readers = _Readers(main)
    last, ended = _join_groups(_casts_of_results(main, buffers, readers), device)
    behind = {v for var in ended for v in readers.views(var) or ()}
    rest = [b for b in main.body.bindings if b.var not in begun | ended | behind]
    views = [b for b in main.body.bindings if b.var in behind]
    return with_main(module, [*first, *rest, *last, *views])


def _join_groups(
    casts: list[tuple[Binding, Call]], device: Device
) -> tuple[list[Binding], set[Var]]:
    """Return one call for the casts to each dtype, and the variables of those that it replaces."""
    groups: dict[str, list[tuple[Binding, Call]]] = {}
    for binding, call in casts:
        groups.setdefault(call.args[1], []).append((binding, call))
    joined: list[Binding] = []
    moved: set[Var] = set()
    for group in groups.values():
        made = _join(group, device) if len(group) >= MIN_JOINED_CASTS else []
        if made:
            joined += made
            moved |= {binding.var for binding, _ in group}
    return joined, moved


def _is_float_cast(call: Call) -> bool:
    """Whether a call casts floating point of a known shape to floating point."""
    source, dtype = call.args
    type_ = tensor_of(source)
    return type_.is_static and is_float(type_.dtype) and is_float(dtype)


def _casts(main: Function, buffers: AliasSets) -> list[tuple[Binding, Call]]:
    """Return the casts of parameters as they are at the beginning, whose results nobody writes."""
    parameters, written = set(main.params), set()
    exchanges = (b.value for b in main.body.bindings if _is_exchange(b))
    exchanged = {atom for value in exchanges for atom in uses(value)}
    found: list[tuple[Binding, Call]] = []
    for binding in main.body.bindings:
        call = binding.value
        if isinstance(call, Call) and base_op(call.callee) is op.astype:
            own = buffers.of(binding.var) not in buffers.written and binding.var not in exchanged
            fits = call.args[0] in parameters and _is_float_cast(call)
            if fits and own and buffers.of(call.args[0]) not in written:
                found.append((binding, call))
        written |= buffers.written_by(binding)
    times = Counter((call.args[0], call.args[1]) for _, call in found)
    return [(binding, call) for binding, call in found if times[call.args[0], call.args[1]] == 1]


def _is_exchange(binding: Binding) -> bool:
    called = called_op(binding.value)
    return called is not None and bool(called.collective)


class _Readers:
    """What reads the values of a function."""

    def __init__(self, function: Function) -> None:
        self._readers: dict[Var, list[Binding]] = {}
        for binding in function.body.bindings:
            for atom in uses(binding.value):
                if isinstance(atom, Var):
                    self._readers.setdefault(atom, []).append(binding)

    def views(self, var: Var) -> set[Var] | None:
        """Return the reshapes of a value and of these, if nothing else in the function reads it."""
        found: set[Var] = set()
        for reader in self._readers.get(var, ()):
            inner = self.views(reader.var) if called_op(reader.value) is op.reshape else None
            if inner is None:
                return None
            found |= {reader.var, *inner}
        return found


def _casts_of_results(
    main: Function, buffers: AliasSets, readers: _Readers
) -> list[tuple[Binding, Call]]:
    """Return the casts of computed values that are only returned, and that nobody writes."""
    parameters = set(main.params)
    found: list[tuple[Binding, Call]] = []
    for binding in main.body.bindings:
        call = binding.value
        if not isinstance(call, Call) or base_op(call.callee) is not op.astype:
            continue
        source = call.args[0]
        if not isinstance(source, Var) or source in parameters or not _is_float_cast(call):
            continue
        if buffers.written & {buffers.of(source), buffers.of(binding.var)}:
            continue
        if readers.views(binding.var) is not None:
            found.append((binding, call))
    return found


def _join(casts: list[tuple[Binding, Call]], device: Device) -> list[Binding]:
    """Return one call instead of several, and its fields; nothing if no dialect has a kernel."""
    (first, call), *_ = casts
    args = (Tuple(tuple(call.args[0] for _, call in casts)), call.args[1])
    asked = answers(
        declared_call(op.multi_tensor_cast, Call(op.multi_tensor_cast, args), device), current()
    )
    chosen = next((answer for answer in asked if answer.env is not None), None)
    if chosen is None:
        return []
    whole = Var("casts", type_of(Tuple(tuple(binding.var for binding, _ in casts))))
    fields = [
        Binding(binding.var, TupleGetItem(whole, i), binding.span)
        for i, (binding, _) in enumerate(casts)
    ]
    return [Binding(whole, Call(chosen.dialect_op, args), first.span), *fields]
