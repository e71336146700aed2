"""`from_relax`: a Relax module becomes a model, whose functions a `Walker` walks under a trace and
calls the converters.

Extents are those of the actual arguments, so a program with symbolic shapes is converted for each.
What is computed from small known arrays alone is computed at once: shapes, axes and the like are
numbers to the converters. To support a further kind of expression, add a method for it in `_value`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import tvm
from tvm import ir
from tvm import relax as tvm_relax

import meta.frontend.relax.converters  # noqa: F401  (registers them)
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError, MetaError
from meta.base.progress import bar
from meta.base.registry import nearest
from meta.frontend.core import (
    CallSite,
    Failure,
    ImportedModel,
    Unconvertible,
    active_trace,
    constant_value,
    conversion_error,
    fold_constants,
)
from meta.frontend.relax.values import (
    ONLY_LOOPS,
    Frame,
    RelaxError,
    RuntimeShape,
    attributes,
    constant,
    declared_shape,
    dtype_of,
    plain_value,
    relax,
    shape_of_extents,
    tensor_type,
)
from meta.ir import UNKNOWN
from meta.model import cond
from meta.op.core.tracing import Symbol
from meta.runtime.ndarray import array, ndarray

EXTERN_FUNCTIONS = {"vm.builtin.tensor_to_shape": "tensor_to_shape"}
"""Functions outside of programs, and the operators that are meant: TVM lowers some early."""
SMALL = 4096
"""Elements of an array that is still computed while converting."""


@dataclass(frozen=True)
class FunctionValue:
    """A function value and the frame around it."""

    function: Any
    frame: Frame


class Walker:
    """Converts functions of one `tvm.ir.IRModule`, for one trace."""

    def __init__(self, module: Any, training: bool) -> None:
        self.module, self.training = module, training
        self.failures: list[Failure] = []
        self._constants: dict[Any, ndarray] = {}
        self._active: list[Any] = []

    def main(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Convert a function applied to symbols; RelaxError lists every call that cannot be."""
        result = self._function(function, arguments, Frame())
        if self.failures:
            raise conversion_error(self.failures, RelaxError)
        return result

    def _function(self, function: Any, arguments: tuple[Any, ...], frame: Frame) -> Any:
        if function in self._active:
            raise Unconvertible("a function that calls itself is not converted")
        if len(function.params) != len(arguments):
            raise Unconvertible(f"a function of {len(function.params)} arguments has another call")
        inner = frame.block()
        for param, argument in zip(function.params, arguments, strict=True):
            inner.values[param] = argument
            self._match(inner, param.name, param.ty, argument)
        self._active.append(function)
        try:
            return self._value(inner, function.body)
        finally:
            self._active.pop()

    def _match(self, frame: Frame, name: str, type_: Any, value: Any) -> None:
        """Bind the extents that a variable's type names; Unconvertible if the value has others."""
        if isinstance(type_, tvm.ir.TupleType):
            for i, (field, part) in enumerate(zip(type_.fields, value, strict=True)):
                self._match(frame, f"{name}[{i}]", field, part)
            return
        if isinstance(type_, tvm.ir.PrimType) or value is None:
            return
        declared = declared_shape(type_)
        actual = value.extents if isinstance(value, RuntimeShape) else value
        actual = actual if isinstance(actual, tuple) else getattr(value, "shape", None)
        if declared is not None and actual is not None:
            if len(declared) != len(actual):
                raise Unconvertible(f"{name} has {len(declared)} axes, here {len(actual)}")
            wrong = frame.match(declared, tuple(actual))
            if wrong is not None:
                raise Unconvertible(f"{name} has the shape {list(declared)}, here {list(actual)}")
        if isinstance(type_, tvm_relax.TensorType) and isinstance(value, Symbol | ndarray):
            wanted = dtype_of(type_.dtype)
            if wanted != value.dtype:
                raise Unconvertible(f"{name} is of {wanted}, here of {value.dtype}")

    def _value(self, frame: Frame, expr: Any) -> Any:
        """Compute an expression."""
        if isinstance(expr, tvm_relax.SeqExpr):
            bindings = [binding for block in expr.blocks for binding in block.bindings]
            with bar(len(bindings), "converting", delay=1.0) as progress:
                for binding in bindings:
                    self._bind(frame, binding)
                    progress.update()
            return self._value(frame, expr.body)
        if isinstance(expr, ir.Var) and frame.values.get(expr, UNKNOWN) is not UNKNOWN:
            return frame.values[expr]
        if isinstance(expr, ir.Call) and not isinstance(expr.ty, tvm.ir.PrimType):
            return self._call(frame, expr)
        if isinstance(expr, ir.Tuple):
            return tuple(self._value(frame, f) for f in expr.fields)
        if isinstance(expr, ir.TupleGetItem):
            return self._value(frame, expr.tuple_value)[expr.index]
        if isinstance(expr, tvm_relax.ShapeExpr):
            extents = [frame.extent(e) for e in expr.values]
            return shape_of_extents(extents, active_trace().device)
        if isinstance(expr, ir.GenericConst):
            return self._constant(expr)
        if isinstance(expr, tvm_relax.If):
            return self._if(frame, expr)
        if isinstance(expr, tvm_relax.Function):
            return FunctionValue(expr, frame)
        if isinstance(expr, ir.GlobalVar):
            return FunctionValue(self.module[expr], Frame())
        if isinstance(expr, ir.StringImm):
            return str(expr.value)
        return frame.extent(expr)

    def _constant(self, expr: Any) -> Any:
        if not isinstance(expr.value, tvm.runtime.Tensor):
            return plain_value(expr.value)
        if expr not in self._constants:
            self._constants[expr] = constant(expr.value).to(device=active_trace().device)
        return self._constants[expr]

    def _bind(self, frame: Frame, binding: Any) -> None:
        """Add a binding's variable; after a failure, a value of its type, to find the others."""
        name = binding.var.name
        try:
            value = self._value(frame, binding.value)
            if isinstance(binding, tvm_relax.MatchCast):
                self._match(frame, name, binding.ty, value)
        except Unconvertible as error:
            expr = binding.value
            is_call = isinstance(expr, ir.Call) and isinstance(expr.op, tvm.ir.Op)
            what = operator_name(expr) if is_call else type(expr).__name__
            self.failures.append(Failure(what, error.why, error.hint, name))
            value = self._stand_in(frame, binding.var.ty)
        frame.values[binding.var] = value

    def _stand_in(self, frame: Frame, type_: Any) -> Any:
        """Return a value of a type for a program that will not run; RelaxError if there is none."""
        if isinstance(type_, tvm.ir.TupleType):
            return tuple(self._stand_in(frame, f) for f in type_.fields)
        declared = tensor_type(type_, frame.extent)
        if declared is None:
            raise conversion_error(self.failures, RelaxError)
        return active_trace().parameter(declared, "unsupported")[1]

    def _if(self, frame: Frame, expr: Any) -> Any:
        condition = self._value(frame, expr.cond)
        now = constant_value(condition)
        chosen = bool(now.item()) if now is not None else condition
        then, other = (
            partial(self._value, frame.block(), b) for b in (expr.true_branch, expr.false_branch)
        )
        return cond(chosen, then, other)

    def _call(self, frame: Frame, call: Any) -> Any:
        if isinstance(call.op, tvm.ir.Op):
            return self._operator(frame, call)
        if isinstance(call.op, tvm_relax.ExternFunc):
            name = str(call.op.global_symbol)
            if name not in EXTERN_FUNCTIONS:
                raise Unconvertible(f"{name} is a function outside of the program")
            return self._apply(frame, call, EXTERN_FUNCTIONS[name], {}, call.args)
        callee = self._value(frame, call.op)
        arguments = tuple(self._value(frame, a) for a in call.args)
        if not isinstance(callee, FunctionValue) or not isinstance(
            callee.function, tvm_relax.Function
        ):
            raise Unconvertible("what is called is no Relax function")
        return self._function(callee.function, arguments, callee.frame)

    def _operator(self, frame: Frame, call: Any) -> Any:
        return self._apply(frame, call, operator_name(call), attributes(call.attrs), call.args)

    def _apply(self, frame: Frame, call: Any, name: str, attrs: Any, arguments: Any) -> Any:
        """Call the converter of an operator."""
        values = tuple(self._value(frame, a) for a in arguments)
        declared = tensor_type(call.ty, frame.extent)
        site = CallSite(
            name,
            given=frozenset(attrs),
            training=self.training,
            device=active_trace().device,
            result_type=declared,
        )
        try:
            convert = partial(relax.apply, site, values, attrs)
            return fold_constants(convert, values, site.device, SMALL)
        except MetaError as error:
            error.note(f"converting {call}")
            raise


def operator_name(call: Any) -> str:
    """Return the name of the operator that is called, without "relax."."""
    return str(call.op.name).removeprefix("relax.")


def operators(module: Any) -> Counter[str]:
    """Return how often each operator is called in a `tvm.ir.IRModule`; functions outside of Relax
    count as "call_tir" or by their name there.
    """
    found: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, ir.Call) and isinstance(expr.op, tvm.ir.Op):
            found[operator_name(expr)] += 1

    for function in module.functions.values():
        if isinstance(function, tvm_relax.Function):
            tvm_relax.analysis.post_order_visit(function, visit)
    return found


def unsupported(module: Any) -> list[Failure]:
    """Return a failure for each call of an operator that is not converted."""
    failures = []
    for name, count in operators(module).items():
        if name.startswith("tirx.") or name == "call_tir":
            failures += [Failure(name, ONLY_LOOPS)] * (count if name == "call_tir" else 0)
            continue
        converter = relax.get(name)
        if converter is None:
            failures += [Failure(name, "there is no converter", nearest(name, relax))] * count
        elif converter.function is None:
            failures += [Failure(name, converter.reason or "it is not converted")] * count
    return failures


class RelaxModel(ImportedModel):
    """A model whose code is the function "main" of a Relax module."""

    def build(  # type: ignore[override]  # a constructor
        self, module: Any, arrays: Mapping[str, ndarray], input_names: Sequence[str]
    ) -> None:
        """Take a checked module; the arrays are main's parameters after the inputs, in order."""
        super().build(arrays, input_names)
        self._module = module

    def __deepcopy__(self, memo: dict[int, Any]) -> RelaxModel:
        """Return a model with arrays of its own, of the same program, which is never written to."""
        for shared in self._shared():
            memo[id(shared)] = shared
        return cast(RelaxModel, super().__deepcopy__(memo))

    def _shared(self) -> tuple[Any, ...]:
        """Return what copies of the model have in common."""
        return (self._module,)

    def convert(self, *inputs: Any) -> Any:
        """Call the operators of main under the trace in force."""
        state = tuple(map(active_trace().lift, self.arrays.values()))
        walker = Walker(self._module, self.training)
        try:
            return walker.main(self._module["main"], (*inputs, *state))
        except Unconvertible as error:
            if walker.failures:
                raise conversion_error(walker.failures, RelaxError) from None
            raise RelaxError(error.why, hint=error.hint) from None


def from_relax(
    mod: Any, params: Mapping[str, object] | Sequence[object] | None = None
) -> RelaxModel:
    """Convert a Relax module, the current TVM's graph IR, to a model.

    mod: a `tvm.ir.IRModule` with a function "main"; functions it calls come along.
    params: weights by the names of main's parameters, or in their order the last ones; the
    attributes "num_input" and "params" that TVM's importers give main are used if it is None.
    Arrays of anything that `meta.array` takes.

    The model is called with main's other parameters, positionally or by name, of any extents that
    its shapes admit. Weights of floating point are parameters of the model, except the running
    statistics of batch normalisation. The model is in infer mode; in train mode batch normalisation
    takes the statistics of the batch and updates the running ones, and dropout drops.

    Raises RelaxError listing every call that is not supported, or for weights that do not fit, and
    ArgumentError for something else than such a module.

    >>> import tvm
    >>> x = tvm.relax.Var("x", tvm.relax.TensorType((2,), "float32"))
    >>> builder = tvm.relax.BlockBuilder()
    >>> with builder.function("main", [x]):
    ...     main = builder.emit_func_output(builder.emit(tvm.relax.op.exp(x)))
    >>> meta.frontend.from_relax(builder.get())(meta.zeros(2)).tolist()
    [1.0, 1.0]
    """
    if not isinstance(mod, tvm.ir.IRModule) or "main" not in [
        g.name_hint for g in mod.get_global_vars()
    ]:
        raise ArgumentError(
            "from_relax takes a module with a function main",
            expected="tvm.ir.IRModule",
            found=type(mod).__name__,
        )
    main = mod["main"]
    if not isinstance(main, tvm_relax.Function):
        raise ArgumentError("main is no Relax function", found=type(main).__name__)
    names = [str(p.name) for p in main.params]
    given = _weights_by_name(main, names, params)
    failures = unsupported(mod)
    if failures:
        raise conversion_error(failures, RelaxError)
    module = _inputs_first(mod, given)
    statistics = _statistics(module)
    for name, value in given.items():
        value.requires_grad = is_float(value.dtype) and name not in statistics
    arrays = {n: given[n] for n in names if n in given}
    return RelaxModel(module, arrays, [n for n in names if n not in given])


def _weights_by_name(main: Any, names: list[str], params: Any) -> dict[str, ndarray]:
    """Return the weights by the names of main's parameters."""
    attrs = main.attrs or {}
    if params is None and "params" in attrs:
        params = [constant(v) for v in attrs["params"]]
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        if len(params) > len(names):
            raise RelaxError("more weights than main has parameters", expected=len(names))
        params = dict(zip(names[len(names) - len(params) :], params, strict=True))
    unknown = [n for n in params if n not in names]
    if unknown:
        raise RelaxError(f"main has no parameter {unknown[0]!r}", hint=nearest(unknown[0], names))
    is_tvm = tvm.runtime.Tensor
    return {
        n: constant(v) if isinstance(v, is_tvm) else array(v).detach() for n, v in params.items()
    }


def _inputs_first(module: Any, state: Mapping[str, Any]) -> Any:
    """Return the module without weights, main's parameters as inputs, then state."""
    main = module["main"]
    order = sorted(main.params, key=lambda p: str(p.name) in state)
    function = tvm_relax.Function(order, main.body, main.ret_ty, main.is_pure, main.attrs)
    if main.attrs is not None and "params" in main.attrs:
        function = function.without_attr("params")
    copy = tvm.IRModule(dict(module.functions_items()))
    copy["main"] = function
    return copy


def _statistics(module: Any) -> set[str]:
    """Return the names of main's parameters that are running statistics: state that no gradient
    trains.
    """
    found: set[str] = set()

    def visit(expr: Any) -> None:
        is_operator = isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op)
        if is_operator and expr.op.name == "relax.nn.batch_norm":
            statistics = [a for a in expr.args[3:5] if isinstance(a, tvm.ir.Var)]
            found.update(str(s.name) for s in statistics)

    tvm_relax.analysis.post_order_visit(module["main"], visit)
    return found
