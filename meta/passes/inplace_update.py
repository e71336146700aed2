"""Kernels that write their result over an operand that nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meta.base.device import Device
from meta.base.dtype import bits, is_float
from meta.dialect.core import DIALECTS, FUSED, IN_PLACE, DialectOp
from meta.dialect.core.fused import CONFIG, KERNEL
from meta.dialect.core.ir_calls import has_effect, tensor_of
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
    type_bytes,
    with_fresh_vars,
)
from meta.passes.call_graph import callees
from meta.passes.liveness import Liveness
from meta.passes.outline import OutlinedFunctions, outlined_function
from meta.passes.rewrite import rewrite, with_value

MIB = 1 << 20
_ELEMENTWISE, _REDUCTION = ("elemwise", "broadcast"), ("comm_reduce",)


def inplace_update(
    module: Module,
    *,
    device: Device,
    least_mib: float = 16.0,
    resident: Sequence[tuple[int, int]] = (),
) -> Module:
    """Let kernels write over an operand of theirs that dies: elementwise ones, and those of large
    rows.

    A fused function gets the attribute ``in_place=k``: its result (the last one, if there are
    several) may take the memory of parameter ``k``, so its kernel does not assume that the two are
    apart. A call that is not fused becomes a function of one member. An operand is overwritten if
    it is of the result's type, was computed in this function, is used by nothing later, views
    included, and shares no memory with another operand. `plan_memory` then gives both one place.

    A call with a run-time number stays: the number would become part of the kernel.

    So does a fused function with reductions, such as a softmax or the gradient of a cross entropy,
    from ``least_mib`` MiB of result on, if its dialect says that its kernel has read what it
    overwrites (`Dialect.overwrites`): on CUDA each row belongs to one thread block. Scores and
    their gradient, often the largest of a training step, are then in memory once. And so does a
    convolution of a library's, or a product, over the tensor that it adds.

    ``resident``: pairs ``(k, at)`` for parameters of main whose memory it may use: see
    `plan_memory`.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("tvm"):
    ...     print(meta.passes.inplace_update(dispatch(parse('''
    ... func @main(%x: int8[4]) -> int8[4] {
    ...   %a: int8[4] = cumsum(%x, axis=0)
    ...   %b: int8[4] = add(%a, %x)
    ...   %c: int8[4] = cumsum(%b, axis=0)
    ...   return %c
    ... }'''), device=CPU), device=CPU))
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
    overwriting = _InplaceRewriter(module, device, least_mib * MIB, dict(resident))
    changed = rewrite(module, overwriting.rule)
    functions = {**changed.functions, **overwriting.made.functions}
    called = {name for function in functions.values() for name in callees(function)}
    return module.with_functions(
        {n: f for n, f in functions.items() if FUSED not in f.attrs or n in called}
    )


class _InplaceRewriter:
    def __init__(self, module: Module, device: Device, least: float, owned: dict[int, int]) -> None:
        self.functions, self.device, self.least = module.functions, device, least
        self.made = OutlinedFunctions(module)
        # By function and parameter, whether its kernel may write over that.
        self._known: dict[tuple[Function, int], bool] = {}
        # By the variable of a binding: which argument of its kernel it overwrites.
        self._overwritten: dict[Var, int] = {}
        for function in module.functions.values():
            if FUSED not in function.attrs:
                of_main = owned if function is module.functions.get("main") else {}
                self._search(Liveness(function, module, owned=of_main))
                for binding in bindings(function):
                    if isinstance(binding.value, Function):
                        self._search(Liveness(binding.value, module))

    def _search(self, live: Liveness) -> None:
        for binding in live.bindings:
            kernel = self._kernel(binding)
            if kernel is not None:
                _, function, args = kernel
                for which in _dying_arguments(args, binding.var, live):
                    if self._may(function, which):
                        self._overwritten[binding.var] = which
                        break

    def _kernel(self, binding: Binding) -> tuple[str, Function, tuple[Expr, ...]] | None:
        """Return a call that may overwrite as that of a fused function, with a name for it."""
        call = binding.value
        if not isinstance(call, Call):
            return None
        if isinstance(call.callee, GlobalVar):
            function = self.functions[call.callee.name]
            fits = FUSED in function.attrs and (
                _is_elementwise(function) or self._is_large(function)
            )
            return (call.callee.name, function, call.args) if fits else None
        if _is_kind(binding, _ELEMENTWISE):
            return _alone(binding, call)
        made = _alone(binding, call) if _is_kind(binding, _REDUCTION) else None
        return made if made is not None and self._is_large(made[1]) else None

    def _is_large(self, function: Function) -> bool:
        """Whether a function makes one large result by a kernel that its backend compiles, or by a
        named one.
        """
        result = function.result_type
        fits = KERNEL in function.attrs or CONFIG not in function.attrs
        return fits and isinstance(result, TensorType) and type_bytes(result) >= self.least

    def _may(self, function: Function, which: int) -> bool:
        """Whether the kernel of a function may write over one of its parameters."""
        if _is_elementwise(function):
            return self.device.kind != "cpu" or not _widens(function)
        if (function, which) not in self._known:
            changed = replace(function, attrs={**function.attrs, IN_PLACE: which})
            dialect = DIALECTS[function.attrs[FUSED]]
            self._known[function, which] = dialect.overwrites(changed, self.device)
        return self._known[function, which]

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


def _is_elementwise(function: Function) -> bool:
    """Whether a fused function is computed element by element."""
    return all(_is_kind(binding, _ELEMENTWISE) for binding in function.body.bindings)


def _is_kind(binding: Binding, kinds: tuple[str, ...]) -> bool:
    """Whether a binding is of these kinds of operators, by a dialect that makes functions of it."""
    call, type_ = binding.value, binding.var.type
    if not isinstance(call, Call) or not isinstance(call.callee, DialectOp) or has_effect(binding):
        return False
    fits = isinstance(type_, TensorType) and type_.is_static and type_.size > 0
    return fits and call.callee.fusion in kinds and call.callee.dialect.fuse is not None


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
    return call.callee.base.name, *outlined_function([binding], attrs, {}, [binding])


def _dying_arguments(args: tuple[Expr, ...], result: Var, live: Liveness) -> Iterator[int]:
    """Yield which arguments die where ``result`` is computed, so that it may overwrite them."""
    type_ = result.type.fields[-1] if isinstance(result.type, TupleType) else result.type
    number = max(live.of(result))
    for which, arg in enumerate(args):
        fits = isinstance(arg, Var) and arg.type == type_
        if fits and live.overwritable(number, args, which) is not None:
            yield which


def _widens(function: Function) -> bool:
    """Whether a function of bytes computes wider numbers: of buffers that overlap, LLVM leaves such
    loops scalar.
    """
    made = [tensor_of(b.var) for b in function.body.bindings if isinstance(b.var.type, TensorType)]
    narrow = isinstance(function.result_type, TensorType) and bits(function.result_type.dtype) == 8
    return narrow and any(is_float(type_.dtype) for type_ in made)
