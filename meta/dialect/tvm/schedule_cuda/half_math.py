"""Exponentials, error functions and reciprocals of kernels whose results are in half precision.

CUDA's own functions are right to the last bit or two of float32, at the cost of 8 to 40
instructions. What is rounded to 11 bits or fewer in the end needs less: these take 1 to 13, and are
wrong by 2e-5 of the result at most, a twentieth of what the rounding is. Other quotients stay
exact: somebody may ask whether one is a whole number. They are functions of
C, in ``half_math.cuh``, which is put before generated kernels. To add one, write it there, and a
rule here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.runtime import nvrtc

SOURCE = nvrtc.with_includes(Path(__file__).with_name("half_math.cuh"))

_HALF = ("float16", "bfloat16")


def replaced(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with these in place of CUDA's, if it writes halves and no wider floats."""
    written = _written(function) & set(function.params)
    floats = {str(buffer.dtype) for buffer in written if "float" in str(buffer.dtype)}
    if not floats or not floats <= set(_HALF):
        return function
    rules = [(tirx.Add, _complement), (tirx.Div, _reciprocal), (tvm.ir.Call, _exponential)]
    return tvm_ffi.structural_map(function, rules, order="post")


def _written(function: tirx.PrimFunc) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, lambda s: found.add(s.buffer)))
    return found


def _call(name: str, argument: Any) -> Any:
    return tirx.call_pure_extern("float32", name, argument)


def _is(node: Any, name: str) -> bool:
    return (
        isinstance(node, tvm.ir.Call)
        and node.op.name == f"tirx.{name}"
        and str(node.ty.dtype) == "float32"
    )


def _exponential(call: Any) -> Any:
    return _call("meta_half_exp", call.args[0]) if _is(call, "exp") else call


def _reciprocal(quotient: Any) -> Any:
    one = isinstance(quotient.a, tirx.FloatImm) and quotient.a.value == 1
    if not one or str(quotient.ty.dtype) != "float32":
        return quotient
    return _call("meta_half_reciprocal", quotient.b)


def _complement(add: Any) -> Any:
    """1 + erf(x) = erfc(-x), which keeps its digits where the sum is small."""
    for one, other in ((add.a, add.b), (add.b, add.a)):
        if isinstance(one, tirx.FloatImm) and one.value == 1 and _is(other, "erf"):
            return _call("meta_half_erfc", other.args[0] * tirx.const(-1, "float32"))
    return add
