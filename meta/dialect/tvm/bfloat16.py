"""bfloat16 inside of a kernel on the CPU, rounded as it would be in memory.

TVM computes what is bfloat16 in float32, and rounds what is stored in a kernel's results only
(``tirx.transform.BF16ComputeLegalize``): a cast to bfloat16 and back is lost, and what several
operators in one kernel hand to each other has more digits than it has between kernels. Here each
cast to bfloat16 goes through a function of float32 that TVM knows nothing of. Other expressions of
bfloat16 only choose and move: kernels compute in float32 (`elementwise.computing`).

The function is LLVM's own code, which is imported into the module and inlined. As an expression of
TVM it would name its argument, to use it twice: code generation puts the values of names into one
another, and takes exponential time for rounded values of rounded values.
"""

from __future__ import annotations

import struct
from typing import Any

import tvm.ir
import tvm_ffi
from tvm import tirx

_ROUND = "tirx.meta_round_to_bfloat16"
_SYMBOL = "meta_round_to_bfloat16"
_PURE = 1  # CallEffectKind::kPure


def rounded(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function in which what is cast to bfloat16 is rounded to it."""
    parameters = set(function.params)

    def store(node: Any) -> Any:
        if node.buffer not in parameters:
            return node  # TVM keeps it as float32
        value = _unrounded(node.value)
        return node if value is node.value else tirx.BufferStore(node.buffer, value, node.indices)

    rules = [(tirx.FloatImm, _constant), (tirx.Cast, _cast), (tirx.BufferStore, store)]
    body = tvm_ffi.structural_map(function.body, rules, order="post")
    if not _calls(body):
        return function
    code = "\n".join(map(_definition, sorted(_widths(body))))
    return function.with_body(
        tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", tvm.ir.StringImm(code), body)
    )


def nearest(value: float) -> float:
    """Return the bfloat16 nearest to a float32; of two, the one whose last bit is 0."""
    if value != value:
        return value
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    (found,) = struct.unpack("<f", struct.pack("<I", bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000))
    return found


def _is_bfloat16(value: Any) -> bool:
    return str(value.ty.dtype) == "bfloat16"


def _constant(node: Any) -> Any:
    return tirx.const(nearest(node.value), "bfloat16") if _is_bfloat16(node) else node


def _cast(node: Any) -> Any:
    if not _is_bfloat16(node) or _is_bfloat16(node.value):
        return node
    value = node.value
    if str(value.ty.dtype) != "float32":
        value = tirx.Cast("float32", value)
    return tirx.Cast("bfloat16", tvm.ir.Call(_ROUND, [value], ret_ty=value.ty))


def _unrounded(value: Any) -> Any:
    """Return a value whose last step is not rounded: what is stored, TVM rounds."""
    if isinstance(value, tirx.Let):
        body = _unrounded(value.body)
        return value if body is value.body else tirx.Let(value.var, value.value, body)
    if isinstance(value, tirx.Cast) and _is_bfloat16(value) and _is_round(value.value):
        return tirx.Cast("bfloat16", value.value.args[0])
    return value


def _is_round(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == _ROUND


def _calls(body: Any) -> bool:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if _is_round(node):
            found.append(node)

    tvm_ffi.structural_walk(body, (tvm.ir.Call, visit))
    return bool(found)


def _widths(body: Any) -> set[int]:
    """Return the numbers of lanes that a value may have."""
    widths = {1}

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            widths.add(int(loop.extent))

    tvm_ffi.structural_walk(body, (tirx.For, visit))
    return widths


def _definition(lanes: int) -> str:
    """Return the function for vectors of so many lanes. A NaN becomes the quiet one."""

    def typed(scalar: str) -> str:
        return scalar if lanes == 1 else f"<{lanes} x {scalar}>"

    def number(value: int) -> str:
        return str(value) if lanes == 1 else f"<{', '.join([f'i32 {value}'] * lanes)}>"

    floats, words, truths = typed("float"), typed("i32"), typed("i1")
    return f"""
define {floats} @{_SYMBOL}_{lanes}({floats} %x) nounwind memory(none) {{
  %bits = bitcast {floats} %x to {words}
  %high = lshr {words} %bits, {number(16)}
  %odd = and {words} %high, {number(1)}
  %half = add {words} %odd, {number(0x7FFF)}
  %up = add {words} %bits, %half
  %near = and {words} %up, {number(-0x10000)}
  %nan = fcmp uno {floats} %x, %x
  %found = select {truths} %nan, {words} {number(0x7FC00000)}, {words} %near
  %y = bitcast {words} %found to {floats}
  ret {floats} %y
}}"""


def _lowered(call: Any) -> Any:
    return tirx.call_pure_extern(call.ty, f"{_SYMBOL}_{call.ty.dtype.lanes}", *call.args)


tvm.ir._ffi_api.RegisterOp(_ROUND, "The bfloat16 nearest to a float32, as a float32.")
tvm.ir._ffi_api.OpSetNumInputs(tvm.ir.Op.get(_ROUND), 1)
tvm.ir.register_op_attr(_ROUND, "TCallEffectKind", _PURE)
tvm.ir.register_op_attr(_ROUND, "TVectorizable", True)
tirx.register_intrin_lowering(_ROUND, "llvm", f=_lowered, level=10)
