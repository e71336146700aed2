"""Constants that reach CUDA as they are.

TVM 0.27 writes those of float64 into CUDA source with 15 digits behind the point: of 1e-12 three
are left, and of the coefficients of a polynomial often none. Infinities and NaN of bfloat16 it
writes as names that there are not.
"""

from __future__ import annotations

import math
import struct

import tvm_ffi
from tvm import tirx


def exact(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function for CUDA with other expressions for the constants of which TVM would write
    another number, or none.
    """
    return tvm_ffi.structural_map(function, (tirx.FloatImm, _exact))


def _exact(constant: tirx.FloatImm) -> tirx.PrimExpr:
    value, dtype = float(constant.value), str(constant.ty.dtype)
    if math.isfinite(value):
        return _by_bits(constant, value) if dtype == "float64" else constant
    if dtype != "bfloat16":
        return constant
    # A function: TVM would make a cast of a constant a constant again.
    single = tirx.const(value, "float32")
    return tirx.call_pure_extern("bfloat16", "__float2bfloat16_rn", single)


def _by_bits(constant: tirx.FloatImm, value: float) -> tirx.PrimExpr:
    if float(f"{value:.15f}") == value:
        return constant
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.const(bits, "int64"))
