"""Dispatch as a pass: the program then says which backend runs each operator."""

from __future__ import annotations

from meta.base.device import Device
from meta.base.errors import DeviceError, MetaError
from meta.base.progress import bar
from meta.cost.chooser import configurations
from meta.cost.record import Breadth
from meta.dialect.core import FUSED, DialectOp, OpEnv
from meta.dialect.core import dispatch as find
from meta.dialect.core.dialect_op import exact_kernel
from meta.dialect.core.ir_calls import kernel_call
from meta.ir import Binding, Call, Expr, Module, bindings
from meta.op.core import CallValues, Op
from meta.passes.rewrite import map_functions, rewrite_function


def dispatch(module: Module, *, device: Device) -> Module:
    """Replace every base operator by the dialect operator that is to run it on ``device``.

    Views and values known now have no kernel and stay; so do functions that one kernel runs.
    What is to be measured (META_TUNE=on) is measured here: what takes long shows its progress.
    Raises DispatchError, at the user's line, if nobody accepts a call.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> from meta.dialect import only
    >>> with only("torch"):
    ...     print(meta.passes.dispatch(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = relu(%x)
    ...   return %y
    ... }'''), device=CPU))
    func @main(%x: float32[2]) -> float32[2] {
      %y: float32[2] = torch.relu(%x)
      return %y
    }
    """

    def rule(binding: Binding) -> Binding:
        progress.update()
        value = binding.value
        if not isinstance(value, Call) or not isinstance(value.callee, Op):
            return binding
        call = kernel_call(value, device)
        if call is None:
            return binding
        try:
            with configurations(Breadth.UNFUSED):
                env = find(call)
            if call.out_device != call.device:
                raise DeviceError(
                    f"a program compiled for {call.device} holds no array on {call.out_device}",
                    op=call.op.name,
                    hint="run it under the interpreter: call the model; or copy outside of the "
                    "program",
                )
        except MetaError as error:
            error.span = binding.span or error.span
            raise
        assert env.dialect_op is not None
        return Binding(binding.var, Call(env.dialect_op, value.args), binding.span)

    dispatched = (f for f in module.functions.values() if FUSED not in f.attrs)
    total = sum(1 for function in dispatched for _ in bindings(function))
    with bar(total, "choosing kernels", delay=1.0) as progress:
        return map_functions(module, lambda f: f if FUSED in f.attrs else rewrite_function(f, rule))


def kernel_of(callee: Expr, call: CallValues) -> OpEnv:
    """Return the kernel of a prepared call of ``callee``, an operator of a dialect or a base one.

    Raises DispatchError if nobody accepts it.
    """
    if isinstance(callee, DialectOp):
        with exact_kernel(callee):
            return find(call)
    return find(call)
