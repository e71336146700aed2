"""Float64 constants that reach CUDA as they are.

TVM 0.27 writes them into CUDA source with 15 digits behind the point: of 1e-12 three are left, and
of the coefficients of a polynomial often none.
"""

from __future__ import annotations

import math
import struct

import tvm_ffi
from tvm import tirx


def exact(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function for CUDA whose float64 constants are given by their bits, where TVM would
    write another number.
    """
    return tvm_ffi.structural_map(function, (tirx.FloatImm, _by_bits))


def _by_bits(constant: tirx.FloatImm) -> tirx.PrimExpr:
    value = float(constant.value)
    if str(constant.ty.dtype) != "float64" or not math.isfinite(value):
        return constant
    if float(f"{value:.15f}") == value:
        return constant
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.const(bits, "int64"))
