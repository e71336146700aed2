"""Mixed precision of a program: casts by the cast rules of `meta.amp`, as few as will do.

A function is instantiated once per choice of dtypes that it is called with. Functions that call
themselves or are handed on as values, closures, data values and references keep their types. What
is written in place keeps its dtype, and its cast is made again after a write.

``body`` rewrites one function, with the ``casts`` that are known in it; ``hoist`` moves casts of a
function's parameters to its callers, so that a loop casts its weights once; ``narrow`` lets sums
read what is rounded for others; ``report`` (`explain_autocast`) says what was done and why;
``dtypes`` has the vocabulary for types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from meta.amp.core import require_half, require_rules
from meta.base.dtype import canonical
from meta.ir import (
    Block,
    Call,
    Function,
    FuncType,
    Module,
    Type,
    Var,
    bindings,
    type_of,
)
from meta.ir.names import Names
from meta.op.core import Op
from meta.passes.autocast.body import Body, float_dtypes_of
from meta.passes.autocast.casts import Casts, Dtypes, dtypes_of, with_dtypes, with_floats
from meta.passes.autocast.hoist import hoist
from meta.passes.autocast.narrow import narrow
from meta.passes.autocast.report import Cast, CastReport, Why
from meta.passes.buffers import Summaries
from meta.passes.call_graph import recursive, used_as_values, uses
from meta.passes.calls import base_op
from meta.passes.dead_code import dead_code
from meta.passes.infer_type import infer_type
from meta.passes.lambda_lift import lambda_lift
from meta.passes.promote_refs import promote_refs

__all__ = ["Cast", "CastReport", "Why", "autocast", "explain_autocast"]


def autocast(
    module: Module,
    *,
    dtype: str = "float16",
    out_dtype: str | None = None,
    trained: Collection[int] = (),
) -> Module:
    """Compute in half precision what may be, by the cast rules of the operators.

    dtype: "float16" or "bfloat16". out_dtype: of main's floating point results; None keeps theirs.
    trained: the numbers of main's parameters that are trained. Others, and what is computed, may be
    masks, whose finite numbers stay finite where they are added (`meta.amp.core.Finite`).

    What main takes keeps its type, and so does what is written in place. A function is made once
    for each choice of dtypes that it is called with; one that calls itself, or is handed on as a
    value, keeps its signature, as do closures, fields of data values and references. A value is
    cast once, where it is first needed, for all who need it from there on, and a cast back is left
    out where the first one was exact (from half to float32, not the other way). What a function,
    a loop for one, needs in half precision only is cast by its caller. A float32 result that is
    read in half precision and by sums (the gradient of a layer with a bias) is rounded for both.

    Raises AutocastError if operators of the program have no cast rule: all of them are listed.

    >>> from meta.ir import parse
    >>> print(autocast(parse('''
    ... func @main(%x: float32[2, 3], %w: float32[4, 3]) -> float32[2, 4] {
    ...   %h: float32[2, 4] = dense(%x, %w)
    ...   %r: float32[2, 4] = relu(%h)
    ...   %y: float32[2, 4] = softmax(%r, axis=-1)
    ...   return %y
    ... }''')))
    func @main(%x: float32[2, 3], %w: float32[4, 3]) -> float32[2, 4] {
      %0: float16[2, 3] = cast(%x, dtype="float16")
      %1: float16[4, 3] = cast(%w, dtype="float16")
      %h: float16[2, 4] = dense(%0, %1)
      %r: float16[2, 4] = relu(%h)
      %2: float32[2, 4] = cast(%r, dtype="float32")
      %y: float32[2, 4] = softmax(%2)
      return %y
    }
    """
    return _Autocast(module, dtype, out_dtype, trained).module()


def explain_autocast(
    module: Module,
    *,
    dtype: str = "float16",
    out_dtype: str | None = None,
    trained: Collection[int] = (),
) -> CastReport:
    """Return which casts `autocast` puts into a module, where, for whom, and by which rule."""
    made = _Autocast(module, dtype, out_dtype, trained)
    return made.report(made.module())


class _Autocast:
    def __init__(
        self, module: Module, dtype: str, out_dtype: str | None, trained: Collection[int]
    ) -> None:
        self.half, self.trained = require_half(dtype), trained
        self.out_dtype = None if out_dtype is None else canonical(out_dtype)
        module = infer_type(lambda_lift(promote_refs(module)))
        require_rules(_operators(module))
        self.source = module
        self.summaries = Summaries(module)
        self.fixed = _fixed(module)
        self.names = Names()
        for name in module.functions:
            self.names.unique(name)
        self.functions: dict[str, Function] = {}
        self.instances: dict[tuple[str, tuple[Dtypes, ...]], tuple[str, FuncType]] = {}
        self.made: dict[Var, Cast] = {}

    def module(self) -> Module:
        """Return the program in mixed precision."""
        for name in self.source.functions if "main" not in self.source.functions else ["main"]:
            function = self.source.functions[name]
            self.instance(name, tuple(p.type for p in function.params))
        order = {n: self.functions[n] for n in self.source.functions if n in self.functions}
        module = self.source.with_functions({**order, **self.functions})
        module = narrow(hoist(module, self.made), self.made)
        return dead_code(module)

    def instance(self, name: str, given: tuple[Type | None, ...]) -> tuple[str, FuncType]:
        """Return the function to call for arguments of these types; it is made if it is new."""
        function = self.source.functions[name]
        types = []
        for param, found in zip(function.params, given, strict=True):
            assert param.type is not None
            keeps = name in self.fixed or found is None
            types.append(param.type if keeps else with_dtypes(param.type, dtypes_of(found)))
        key = name, tuple(map(dtypes_of, types))
        if key in self.instances:
            return self.instances[key]
        new = self.names.unique(name) if name in self.functions else name
        assert function.result_type is not None
        if name in self.fixed:  # known before its body, in which it may be called
            result = function.result_type
            if name == "main" and self.out_dtype is not None:
                result = with_floats(result, self.out_dtype)
            self.instances[key] = new, FuncType(tuple(types), result)
        self.functions[new] = function
        made = function if function.attrs else self._rewritten(name, new, types)
        assert made.result_type is not None
        self.functions[new] = made
        self.instances[key] = new, FuncType(tuple(types), made.result_type)
        return self.instances[key]

    def _rewritten(self, name: str, new: str, types: list[Type]) -> Function:
        function = self.source.functions[name]
        casts = Casts(new, function, self.summaries)
        body = Body(self.source, self.half, casts, self.instance)
        params = tuple(Var(p.name, t) for p, t in zip(function.params, types, strict=True))
        for i, (old, param) in enumerate(zip(function.params, params, strict=True)):
            body.bind(old, param)
            if name != "main" or i in self.trained:  # what functions are given is not followed
                casts.trained.add(param)
        body.bindings(function.body)
        result = body.atom(function.body.result)
        result_type = type_of(result)
        if name in self.fixed:
            result_type = self.instances[name, tuple(map(dtypes_of, types))][1].result
            why = Why(f"the result of @{name}", _kept(name, self.out_dtype))
            result = casts.coerce(result, result_type, why, None)
        self.made.update(casts.made)
        block = Block(tuple(casts.out), result)
        return replace(function, params=params, body=block, result_type=result_type)

    def report(self, module: Module) -> CastReport:
        """Return what there is to tell about the program that was made."""
        found, calls = [], Counter[str]()
        for function in module.functions.values():
            for binding in bindings(function):
                if binding.var in self.made:
                    found.append(self.made[binding.var])
                elif isinstance(binding.value, Call) and base_op(binding.value.callee) is not None:
                    calls.update(set(float_dtypes_of(binding.var.type)))
        return CastReport(self.half, tuple(found), dict(calls))


def _kept(name: str, out_dtype: str | None) -> str:
    if name != "main":
        return "a function that calls itself, or is handed on as a value, keeps its signature"
    return "results keep their dtypes" if out_dtype is None else f"out_dtype is {out_dtype}"


def _operators(module: Module) -> list[Op]:
    """Return the base operators that a module calls or hands on."""
    used = (base_op(a) for f in module.functions.values() if not f.attrs for a in uses(f))
    return [op for op in used if op is not None]


def _fixed(module: Module) -> set[str]:
    """Return the names of the functions that keep their signatures."""
    fixed = {"main"} | recursive(module) | used_as_values(module)
    return fixed | {name for name, function in module.functions.items() if function.attrs}
