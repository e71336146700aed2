"""What a scheduled CUDA function asks of its parameters: addresses, and intermediate arrays.

`required` checks the addresses of arguments that kernels access by vectors (see `realigned`), and
`as_parameters` turns intermediate arrays into parameters (see `workspace`).
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.base.dtype import TO_TORCH
from meta.dialect.tvm.lower import any_strides_if_empty, element_aligned, with_root
from meta.dialect.tvm.realigned import ALIGNMENT, KIND
from meta.dialect.tvm.workspace import Workspace

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
