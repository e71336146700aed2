"""Expressions that mean in CUDA source what they mean in a program: constants and casts.

TVM 0.27 writes constants of float64 with 15 digits behind the point: of 1e-12 three are left, and
of the coefficients of a polynomial often none. Infinities and NaN of bfloat16 it writes as names
that there are not. A cast from float16 or bfloat16 is written as one of C, which is none from the
one to the other: the compiler takes a constructor of an integer.
"""

from __future__ import annotations

import math
import struct

import tvm_ffi
from tvm import tirx

from meta.dialect.tvm import integers
from meta.dialect.tvm.schedule_cuda import half_math

_HALF = {"float16", "bfloat16"}


def exact(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function for CUDA without the constants and casts that TVM would write wrongly."""
    rules = [
        (tirx.FloatImm, _exact),
        (tirx.Cast, _by_float32),
        (tirx.BitwiseNot, integers.narrow_in_cuda),
    ]
    return tvm_ffi.structural_map(function, rules, order="post")


def with_functions(source: str) -> str:
    """Return generated source with the functions of ours that it calls before it."""
    known = {"meta_half_": half_math.SOURCE, "meta_wrapping_": integers.CUDA}
    return "".join(text for prefix, text in known.items() if prefix in source) + source


def _exact(constant: tirx.FloatImm) -> tirx.PrimExpr:
    value, dtype = float(constant.value), str(constant.ty.dtype)
    finite = math.isfinite(value)
    if dtype == "float64" and finite and float(f"{value:.15f}") != value:
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.const(bits, "int64"))
    if dtype == "bfloat16" and not finite:
        # A function: TVM would make a cast of a constant a constant again.
        single = tirx.const(value, "float32")
        return tirx.call_pure_extern("bfloat16", "__float2bfloat16_rn", single)
    return constant


def _by_float32(cast: tirx.Cast) -> tirx.PrimExpr:
    """Convert a half to anything, and anything to a half, by float32, as torch does."""
    found, wanted = cast.value.ty.dtype, cast.ty.dtype
    kinds = {str(dtype).split("x")[0] for dtype in (found, wanted)}
    if not kinds & _HALF or "float32" in kinds or len(kinds) == 1:
        return cast
    wide = "float32" if found.lanes == 1 else f"float32x{found.lanes}"
    return tirx.Cast(str(wanted), tirx.Cast(wide, cast.value))
