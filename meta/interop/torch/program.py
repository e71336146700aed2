"""What a call of an overload becomes: its converter, traced to a few calls of base operators.

A tensor that lies in memory with its axes in another order, as a transposed weight or an image with
channels last, is a parameter in that order, as in programs of `torch.compile`; so is a result that
PyTorch's kernel lays so. What would have to be copied for that, or for anything else, is refused:
PyTorch's kernel reads it where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from meta import passes
from meta.base.device import Device
from meta.base.dtype import FROM_TORCH
from meta.base.errors import MetaError
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from meta.frontend.core.memory_order import Order, inverse, is_contiguous_order, order_of, permuted
from meta.interop.torch.overloads import Overload
from meta.ir import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, type_of
from meta.ir.types import TensorType
from meta.op.core.op import Op
from meta.op.core.tracing import Trace
from meta.runtime.allocate import compact_strides
from meta.vm.eager.decided_call import DecidedCall

MOST_CALLS = 2
"""Kernels that a call may become. Views do not count."""
Strides = tuple[tuple[int, ...], tuple[int, ...]]
"""How a tensor lies in memory: shape and strides."""
PASSES = (
    passes.infer_type,
    passes.canonicalize,
    passes.simplify,
    passes.fold_constant,
    passes.eliminate_common_subexpressions,
    passes.bypass_casts,
    passes.dead_code,
)


class _PureTrace(Trace):
    """A trace of calls that write to nothing, which are run twice when they are first met."""

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.has_effect:
            raise Unconvertible(f"{op.name} writes to an argument")
        return super().__call__(op, args, kwargs)


@dataclass(frozen=True)
class TracedOverload:
    """A converted call before the order of its results' axes is known.

    ``params``: of the tensors among the arguments, in the order of `tensors_of`. ``reads``: the
    shape and strides in which a parameter is read of its tensor, None for those of the tensor.
    ``pointwise``: the order of axes that all tensors have where the call is made as if it were the
    usual one; then results have it, too.
    """

    trace: Trace
    params: tuple[Var, ...]
    reads: tuple[Strides | None, ...]
    result: Any
    pointwise: Order | None
    device: Device


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors of a call in the order of its arguments."""
    leaves = pytree.tree_leaves((args, kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _require_plain(tensors: Sequence[Tensor]) -> Device:
    """Return where the tensors are; Unconvertible for those that programs do not have."""
    for tensor in tensors:
        if tensor.dtype not in FROM_TORCH:
            raise Unconvertible(f"{tensor.dtype} is no dtype here")
        if tensor.layout is not torch.strided:
            raise Unconvertible(f"a tensor has the layout {tensor.layout}")
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        found = "no tensor" if not devices else "tensors on several devices"
        raise Unconvertible(f"{found}: {', '.join(sorted(map(str, devices)))}")
    return Device(str(devices.pop()))


def trace_overload(
    overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TracedOverload:
    """Trace the converter of a call. Raises Unconvertible, or an error of the operators."""
    tensors = tensors_of(args, kwargs)
    device = _require_plain(tensors)
    pointwise = torch.Tag.pointwise in overload.tags
    # What repeats elements is broadcast by the operator itself.
    seen = [_without_repeats(t) if pointwise else t for t in tensors]
    orders = []
    for tensor in seen:
        order = order_of(tensor)
        if order is None:
            raise Unconvertible("a tensor has gaps in memory, or repeats elements")
        orders.append(order)
    alike = {(t.shape, order) for t, order in zip(seen, orders, strict=True)}
    common = (
        orders[0] if pointwise and len(alike) == 1 and not is_contiguous_order(orders[0]) else None
    )
    trace = _PureTrace(device)
    params, symbols, reads = [], [], []
    for i, (given, tensor, order) in enumerate(zip(tensors, seen, orders, strict=True)):
        shape = tuple(tensor.shape[axis] for axis in order)
        strides = tuple(tensor.stride(axis) for axis in order)
        var, symbol = trace.parameter(TensorType(shape, FROM_TORCH[tensor.dtype]), f"x{i}")
        params.append(var)
        symbols.append((symbol, order))
        reads.append(None if given is tensor and is_contiguous_order(order) else (shape, strides))

    def run() -> Any:
        given = iter(symbols)

        def stand_in(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            symbol, order = next(given)
            return symbol if common is not None else permuted(symbol, inverse(order))

        ours = pytree.tree_map(stand_in, (tuple(args), dict(kwargs)))
        return convert(overload, *ours)

    try:
        result = trace.run(run)
    except MetaError as error:
        if all(a is b for a, b in zip(seen, tensors, strict=True)):
            raise
        raise Unconvertible("a tensor repeats elements; the operator does not") from error
    if trace.functions or trace.types:
        raise Unconvertible("it becomes a program with functions of its own")
    return TracedOverload(trace, tuple(params), tuple(reads), result, common, device)


def _without_repeats(tensor: Tensor) -> Tensor:
    """Return a tensor with the extent 1 along axes along which it repeats its elements."""
    repeated = [s == 0 and n > 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    if not any(repeated):
        return tensor
    shape = [1 if r else n for n, r in zip(tensor.shape, repeated, strict=True)]
    return tensor.as_strided(shape, tensor.stride())


@dataclass(frozen=True)
class Spec:
    """The type of a result of PyTorch's kernel, and how it lies in memory."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    order: Order


def specs_of(results: Any) -> list[Spec | None]:
    """Return what PyTorch's results are, None for one that is left out."""
    found: list[Spec | None] = []
    for result in results if isinstance(results, tuple | list) else (results,):
        if result is None:
            found.append(None)
            continue
        order = order_of(result)
        if order is None or result.dtype not in FROM_TORCH:
            raise Unconvertible("a result has gaps in memory, or a dtype that is none here")
        if result.is_conj() or result.is_neg() or result._is_zerotensor():
            raise Unconvertible("a result is a view of values that are computed when it is read")
        dtype = FROM_TORCH[result.dtype]
        found.append(Spec(tuple(result.shape), dtype, result.stride(), order))
    return found


@dataclass(frozen=True)
class Program:
    """A few decided calls of base operators.

    Attributes
    ----------
    calls: their operators and their decisions, views left out.
    reads: of each argument, as `TracedOverload` has it.
    constants: what stands behind the arguments in the list of values.
    steps: what computes one value more of those before it.
    results: where in the list the results are, None for one that is left out. laid: the shape and
    strides in which each is returned, None where it is as its kernel returns it.
    kind: tuple or list where there are several results, None for one.
    """

    calls: tuple[tuple[Op, DecidedCall], ...]
    reads: tuple[Strides | None, ...]
    constants: tuple[Any, ...]
    steps: tuple[Step, ...]
    results: tuple[int | None, ...]
    laid: tuple[Strides | None, ...]
    kind: type | None

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects that run it, each once."""
        return tuple(dict.fromkeys(decided.dialect for _, decided in self.calls))

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold it."""
        return all(decided.capturable for _, decided in self.calls)

    def run(self, tensors: Sequence[Any]) -> Any:
        """Return the results for the tensors of a call."""
        values = [
            t if lie is None else t.as_strided(*lie)
            for t, lie in zip(tensors, self.reads, strict=True)
        ]
        values += self.constants
        for step in self.steps:
            values.append(step(values))
        found = [
            None if at is None else values[at] if laid is None else values[at].as_strided(*laid)
            for at, laid in zip(self.results, self.laid, strict=True)
        ]
        return found[0] if self.kind is None else self.kind(found)

    def kernel(self) -> Callable[[Sequence[Any]], Any]:
        """Return what runs the program: for one call with one result the kernel, almost."""
        simple = self.calls[0][1].simple if len(self.calls) == len(self.steps) == 1 else None
        if simple is None or any(self.reads) or any(self.laid) or self.kind is not None:
            return self.run
        kernel, at, constants = simple[0], self.steps[0].at, self.constants
        count = len(self.reads)
        if at == (0,):
            return lambda tensors: kernel(tensors[0])
        if at == tuple(range(count)):
            return lambda tensors: kernel(*tensors)
        return lambda tensors: kernel(*map([*tensors, *constants].__getitem__, at))


class Step:
    """Computes a value of those before it: a function of the values at some places."""

    __slots__ = ("at", "function")

    def __init__(self, function: Callable[..., Any], at: Sequence[int]) -> None:
        self.function, self.at = function, tuple(at)

    def __call__(self, values: Sequence[Any]) -> Any:
        return self.function(*[values[i] for i in self.at])


def program_of(call: TracedOverload, specs: Sequence[Spec | None], kind: type | None) -> Program:
    """Return the program of a call whose results are as PyTorch's are.

    Raises Unconvertible where it gives other types, is too long, or copies to place axes.
    """
    results = [call.result] if kind is None else [*call.result]
    if len(results) != len(specs):
        raise Unconvertible(f"its converter gives {len(results)} results instead of {len(specs)}")
    if any((r is None) != (spec is None) for r, spec in zip(results, specs, strict=True)):
        raise Unconvertible("its converter leaves out another result than PyTorch does")
    kept = [
        _with_axis_order(call, found, spec)
        for found, spec in zip(results, specs, strict=True)
        if spec
    ]
    if not kept:
        raise Unconvertible("it has no result")
    body = call.trace.finish(tuple(kept))
    module = Module({"main": Function(call.params, body, type_of(body.result))})
    for run in PASSES:
        module = run(module)
    return _StepPlanner(call, module).program(specs, kind)


def _with_axis_order(call: TracedOverload, found: Any, spec: Spec) -> Any:
    """Return a result with its axes as they are to lie in memory."""
    shape, order = spec.shape, spec.order
    if call.pointwise is not None:
        if order != call.pointwise:
            raise Unconvertible("the axes of its result are in another order than its arguments'")
        shape = tuple(shape[axis] for axis in order)
    if (tuple(found.shape), found.dtype) != (shape, spec.dtype):
        ours, theirs = f"{found.dtype}{list(found.shape)}", f"{spec.dtype}{list(shape)}"
        raise Unconvertible(f"its converter gives {ours} instead of {theirs}")
    return found if call.pointwise is not None else call.trace.run(permuted, found, order)


class _StepPlanner:
    """Decides the calls of a program without branches one after the other."""

    def __init__(self, call: TracedOverload, module: Module) -> None:
        self.call, self.module = call, module
        self.places: dict[Var, int] = {var: i for i, var in enumerate(module.main.params)}
        self.constants: list[Any] = []
        self.steps: list[Step] = []
        self.calls: list[tuple[Op, DecidedCall]] = []
        # Where the memory of an argument is, and where what a view gives is.
        self.given = set(self.places.values())
        self.views: set[int] = set()
        for binding in module.main.body.bindings:
            self.constants += [a for a in _atoms(binding.value) if not isinstance(a, Var)]

    def program(self, specs: Sequence[Spec | None], kind: type | None) -> Program:
        constants = iter(range(len(self.places), len(self.places) + len(self.constants)))
        count = len(self.places) + len(self.constants)
        for binding in self.module.main.body.bindings:
            at = [
                self.places[a] if isinstance(a, Var) else next(constants)
                for a in _atoms(binding.value)
            ]
            self.steps.append(self._step(binding.value, at, count))
            self.places[binding.var] = count
            count += 1
        found = self._results()
        names = {o.name for o, _ in self.calls}
        if "permute_dims" in names:
            raise Unconvertible("a tensor would be copied to have its axes in the usual order")
        if len(self.calls) > MOST_CALLS:
            raise Unconvertible(f"it becomes more than {MOST_CALLS} calls of operators")
        where = iter(found)
        results = tuple(None if spec is None else next(where) for spec in specs)
        return Program(
            tuple(self.calls),
            self.call.reads,
            tuple(c.data if isinstance(c, Constant) else c for c in self.constants),
            tuple(self.steps),
            results,
            tuple(self._lies(at, spec) for at, spec in zip(results, specs, strict=True)),
            kind,
        )

    def _lies(self, at: int | None, spec: Spec | None) -> Any:
        if spec is None or at is None:
            return None
        # Of one without elements, kernels return any strides.
        usual = compact_strides(spec.shape) == spec.strides and 0 not in spec.shape
        return None if usual and at not in self.views else (spec.shape, spec.strides)

    def _step(self, value: Any, at: Sequence[int], place: int) -> Step:
        if isinstance(value, TupleGetItem):
            return Step(itemgetter(value.index), at)
        if not (isinstance(value, Call) and isinstance(value.callee, Op)):
            raise Unconvertible(f"it becomes a program with a {type(value).__name__}")
        decided = _decide(value, self.call.device)
        if decided.view:
            assert decided.key is not None
            shape = decided.key.shape
            self.views.add(place)
            if at[0] in self.given:
                self.given.add(place)
            return Step(lambda tensor: tensor.view(shape), at)
        self.calls.append((value.callee, decided))
        if decided.simple is not None:
            return Step(decided.simple[0], at)
        return Step(partial(_tensors, decided), at)

    def _results(self) -> list[int]:
        result = self.module.main.body.result
        assert isinstance(result, Tuple)
        found = [self.places[f] for f in result.fields if isinstance(f, Var)]
        if len(found) < len(result.fields):
            raise Unconvertible("its result is a constant")
        if self.given.intersection(found):
            raise Unconvertible("its result is its argument, of which PyTorch makes a copy")
        if len(set(found)) < len(found):
            raise Unconvertible("two of its results are one")
        return found


def _tensors(decided: DecidedCall, *values: Any) -> Any:
    """Run a call in the general case; return the tensor, or the tensors, of its result."""
    found = decided.run(values)
    return tuple(f.tensor for f in found) if isinstance(found, tuple) else found.tensor


def _atoms(value: Any) -> list[Any]:
    """Return what a binding reads: variables, constants and numbers."""
    if isinstance(value, TupleGetItem):
        return [value.value]
    if not (isinstance(value, Call) and isinstance(value.callee, Op)):
        return []
    found: list[Any] = []
    for slot, given in zip(value.callee.slots, value.args, strict=True):
        if slot.kind != "attribute" and given is not None:
            found.extend(given.fields if isinstance(given, Tuple) else (given,))
    return found


def _decide(call: Call, device: Device) -> DecidedCall:
    """Dispatch a call, whose operands have types."""

    def type_in(value: Any) -> Any:
        if isinstance(value, Tuple):
            return tuple(map(type_in, value.fields))
        return type_of(value) if isinstance(value, Expr) else value

    assert isinstance(call.callee, Op)
    values = call.callee.call_values(tuple(map(type_in, call.args)), device)
    if values.callee is None or not all(t.is_static for t in values.outputs):
        raise Unconvertible("the extents of its result depend on data")
    return DecidedCall(values, strided=False)
