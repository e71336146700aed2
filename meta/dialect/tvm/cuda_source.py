"""Expressions that mean in CUDA source what they mean in a program: constants and casts.

TVM 0.27 writes constants of float64 with 15 digits behind the point: of 1e-12 three are left, and
of the coefficients of a polynomial often none. Infinities and NaN of bfloat16 it writes as names
that there are not. A cast from float16 or bfloat16 is written as one of C, which is none from the
one to the other: the compiler takes a constructor of an integer.

CUDA source to machine code through NVRTC, in place of TVM's compile callback.

TVM's own callback needs the ``cuda-bindings`` package, parses the whole of libcu++ (over a second
for a trivial kernel), and compiles with fast math, which is not accurate enough for training.
This one calls the NVRTC library that torch brings along (`meta.runtime.nvrtc`), with a prologue of
a few lines (40 ms).

What a scheduled CUDA function asks of its parameters: addresses, and intermediate arrays.

`required` checks the addresses of arguments that kernels access by vectors (see `realigned`), and
`as_parameters` turns intermediate arrays into parameters (see `workspace`).

Exponentials, error functions and reciprocals of kernels whose results are in half precision.

CUDA's own functions are right to the last bit or two of float32, at the cost of 8 to 40
instructions. What is rounded to 11 bits or fewer in the end needs less: these take 1 to 13, and are
wrong by 2e-5 of the result at most, a twentieth of what the rounding is. Other quotients stay
exact: somebody may ask whether one is a whole number. They are functions of
C, in ``half_math.cuh``, which is put before generated kernels. To add one, write it there, and a
rule here.
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import torch
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from meta.base.dtype import TO_TORCH
from meta.dialect.tvm import integers
from meta.dialect.tvm.launch import ALIGNMENT, KIND, Workspace
from meta.dialect.tvm.lower import any_strides_if_empty, element_aligned, with_root
from meta.runtime import gpu_properties, nvrtc

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
    known = {"meta_half_": HALF_MATH, "meta_wrapping_": integers.CUDA}
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


TWO_BLOCKS = "__launch_bounds__(512)", "__launch_bounds__(512, 2)"
"""One block of so many threads does not hide its own waiting: two get 64 registers a thread."""

_HALVES = {"__float2half_rn(": "cuda_fp16.h", "__float2bfloat16_rn(": "cuda_bf16.h"}
"""What constants of half precision are made by. TVM includes the header only if it writes the type,
too: the argument of a cast does not need it."""

_HEAD = re.compile(r"\A\s*#ifdef __CUDACC_RTC__.*?\n#else.*?\n#endif\n", re.DOTALL)


def _slim(source: str) -> str:
    """Replace the standard headers at the top of generated source, if it has that form."""
    body, found = _HEAD.subn("", source, count=1)
    if not found or "std::" in body:
        return source
    return nvrtc.PROLOGUE + body


def complete(source: str) -> str:
    """Put what generated source uses, and does not have, before it."""
    source = with_functions(_slim(source).replace(*TWO_BLOCKS))
    missing = [
        header
        for name, header in _HALVES.items()
        if name in source and f"#include <{header}>" not in source
    ]
    return "".join(f"#include <{header}>\n" for header in missing) + source


def compile_for_tvm(source: str, arch: str) -> bytes:
    """Return the cubin of source that TVM generated; see `nvrtc.compile_source`."""
    return nvrtc.compile_source(complete(source), arch)


def _arch() -> str:
    target = Target.current(allow_none=True)
    if target is not None and "arch" in target.attrs:
        return str(target.attrs["arch"])
    return gpu_properties.query(torch.cuda.current_device()).arch


def _callback(source: str) -> bytes:
    return compile_for_tvm(source, _arch())


tvm_ffi.register_global_func("tvm_callback_cuda_compile", _callback, override=True)


GLOBAL = ("", "global")


def required(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function that begins with a check of what it accesses by vectors.

    Without a promise of the alignment to LLVM, which would leave out the check.
    """
    function = element_aligned(function)
    vectors: dict[Any, None] = {}
    parameters = {p: p for p in function.params if tirx.buffer.is_buffer_var(p)}

    def other_view(found: tirx.DeclBuffer) -> None:
        tvm_ffi.structural_walk(
            found.data, (tvm.ir.Var, lambda p: parameters.update({found.buffer: p}))
        )

    def loop(found: tirx.For) -> None:
        if found.kind == tirx.ForKind.VECTORIZED:
            tvm_ffi.structural_walk(found.body, (tvm.ir.Var, variable))

    def variable(found: tvm.ir.Var) -> None:
        if found in parameters:
            vectors[parameters[found]] = None

    tvm_ffi.structural_walk(function.body, (tirx.DeclBuffer, other_view))
    tvm_ffi.structural_walk(function.body, (tirx.For, loop))
    if not vectors:
        return function
    root = function.body.block
    checks = [_check(parameter) for parameter in function.params if parameter in vectors]
    body = tirx.SeqStmt([*checks, root.body])
    return with_root(function, body, root.alloc_buffers)


def _check(parameter: Any) -> tirx.AssertStmt:
    """Raise if an address has one of the low bits.

    The mask is LLVM's: TVM does not lower the reinterpretation of a pointer as a number.
    """
    low = tirx.const(ALIGNMENT - 1, "int64")
    address = tirx.buffer.buffer_data(parameter)
    bits = tirx.call_llvm_pure_intrin("handle", "llvm.ptrmask", address, low)
    kind, name = tvm.ir.StringImm(KIND), tvm.ir.StringImm(parameter.name)
    # TVM 0.27 names the first two parameters of this constructor the wrong way round.
    return tirx.AssertStmt(tirx.isnullptr(bits), kind, [name])


def as_parameters(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[Workspace, ...]]:
    """Turn a scheduled function's intermediate arrays in global memory into last parameters.

    Those of dynamic shape stay as they are.
    """
    root = function.body.block
    moved = [buffer for buffer in root.alloc_buffers if _movable(buffer.ty)]
    if not moved:
        return function, ()
    kept = [b for b in root.alloc_buffers if not any(b.same_as(other) for other in moved)]
    function = with_root(function, root.body, kept)
    parameters = [*function.params, *moved]
    changed = tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs)
    shapes = [tuple(extent.value for extent in b.ty.shape) for b in moved]
    dtypes = [str(b.ty.dtype.dtype) for b in moved]
    workspaces = tuple(map(Workspace, shapes, dtypes))
    return any_strides_if_empty(changed), workspaces


def _movable(kind: tirx.buffer.BufferType) -> bool:
    static = all(isinstance(extent, tirx.IntImm) for extent in kind.shape)
    return static and kind.storage_scope in GLOBAL and str(kind.dtype.dtype) in TO_TORCH


HALF_MATH = nvrtc.with_includes(Path(__file__).with_name("half_math.cuh"))


def with_half_math(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with these in place of CUDA's, if it writes halves and no wider floats."""
    written = _written_buffers(function) & set(function.params)
    floats = {str(buffer.dtype) for buffer in written if "float" in str(buffer.dtype)}
    if not floats or not floats <= _HALF:
        return function
    rules = [(tirx.Add, _complement), (tirx.Div, _reciprocal), (tvm.ir.Call, _exponential)]
    return tvm_ffi.structural_map(function, rules, order="post")


def _written_buffers(function: tirx.PrimFunc) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, lambda s: found.add(s.buffer)))
    return found


def _half_call(name: str, argument: Any) -> Any:
    return tirx.call_pure_extern("float32", name, argument)


def _is(node: Any, name: str) -> bool:
    return (
        isinstance(node, tvm.ir.Call)
        and node.op.name == f"tirx.{name}"
        and str(node.ty.dtype) == "float32"
    )


def _exponential(call: Any) -> Any:
    return _half_call("meta_half_exp", call.args[0]) if _is(call, "exp") else call


def _reciprocal(quotient: Any) -> Any:
    one = isinstance(quotient.a, tirx.FloatImm) and quotient.a.value == 1
    if not one or str(quotient.ty.dtype) != "float32":
        return quotient
    return _half_call("meta_half_reciprocal", quotient.b)


def _complement(add: Any) -> Any:
    """1 + erf(x) = erfc(-x), which keeps its digits where the sum is small."""
    for one, other in ((add.a, add.b), (add.b, add.a)):
        if isinstance(one, tirx.FloatImm) and one.value == 1 and _is(other, "erf"):
            return _half_call("meta_half_erfc", other.args[0] * tirx.const(-1, "float32"))
    return add
