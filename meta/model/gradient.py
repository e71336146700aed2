"""`value_and_grad`: a model that returns its result and the gradients of its parameters, as one
traced function; and what `meta.grad.value_and_grad` means in code that is traced.

ZeRO stage 3, a model of whose parameters a rank has parts, takes whole parameters in their place,
for a block. An array of which the elements are split (`Split` without an axis) has another shape
than the code of the model expects. So such a model is not called, but in `gather_parameters`, and
it is traced in `full_shapes`, on types alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from meta import op
from meta.base.call_context import context, current
from meta.base.errors import GradientError
from meta.dialect.core.ir_calls import has_effect
from meta.grad.core import functional, transforms
from meta.grad.core.arguments import Arrays
from meta.grad.core.functional import Linear
from meta.ir import (
    Call,
    Expr,
    Function,
    FuncType,
    Module,
    TensorType,
    TupleType,
    Type,
    Var,
    free_vars,
    with_fresh_vars,
)
from meta.ir.visit import substitute
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import tree
from meta.op.core.tracing import FunctionTrace, Symbol, Trace, Value
from meta.passes import autodiff, dead_code, infer_type, inline, jvp, simplify
from meta.passes.autodiff import depends, require_forward_mode
from meta.passes.autodiff.activity import carries_gradient, known_type
from meta.passes.call_graph import remove_unreachable
from meta.passes.distributed import gather_parameters as gather_pass
from meta.runtime.array_key import array_key, key_of
from meta.runtime.buffer_replacement import replace_shard
from meta.runtime.ndarray import array, ndarray
from meta.runtime.placement import Placement, Split, gather_shards, shard_of
from meta.vm.compiler.pipeline import before_autodiff

REFUSED = (
    "this rank has parts of the model's parameters (zero=3), and cannot compute with them",
    "with step.gathered(): model(x), on all ranks",
)
WITHIN = "the model's parameters are whole (step.gathered())", "make steps outside of the block"


def shard_parameters(model: Model, split: Split) -> None:
    """Leave this rank its part of each parameter of a model; it is not called any more."""
    for _, parameter in model.named_parameters():
        placement = parameter.placement.then(split)
        tensor = shard_of(parameter.tensor.detach(), parameter.placement, placement)
        parameter.grad = None
        replace_shard(parameter, tensor, key_of(tensor), placement)
    for one in model.models():
        one._refused = REFUSED


def flat_split(array: ndarray) -> Split | None:
    """Return how the elements of an array are split, if they are."""
    splits = array.placement.splits
    return splits[-1] if splits and splits[-1].axis is None else None


def _without_last_split(placement: Placement) -> Placement:
    """Return the placement without its last split."""
    return Placement(placement.shape, placement.splits[:-1])


@contextmanager
def _allow_calls(model: Model) -> Iterator[list[ndarray]]:
    """Let a model be called in a block; give the arrays that are to be whole in it."""
    models = [m for m in model.models() if m._refused == REFUSED]
    arrays = [a for a in model.state().values() if flat_split(a) is not None]
    held = [(a, a.tensor, a.key, a.placement) for a in arrays]
    for one in models:
        one._refused = None
    try:
        yield arrays
    finally:
        for one in models:
            one._refused = REFUSED
        for array, tensor, key, placement in held:
            replace_shard(array, tensor, key, placement)


@contextmanager
def full_shapes(model: Model) -> Iterator[None]:
    """Let the parameters of a model have their whole shapes, and no values, for a block."""
    with _allow_calls(model) as arrays:
        for array in arrays:
            before = _without_last_split(array.placement)
            nothing = torch.empty((), dtype=array.tensor.dtype, device=array.tensor.device)
            key = array_key(before.local, array.dtype, array.device)
            replace_shard(array, nothing.expand(before.local), key, before)
        yield


@contextmanager
def gather_parameters(model: Model) -> Iterator[None]:
    """Let the parameters of a model be whole for a block, which all ranks enter; what is written to
    them stays.
    """
    with _allow_calls(model) as arrays:
        parts = [(a, a.tensor, a.placement) for a in arrays]
        for array, part, placement in parts:
            before = _without_last_split(placement)
            tensor = gather_shards(part.detach(), placement, before)
            replace_shard(array, tensor, key_of(tensor), before)
        yield
        with torch.no_grad():
            for array, part, placement in parts:
                part.copy_(shard_of(array.tensor, array.placement, placement))


class ValueAndGrad(Model):
    """A model called as ``(dy, *inputs)``; see `value_and_grad`."""

    records = False

    def build(self, model: Model) -> None:
        """Wrap a model whose forward is traced."""
        self.model = model
        self.gather_limit: int | None = None

    def call_signature(self) -> inspect.Signature:
        """Return what a call of the model takes, behind ``dy``."""
        given = self.model.traced_entry().given.parameters
        name = "dy" if "dy" not in given else "dy_of_result"
        dy = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
        return inspect.Signature([dy, *given.values()])

    @trace
    def forward(self, dy: Any, *inputs: Any, **named: Any) -> Any:
        """Return (result of the model, gradients by parameter name)."""
        y, found = self.of_used(dy, *inputs, **named)
        with full_shapes(self.model):
            return y, {
                name: found[name]
                if name in found
                else op.zeros(parameter.shape, parameter.dtype, str(parameter.device))
                for name, parameter in self.model.named_parameters()
                if parameter.requires_grad
            }

    def of_used(self, dy: Any, *inputs: Any, **named: Any) -> tuple[Any, dict[str, Any]]:
        """Return what `forward` does, in code that is traced, with gradients of the parameters that
        the result is computed from only.

        Parameters of which this rank has flat parts (`meta.model.gradient`) are gathered before
        they are used (`gather_parameters`), within ``self.gather_limit`` bytes. Their gradients are
        of the whole parameters, by this rank's result.
        """
        outer = current()
        assert isinstance(outer, Trace)
        entry = self.model.traced_entry()
        with full_shapes(self.model):
            program = entry.program_on_types(outer.device, *inputs, **named)
        names = {id(a): n for n, a in self.model.named_parameters() if a.requires_grad}
        first = len(program.module.main.params) - len(program.arrays)
        wanted = [i for i, a in enumerate(program.arrays) if id(a) in names]
        module = _with_gradients(program.module, [first + i for i in wanted], outer)
        dys = [outer.lift(d) for d in tree.flatten(dy)[0]]
        added = len(module.main.params) - len(program.module.main.params)
        expected = [p.type for p in module.main.params[:added]]
        if [d.type for d in dys] != expected:
            raise GradientError(
                "dy does not fit the model's result",
                expected=", ".join(map(str, expected)),
                found=", ".join(str(d.type) for d in dys) or "no array",
                hint="it comes before the inputs; for a loss it is meta.array(1.0)",
            )
        splits = {i: flat_split(a) for i, a in enumerate(program.arrays, first + added)}
        parts = {i: split for i, split in splits.items() if split is not None}
        module = gather_pass.gather_parameters(module, parts=parts, limit=self.gather_limit)
        leaves = [*dys, *entry.leaves(*inputs, **named), *program.arrays]
        y, gradients = outer.inline(module, [outer.lift(v).atom for v in leaves])
        by_name = {names[id(program.arrays[i])]: g for i, g in zip(wanted, gradients, strict=True)}
        return program.convention.unflatten(y), by_name


def _with_gradients(module: Module, wrt: Sequence[int], trace: Trace) -> Module:
    """Return a program with its gradients by parameters of main, to be a part of a trace."""
    module = simplify(module)  # views and copies, through which the passes do not look
    for step in before_autodiff(trace.device, wrt):
        module = step(module)
    return infer_type(simplify(dead_code(autodiff(module, wrt=list(wrt)))))


class _Scope(FunctionTrace):
    """A function that becomes a part of the code around again: it draws what that would draw."""

    def draw_key(self) -> Symbol | None:
        """Return a key of the code around."""
        key = self.outer.draw_key()
        return None if key is None else cast(Symbol, self.lift(key))


def subprogram(
    trace: Trace, run: Callable[[Arrays], Arrays], types: Sequence[Type]
) -> tuple[Module, list[Expr]]:
    """Return what ``run`` computes of values of these types as a program: a function of them and of
    what it uses of the code around, and the atoms of that.
    """
    scope = _Scope(trace)
    params: list[Value] = [scope.parameter(t, f"x{i}")[1] for i, t in enumerate(types)]
    values = [scope.lift(v) for v in scope.run(run, list(params))]
    inside = tuple(cast(Var, v.atom) for v in (*params, *scope.captured.values()))
    result = TupleType(tuple(v.type for v in values))
    main = Function(inside, scope.finish(tuple(values)), result)
    # Other functions may be half done, as the rule of one that is being traced. A call of one that
    # is no loop would be differentiated by a closure, which has no batches.
    module = remove_unreachable(Module({"main": main, **trace.functions}, trace.types))
    module = inline(module, max_bindings=1 << 20, to_differentiate=True)
    return module, list(scope.captured)


def _vjp_in_trace(
    trace: Trace, run: Callable[[Arrays], Arrays], given: list[Value]
) -> tuple[Arrays, Linear]:
    """Return what ``run(given)`` computes and its pullback, as code of a trace.

    The code that goes backwards is written where the pullback is called, of what the code that went
    forwards left in the trace.
    """
    module, captured = subprogram(trace, run, [v.type for v in given])
    atoms = [*(v.atom for v in given), *captured]
    wrt = [i for i, v in enumerate(given) if carries_gradient(v.type)]
    module = simplify(module)  # views and copies, through which the passes do not look
    for step in before_autodiff(trace.device, wrt):
        module = step(module)
    if not depends(module, wrt):
        ys = list(trace.inline(module, atoms))
        return ys, lambda dys: [None for _ in given]
    ys, closure = trace.inline(autodiff(module, wrt=wrt, result="closure"), atoms)
    function = next(b.value for b in reversed(trace.builder.bindings) if b.var is closure.atom)
    after = len(trace.builder.bindings)

    def pull(dys: Arrays) -> Arrays:
        here = current()
        assert isinstance(here, Trace)
        if context.get().transposes:
            require_forward_mode(module, wrt)
        written = next((b for b in trace.builder.bindings[after:] if has_effect(b)), None)
        if written is not None:
            raise GradientError(
                "something is written between a function and its pullback, which may need what was "
                "there before",
                hint="call the pullback first",
                span=written.span,
            )
        pairs = zip(ys, dys, strict=True)
        filled = [
            _direction(here, op.zeros_like(y) if dy is None else dy, y.type)
            for y, dy in pairs
            if carries_gradient(y.type)
        ]
        if isinstance(function, Function):
            found = iter(_applied(here, trace, function, filled))
        else:
            call = Call(here.lift(closure).atom, tuple(filled))
            found = iter(here.emit(call, closure.type.result))
        return [next(found) if i in wrt else None for i in range(len(given))]

    used = free_vars(function) if isinstance(function, Function) else [closure.atom]
    closures = any(isinstance(known_type(v), FuncType) for v in used)
    pull.of_closures = closures  # type: ignore[attr-defined]
    return list(ys), pull


def _gradient_in_trace(
    trace: Trace, run: Callable[[Arrays], Arrays], given: list[Value], name: str
) -> tuple[Arrays, Arrays]:
    """Return what ``run(given)`` computes and the gradient of the first result, as code of a trace.

    The forward computation is followed by the backward one, so that this, too, has a gradient where
    there are loops, in which a pullback is a closure.
    """
    module, captured = subprogram(trace, run, [v.type for v in given])
    result = module.main.result_type
    assert isinstance(result, TupleType)
    first, *others = result.fields
    assert isinstance(first, TensorType)
    functional.require_number(first.shape, first.dtype, name)
    seeds = [op.reshape(array(1.0, first.dtype, device=trace.device), first.shape)]
    place = str(trace.device)
    floats = [t for t in others if isinstance(t, TensorType) and carries_gradient(t)]
    seeds += [op.zeros(t.shape, t.dtype, place) for t in floats]
    module = _with_gradients(module, range(len(given)), trace)
    atoms = [*(trace.lift(d).atom for d in seeds), *(v.atom for v in given), *captured]
    ys, gradients = trace.inline(module, atoms)
    return list(ys), list(gradients)


def _direction(here: Trace, value: Any, type_: Any) -> Expr:
    """Return the atom of a gradient or a tangent, in the dtype of what it is of."""
    symbol = here.lift_tensor(value)
    if symbol.shape != type_.shape:
        raise GradientError(
            "the gradient has another shape", expected=type_.shape, found=symbol.shape
        )
    cast: Symbol = symbol if symbol.dtype == type_.dtype else op.astype(symbol, type_.dtype)
    return cast.atom


def _applied(here: Trace, trace: Trace, function: Function, args: list[Expr]) -> Any:
    """Append the body of a closure of a trace, applied to atoms, here: in it or in code within."""
    copy = with_fresh_vars(function)
    mapping: dict[Var, Expr] = dict(zip(copy.params, args, strict=True))
    for var in free_vars(copy):
        parts = trace.unpack(var, known_type(var))
        mapping[var] = here.atom(parts) if isinstance(parts, tuple) else here.lift(parts).atom
    body = substitute(copy.body, mapping)
    for binding in body.bindings:
        here.builder.append(binding)
    return here.symbols(body.result)


def _jvp_in_trace(
    trace: Trace,
    run: Callable[[Arrays], Arrays],
    given: list[Value],
    tangents: Arrays,
) -> tuple[Arrays, Arrays]:
    """Return what ``run(given)`` computes and its tangents, None for integers, as code."""
    module, captured = subprogram(trace, run, [v.type for v in given])
    atoms = [*(v.atom for v in given), *captured]
    wrt = [i for i, t in enumerate(tangents) if t is not None]
    module = simplify(module)
    for step in before_autodiff(trace.device, wrt):
        module = step(module)
    pairs = zip(given, tangents, strict=True)
    atoms += [_direction(trace, t, v.type) for v, t in pairs if t is not None]
    ys, found = trace.inline(infer_type(simplify(dead_code(jvp(module, wrt=wrt)))), atoms)
    rest = iter(found)
    return list(ys), [next(rest) if carries_gradient(y.type) else None for y in ys]


functional.in_trace.append(_vjp_in_trace)
functional.gradient_in_trace.append(_gradient_in_trace)
transforms.in_trace.append(_jvp_in_trace)


def value_and_grad(model: Model) -> ValueAndGrad:
    """Return a model called as ``(dy, *inputs)`` that returns ``(y, gradients)``.

    ``dy`` is the gradient of the model's result ``y`` (one array per floating point array in it, in
    the same structure); inputs may be given by name. ``gradients`` maps the name of every parameter
    that requires a gradient to an array of its shape and dtype, zeros if the result does not depend
    on it. Forward and backward are one traced function. Gradients by arguments, not parameters, are
    `meta.grad.value_and_grad`'s.

    >>> net = meta.model.value_and_grad(meta.model.Linear(3, 1))
    >>> y, gradients = net(meta.ones((4, 1)), meta.ones((4, 3)))
    >>> y.shape, gradients["weight"].tolist()
    ((4, 1), [[4.0, 4.0, 4.0]])
    """
    return ValueAndGrad(model)
