"""Keeping TVM and the compilers behind it to the arithmetic of integers that wrap around.

An integer of an array that leaves the range of its dtype wraps around, as torch's and NumPy's do.
TVM takes integers for whole numbers, as indices are: ``x + 1 > x`` becomes true, and
``x * 2 // 2`` becomes x. LLVM and CUDA take sums, differences and products of 32 and 64 bits for
numbers that do not leave the range, and CUDA computes narrow ones in 32 bits: ``int8(100) + 100``
compared or converted in the same kernel is 200. Here arithmetic on what was read from an array
becomes calls that TVM knows nothing of. Arithmetic of loop variables and extents stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm.ir
import tvm_ffi
from tvm import tirx

from meta.dialect.tvm import llvm_code
from meta.runtime import nvrtc


def _instruction(name: str) -> str:
    """Register an instruction of LLVM of two operands, without its promise not to wrap around."""

    def definition(symbol: str, dtype: str, lanes: int) -> str:
        kind = llvm_code.integers(dtype, lanes)
        return (
            f"define {kind} @{symbol}({kind} %a, {kind} %b) nounwind memory(none) {{\n"
            f"  %y = {name} {kind} %a, %b\n  ret {kind} %y\n}}"
        )

    return llvm_code.function(f"wrapping_{name}", 2, definition)


WRAPPING = ADD, SUBTRACT, MULTIPLY, SHIFT = [_instruction(n) for n in ("add", "sub", "mul", "shl")]
_OPERATORS = {tirx.Add: ADD, tirx.Sub: SUBTRACT, tirx.Mul: MULTIPLY, tirx.LShift: SHIFT}
_NODES = {operator: node for node, operator in _OPERATORS.items()}

CUDA = nvrtc.with_includes(Path(__file__).with_name("integers.cuh"))
"""The calls as functions of C."""


def wrapping(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return an unscheduled function whose arithmetic on integers from arrays is such calls.

    That of the steps of a reduction stays: their results are read from memory, and schedules look
    for them.
    """
    rules = [(tuple(_OPERATORS), _call), (tvm.ir.TensorLoad, _index)]

    def store(node: Any) -> Any:
        if _reads(node.value, node.buffer):
            return node
        value = tvm_ffi.structural_map(node.value, rules, order="post")
        same = value.same_as(node.value)
        return node if same else tirx.BufferStore(node.buffer, value, node.indices)

    return tvm_ffi.structural_map(function, [(tirx.BufferStore, store)], order="post")


def narrow_in_cuda(node: tirx.BitwiseNot) -> Any:
    """Return the complement without the bits that CUDA adds to a narrow number."""
    return _extern("meta_wrapping_not", node.a) if node.ty.dtype.bits < 32 else node


def _extern(name: str, *operands: Any) -> Any:
    kind = operands[0].ty
    return tirx.call_pure_extern(kind, f"{name}_{str(kind.dtype).partition('x')[0]}", *operands)


def _function(call: tvm.ir.Call) -> Any:
    return _extern(call.op.name.removeprefix("tirx."), *call.args)


for _operator in WRAPPING:
    tirx.register_intrin_lowering(_operator, "cuda", f=_function, level=10)


def _call(node: Any) -> Any:
    wraps = str(node.ty.dtype).startswith(("int", "uint")) and _reads(node)
    return llvm_code.call(_OPERATORS[type(node)], node.a, node.b) if wraps else node


def _index(load: Any) -> Any:
    """Indices lie in their arrays, and TVM may know that."""

    def plain(node: Any) -> Any:
        known = _NODES.get(getattr(node.op, "name", ""))
        return node if known is None else known(*node.args)

    indices = [
        tvm_ffi.structural_map(i, [(tvm.ir.Call, plain)], order="post") for i in load.indices
    ]
    if all(new.same_as(old) for new, old in zip(indices, load.indices, strict=True)):
        return load
    return tirx.BufferLoad(load.source, indices)


def _reads(value: Any, buffer: Any = None) -> bool:
    """Whether a value is read from an array, or from this one."""

    def found(load: Any) -> Any:
        wanted = buffer is None or load.source.same_as(buffer)
        return tvm_ffi.VisitInterrupt(None) if wanted else None

    return tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, found)) is not None
