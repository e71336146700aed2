"""The benchmark of a gradient: the program of what the gradient rule calls, for a call by itself,
on each dialect that takes part in the forward one.

The program takes what the rule keeps of the forward call (arguments, results, or neither where a
type does) and the gradients of the results, and returns those of the floating point arguments, as
the pass `autodiff` has them in a program. It is compiled for each dialect, which is preferred: an
operator that the dialect does not have runs on another one, as it would in a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH, has_gradient
from meta.base.errors import GradientError
from meta.cost.record import Timing
from meta.dialect.core import prefer
from meta.ir import Function, Module, TensorType, Var, free_vars, type_bytes, type_of
from meta.op.core.call import CallValues, map_tensors
from meta.op.core.tracing import Symbol, Trace
from meta.vm.benchmark.contender import Contender, Reference, difference, reason_of
from meta.vm.benchmark.interleave import Call, Clock, Lane, interleave, warm_lane
from meta.vm.benchmark.workload import Workload, copies_of, gradients_like
from meta.vm.compilation import compile
from meta.vm.executable import Executable


@dataclass(frozen=True, slots=True)
class GradientProgram:
    """A program of gradients.

    Attributes
    ----------
    module: its main takes ``inputs`` and returns a tuple of gradients, which take ``bytes``.
    """

    module: Module
    inputs: tuple[torch.Tensor, ...]
    bytes: int

    def compiled(self, dialect: str, device: str) -> Executable:
        """Compile the program on a dialect."""
        with prefer(dialect):
            return compile(self.module, device=device, cuda_graph=False)


def gradient_program(
    call: CallValues, values: Sequence[Any], results: Sequence[torch.Tensor], dys: Sequence[Any]
) -> GradientProgram | None:
    """Return the program of the gradient of a call; None if it has no gradient.

    values: what the kernel was given. results: what it made. dys: the gradients of these.
    """
    rule = call.op.aspects.gradient
    if rule is None or rule.function is None:
        return None
    slots = [i for i in call.op.schema.tensor_slots if i not in call.op.schema.written]
    types = [t for i in slots for t in _several(call.args[i]) if isinstance(t, TensorType)]
    if not any(has_gradient(t.dtype) for t in types):
        return None
    if not any(has_gradient(FROM_TORCH[t.dtype]) for t in results):
        return None
    trace, tensors = Trace(call.device), dict[Var, torch.Tensor]()

    def symbol(name: str, tensor: torch.Tensor) -> Symbol:
        type_ = TensorType(tuple(tensor.shape), FROM_TORCH[tensor.dtype])
        var, value = trace.parameter(type_, name)
        tensors[var] = tensor
        found: Symbol = value
        return found

    rest = (value for value in values if isinstance(value, torch.Tensor))
    arguments = map_tensors(call.op, call.args, lambda _: symbol("x", next(rest)))
    y: Any = tuple(symbol("y", tensor) for tensor in results)
    dy: Any = tuple(symbol("dy", tensor) for tensor in dys)
    if isinstance(call.out, TensorType):
        y, dy = y[0], dy[0]
    named = {name: (y if index < 0 else arguments[index], only) for name, index, only in rule.kept}
    kept = {name: _types(value) if only else value for name, (value, only) in named.items()}
    try:
        found = trace.run(lambda: rule({**kept, rule.dy: dy}))
    except GradientError:  # of these attributes there is none: the rule says so
        return None
    gradients: list[Symbol] = []
    for slot, gradient in zip(call.op.schema.tensor_slots, found, strict=True):
        if slot not in call.op.schema.written and gradient is not None:
            pairs = zip(_several(call.args[slot]), _several(gradient), strict=False)
            gradients += [g for t, g in pairs if g is not None and has_gradient(t.dtype)]
    if not gradients:
        return None
    body = trace.finish(tuple(gradients))
    result = type_of(body.result)
    params = free_vars(body)  # what the rule kept and did not use is no input
    main = Function(tuple(params), body, result)
    module = Module({"main": main, **trace.functions}, dict(trace.types))
    return GradientProgram(module, tuple(tensors[p] for p in params), type_bytes(result))


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _types(value: Any) -> Any:
    """Return the types of symbols; any other value as it is."""
    if isinstance(value, tuple) and value and isinstance(value[0], Symbol):
        return tuple(symbol.type for symbol in value)
    return value.type if isinstance(value, Symbol) else value


SLACK = 10.0
"""How many times the tolerance of its dtype a gradient may differ: what is summed may cancel."""


@dataclass(frozen=True, slots=True)
class Backward:
    """What the programs of the gradient take: microseconds by dialect, and bytes of gradients."""

    timings: dict[str, Timing]
    bytes: int


def backward(
    workload: Workload,
    reference: Reference,
    contenders: Sequence[Contender],
    clock: Clock,
    *,
    rounds: int | None,
    deadline: float | None,
) -> Backward:
    """Compile, run and time the program of the gradient on the dialects of the contenders.

    A dialect whose program cannot be made or run, or computes other gradients than the first one
    that does, is refused with all of its contenders. ``rounds`` 0: nothing is timed.
    """
    if not isinstance(workload.what, CallValues):
        return Backward({}, 0)
    results = reference.expected[: len(workload.outputs)]
    program = gradient_program(workload.what, reference.values, results, gradients_like(results))
    if program is None:
        return Backward({}, 0)
    lanes: dict[str, Lane] = {}
    first, expected = "", None
    copies = _copies(program, workload)
    for dialect in dict.fromkeys(c.dialect for c in contenders if c.env is not None):
        try:
            executable = program.compiled(dialect, str(workload.device))
            found = [t.clone() for t in executable.on_tensors(list(copies[0]))]
            apart = None if expected is None else difference(found, expected, SLACK)
            wrong = None if apart is None else f"is wrong, if {first} is right: {apart}"
            if wrong is None and rounds != 0:
                lanes[dialect] = _lane(executable, copies, clock)
        except Exception as error:
            wrong = f"fails: {reason_of(error)}"
        if wrong is None:
            first, expected = (dialect, found) if expected is None else (first, expected)
            continue
        for contender in contenders:
            if contender.dialect == dialect:
                contender.refuse(f"the gradient {wrong}")
    interleave(list(lanes.values()), clock, rounds=rounds, deadline=deadline)
    return Backward({d: lane.timing() for d, lane in lanes.items()}, program.bytes)


def _copies(program: GradientProgram, workload: Workload) -> list[list[torch.Tensor]]:
    size = sum(t.nbytes for t in program.inputs) + program.bytes
    count = copies_of(size, workload.device, writes=False)
    return [[t.clone() for t in program.inputs] for _ in range(count)]


def _lane(executable: Executable, copies: Sequence[list[torch.Tensor]], clock: Clock) -> Lane:
    def calls(count: int) -> list[Call]:
        return [partial(executable.on_tensors, copies[i % len(copies)]) for i in range(count)]

    recordable = not any(env.not_capturable for env in executable.program.kernels)
    return warm_lane(clock, calls, len(copies), recordable=recordable)
