"""bfloat16 inside of a kernel on the CPU, rounded as it would be in memory.

TVM computes what is bfloat16 in float32, and rounds what is stored in a kernel's results only
(``tirx.transform.BF16ComputeLegalize``): a cast to bfloat16 and back is lost, and what several
operators in one kernel hand to each other has more digits than it has between kernels. Here each
cast to bfloat16 goes through a function of float32 that TVM knows nothing of. Other expressions of
bfloat16 only choose and move: kernels compute in float32 (`elementwise.computing`).

The function is LLVM's own code (`llvm_code`). As an expression of TVM it would name its argument,
to use it twice: code generation puts the values of names into one another, and takes exponential
time for rounded values of rounded values.
"""

from __future__ import annotations

import struct
from typing import Any

import tvm_ffi
from tvm import tirx

from meta.dialect.tvm import llvm_code


def rounded(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function in which what is cast to bfloat16 is rounded to it."""
    parameters = set(function.params)

    def store(node: Any) -> Any:
        if node.buffer not in parameters:
            return node  # TVM keeps it as float32
        value = _unrounded(node.value)
        return node if value is node.value else tirx.BufferStore(node.buffer, value, node.indices)

    rules = [(tirx.FloatImm, _constant), (tirx.Cast, _cast), (tirx.BufferStore, store)]
    return function.with_body(tvm_ffi.structural_map(function.body, rules, order="post"))


def nearest(value: float) -> float:
    """Return the bfloat16 nearest to a float32; of two, the one whose last bit is 0."""
    if value != value:
        return value
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    (found,) = struct.unpack("<f", struct.pack("<I", bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000))
    return float(found)


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
    return tirx.Cast("bfloat16", llvm_code.call(_ROUND, value))


def _unrounded(value: Any) -> Any:
    """Return a value whose last step is not rounded: what is stored, TVM rounds."""
    if isinstance(value, tirx.Let):
        body = _unrounded(value.body)
        return value if body is value.body else tirx.Let(value.var, value.value, body)
    if (
        isinstance(value, tirx.Cast)
        and _is_bfloat16(value)
        and llvm_code.is_call(value.value, _ROUND)
    ):
        return tirx.Cast("bfloat16", value.value.args[0])
    return value


def _definition(symbol: str, dtype: str, lanes: int) -> str:
    """The bfloat16 nearest to a float32, as a float32; a NaN becomes the quiet one."""

    def number(value: int) -> str:
        return str(value) if lanes == 1 else f"<{', '.join([f'i32 {value}'] * lanes)}>"

    floats, words, truths = (llvm_code.typed(scalar, lanes) for scalar in ("float", "i32", "i1"))
    return f"""
define {floats} @{symbol}({floats} %x) nounwind memory(none) {{
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


_ROUND = llvm_code.function("round_to_bfloat16", 1, _definition)
