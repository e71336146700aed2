"""Casts of parameters that no kernel absorbs: all of them in one launch."""

from __future__ import annotations

from collections import Counter

from meta import op
from meta.base.device import Device
from meta.base.dtype import is_float
from meta.dialect.core import answers
from meta.dialect.core.preference import current
from meta.ir import (
    Binding,
    Call,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
)
from meta.passes.buffers import Buffers, Summaries
from meta.passes.calls import base_op
from meta.passes.dispatch import prepared
from meta.passes.rewrite import with_main

FEWEST = 3
"""Casts that are joined: of two, one launch is saved, and both live longer."""


def join_casts(module: Module, *, device: Device, devices: tuple[str, ...] = ("cuda",)) -> Module:
    """Cast the parameters of main that are cast alone in one call, on ``devices``.

    That is what fusion leaves of the casts of a mixed precision program: those of the weights that
    library kernels read, one launch each, of which a transformer has two hundred. They move to the
    beginning, so that all copies are in memory at once, as they are when the backward pass begins.
    A parameter that is written before it is cast keeps its own cast, and so does one that is cast
    twice, as `rematerialize` lets it be; all do if no dialect that may be used has such a call. On
    the CPU a launch costs little, and a cast close to its use finds the caches warm. To be run
    after `fuse_tvm`.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("torch"):
    ...     print(join_casts(dispatch(parse('''
    ... func @main(%x: float16[2], %u: float32[2], %v: float32[2], %w: float32[2]) -> float16[2] {
    ...   %a: float16[2] = cast(%u, "float16")
    ...   %b: float16[2] = multiply(%x, %a)
    ...   %c: float16[2] = cast(%v, "float16")
    ...   %d: float16[2] = multiply(%b, %c)
    ...   %e: float16[2] = cast(%w, "float16")
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
    groups: dict[str, list[tuple[Binding, Call]]] = {}
    for binding, call in _casts(main, Buffers(main, Summaries(module))):
        groups.setdefault(call.args[1], []).append((binding, call))
    joined: list[Binding] = []
    moved: set[Var] = set()
    for group in groups.values():
        made = _joined(group, device) if len(group) >= FEWEST else []
        if made:
            joined += made
            moved |= {binding.var for binding, _ in group}
    rest = [b for b in main.body.bindings if b.var not in moved]
    return with_main(module, [*joined, *rest])


def _casts(main: Function, buffers: Buffers) -> list[tuple[Binding, Call]]:
    """Return the casts of parameters as they are at the beginning, whose results nobody writes."""
    parameters, written = set(main.params), set()
    found: list[tuple[Binding, Call]] = []
    for binding in main.body.bindings:
        call = binding.value
        if isinstance(call, Call) and base_op(call.callee) is op.cast:
            source, dtype = call.args
            fits = source in parameters and _static_float(source) and is_float(dtype)
            own = buffers.of(binding.var) not in buffers.written
            if fits and own and buffers.of(source) not in written:
                found.append((binding, call))
        written |= buffers.written_by(binding)
    times = Counter((call.args[0], call.args[1]) for _, call in found)
    return [(binding, call) for binding, call in found if times[call.args[0], call.args[1]] == 1]


def _static_float(var: Var) -> bool:
    return isinstance(var.type, TensorType) and var.type.is_static and is_float(var.type.dtype)


def _joined(casts: list[tuple[Binding, Call]], device: Device) -> list[Binding]:
    """Return one call instead of several, and its fields under the names of their results; nothing
    if no dialect in force has a kernel for it.
    """
    (first, call), *_ = casts
    args = (Tuple(tuple(call.args[0] for _, call in casts)), call.args[1])
    asked = answers(
        prepared(op.multi_tensor_cast, Call(op.multi_tensor_cast, args), device), current.get()
    )
    chosen = next((answer for answer in asked if answer.env is not None), None)
    if chosen is None:
        return []
    whole = Var("casts", TupleType(tuple(binding.var.type for binding, _ in casts)))
    fields = [
        Binding(binding.var, TupleGetItem(whole, i), binding.span)
        for i, (binding, _) in enumerate(casts)
    ]
    return [Binding(whole, Call(chosen.dialect_op, args), first.span), *fields]
