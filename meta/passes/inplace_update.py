"""Elementwise kernels that write their result over an operand that nobody needs any more."""

from __future__ import annotations

from dataclasses import replace

from meta.dialect.core import FUSED, IN_PLACE, DialectOp
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.openv import config_text
from meta.ir import (
    Binding,
    Call,
    Expr,
    Function,
    GlobalVar,
    Module,
    TensorType,
    TupleType,
    Var,
    bindings,
    with_fresh_vars,
)
from meta.passes.call_graph import callees
from meta.passes.calls import has_effect
from meta.passes.lifetimes import Lifetimes
from meta.passes.outline import Outlined, function_of
from meta.passes.rewrite import rewrite, with_value

_ELEMENTWISE = ("elemwise", "broadcast")


def inplace_update(module: Module) -> Module:
    """Let elementwise kernels write over an operand of theirs that dies.

    A fused function gets the attribute ``in_place=k``: its result (the last one, if there are
    several) may take the memory of parameter ``k``, so its kernel does not assume that the two are
    apart. A call that is not fused becomes a function of one member. An operand is overwritten if
    it is of the result's type, was computed in this function, is used by nothing later, views
    included, and shares no memory with another operand. `plan_memory` then gives both one place.

    A call with a run-time number stays: the number would become part of the kernel.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("tvm"):
    ...     print(inplace_update(dispatch(parse('''
    ... func @main(%x: int8[4]) -> int8[4] {
    ...   %a: int8[4] = cumsum(%x, axis=0)
    ...   %b: int8[4] = add(%a, %x)
    ...   %c: int8[4] = cumsum(%b, axis=0)
    ...   return %c
    ... }'''), device=CPU)))
    func @main(%x: int8[4]) -> int8[4] {
      %a: int8[4] = tvm.cumsum(%x, axis=0)
      %b: int8[4] = @add_in_place(%a, %x)
      %c: int8[4] = tvm.cumsum(%b, axis=0)
      return %c
    }
    <BLANKLINE>
    func @add_in_place(%a: int8[4], %x: int8[4]) -> int8[4] attrs(fused="tvm", in_place=0) {
      %b: int8[4] = tvm.add(%a, %x)
      return %b
    }
    """
    overwriting = _Overwriting(module)
    changed = rewrite(module, overwriting.rule)
    functions = {**changed.functions, **overwriting.made.functions}
    called = {name for function in functions.values() for name in callees(function)}
    return module.with_functions(
        {n: f for n, f in functions.items() if FUSED not in f.attrs or n in called}
    )


class _Overwriting:
    def __init__(self, module: Module) -> None:
        self.functions = module.functions
        self.made = Outlined(module)
        # By the variable of a binding: which argument of its kernel it overwrites.
        self._overwritten: dict[Var, int] = {}
        for function in module.functions.values():
            if FUSED not in function.attrs:
                made = (b.value for b in bindings(function))
                for one in (function, *(f for f in made if isinstance(f, Function))):
                    self._search(Lifetimes(one, module))

    def _search(self, live: Lifetimes) -> None:
        for binding in live.bindings:
            kernel = self._kernel(binding)
            if kernel is None:
                continue
            which = _dying(kernel[2], binding.var, live)
            if which is not None:
                self._overwritten[binding.var] = which

    def _kernel(self, binding: Binding) -> tuple[str, Function, tuple[Expr, ...]] | None:
        """Return an elementwise call as that of a fused function, with a name for it."""
        call = binding.value
        if not isinstance(call, Call):
            return None
        if isinstance(call.callee, GlobalVar):
            function = self.functions[call.callee.name]
            fits = FUSED in function.attrs and all(map(_is_elementwise, function.body.bindings))
            return (call.callee.name, function, call.args) if fits else None
        return _alone(binding, call) if _is_elementwise(binding) else None

    def rule(self, binding: Binding) -> Binding:
        """Replace a call by one that overwrites what dies."""
        kernel = self._kernel(binding) if binding.var in self._overwritten else None
        if kernel is None:
            return binding
        name, function, args = kernel
        attrs = {**function.attrs, IN_PLACE: self._overwritten[binding.var]}
        function = replace(with_fresh_vars(function), attrs=attrs)
        callee = GlobalVar(self.made.name(function, f"{name}_in_place"), function.type)
        return with_value(binding, Call(callee, args))


def _is_elementwise(binding: Binding) -> bool:
    """Whether a binding is computed element by element, by a dialect that makes functions of it."""
    call, type_ = binding.value, binding.var.type
    if not isinstance(call, Call) or not isinstance(call.callee, DialectOp) or has_effect(binding):
        return False
    fits = isinstance(type_, TensorType) and type_.is_static and type_.size > 0
    return fits and call.callee.fusion in _ELEMENTWISE and call.callee.dialect.fuse is not None


def _alone(binding: Binding, call: Call) -> tuple[str, Function, tuple[Expr, ...]] | None:
    """Return one call as that of a function with it as the only member."""
    assert isinstance(call.callee, DialectOp)
    for slot, arg in zip(call.callee.schema.slots, call.args, strict=True):
        if slot.kind != "attribute" and not isinstance(arg, Expr | None):
            return None
    attrs = {FUSED: call.callee.dialect.name}
    if call.callee.config:
        attrs[CONFIG] = config_text(call.callee.config)
        binding = with_value(binding, Call(call.callee.plain, call.args))
    return call.callee.base.name, *function_of([binding], attrs, {}, [binding])


def _dying(args: tuple[Expr, ...], result: Var, live: Lifetimes) -> int | None:
    """Return which argument dies where ``result`` is computed, so that it may be overwritten."""
    type_ = result.type.fields[-1] if isinstance(result.type, TupleType) else result.type
    number = max(live.of(result))
    for which, arg in enumerate(args):
        fits = isinstance(arg, Var) and arg.type == type_
        if fits and live.overwritable(number, args, which) is not None:
            return which
    return None
