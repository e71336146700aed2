"""One kernel for a function of TVM operators: their computes, one after the other, in one PrimFunc.

Which calls make such a function is decided by ``passes/fuse_operators.py``; which of its stages are
inlined, and which kept in memory for a row at a time, by the schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import te, tirx

from meta.base.device import Device
from meta.dialect.core import IN_PLACE, DialectOp, OpEnv
from meta.dialect.tvm import schedule_cuda
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.broadcast import unfolded
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.compute import (
    BROADCAST,
    COMM_REDUCE,
    COMPUTES,
    ELEMWISE,
    Extents,
    number_dtype,
)
from meta.dialect.tvm.lower import copied, prim_func
from meta.dialect.tvm.target import for_device
from meta.ir import Call, Expr, Function, TensorType, Tuple, TupleType

_ARITHMETIC = (ELEMWISE, BROADCAST, COMM_REDUCE)


def fuse(function: Function, device: Device) -> OpEnv:
    """Return the kernel of a function whose bindings are calls of this dialect's operators.

    Its parameters are tensors, its result is one tensor or a tuple of them; symbolic dimensions of
    results are those of parameters. A
    Python number in it is a constant of the kernel, which an operator called alone takes as an
    argument. With the attribute ``in_place`` the (last) result may take that parameter's
    memory.
    """
    return deferred(_lowered(function), device)


def overwrites(function: Function, device: Device) -> bool:
    """Whether the kernel of a function with the attribute ``in_place`` that is not elementwise is
    as fast as without it: on CUDA, where a row is read before the result is written over it.
    """
    if device.kind != "cuda" or isinstance(function.body.result, Tuple):
        return False
    return schedule_cuda.runs_in_place(_lowered(function), for_device(device))


def _lowered(function: Function) -> tirx.PrimFunc:
    """Return the function as a PrimFunc, not scheduled yet."""
    tensors: dict[Expr, te.Tensor] = {}
    results: dict[Expr, list[te.Tensor]] = {}
    # Names of variables may be anything ("0.weight"), and those of placeholders become source code.
    extents = Extents()
    for i, param in enumerate(function.params):
        assert isinstance(param.type, TensorType)
        tensors[param] = extents.placeholder(param.type, f"x{i}")
    inputs = list(tensors.values())

    for binding in function.body.bindings:
        call = binding.value
        assert isinstance(call, Call)
        assert isinstance(call.callee, DialectOp)
        args = tuple(a.fields if isinstance(a, Tuple) else a for a in call.args)
        aspect = COMPUTES[call.callee.plain]
        leaf = _leaves(tensors, aspect.kind in _ARITHMETIC)
        type_ = binding.var.type
        if isinstance(type_, TupleType):
            results[binding.var] = aspect.apply(args, type_.fields, leaf, extents)
        else:
            results[binding.var] = aspect.apply(args, type_, leaf, extents)
            (tensors[binding.var],) = results[binding.var]
    place = function.attrs.get(IN_PLACE)
    in_place = () if place is None else (place,)
    result = function.body.result
    returned = result.fields if isinstance(result, Tuple) else (result,)
    outputs = [tensor for atom in returned for tensor in results[atom]]
    return prim_func(inputs, outputs, in_place=in_place)


def _leaves(tensors: Mapping[Expr, te.Tensor], apart: bool) -> Callable[[Any, str], Any]:
    """Return what stands for the arguments of one call.

    apart: an array that is given twice is two: TVM simplifies x - x, x being NaN or not, before
    `floats` sees it.
    """
    given: list[te.Tensor] = []

    def leaf(value: Any, name: str) -> Any:
        if not isinstance(value, Expr):
            return unfolded(tirx.const(value, number_dtype(value)))
        tensor = tensors[value]
        again = apart and any(tensor.same_as(other) for other in given)
        given.append(tensor)
        return copied(tensor) if again else tensor

    return leaf


dialect.fuse, dialect.overwrites = fuse, overwrites
