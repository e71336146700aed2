"""`from_relax`: a Relax module becomes a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import tvm
from tvm import ir
from tvm import relax as tvm_relax

from meta.base.dtype import is_float
from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.frontend.core import Failure, ImportedModel, Unconvertible, active_trace, conversion_error
from meta.frontend.relax.values import ONLY_LOOPS, RelaxError, constant, relax
from meta.frontend.relax.walker import Walker, operator_name
from meta.runtime.ndarray import array, ndarray


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
