"""Vector accesses and the addresses of arguments.

A vector access to an address that is no multiple of its size kills the process. Fresh tensors are
aligned to far more than 16 bytes, but a view such as ``x[1:]`` need not be. So a function whose
kernels access a parameter by vectors begins with a check of the addresses, on the host, before
anything is launched: an `and` and a compare for each. What it raises, `realigned` catches: the call
is repeated with aligned copies, which are copied back. An aligned call pays nothing for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from meta.dialect.tvm.lower import element_aligned

ALIGNMENT = 16
"""Bytes: the widest access of a thread."""
_KIND = "MetaUnaligned"


@tvm_ffi.register_error(_KIND)
class Unaligned(RuntimeError):
    """An argument's address is no multiple of `ALIGNMENT`."""


def required(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function that begins with a check of what it accesses by vectors.

    Without a promise of the alignment to LLVM, which would leave out the check.
    """
    function = element_aligned(function)
    vectors: dict[Any, None] = {}
    parameters = {p for p in function.params if tirx.buffer.is_buffer_var(p)}

    def loop(found: tirx.For) -> None:
        if found.kind == tirx.ForKind.VECTORIZED:
            tvm_ffi.structural_walk(found.body, (tvm.ir.Var, variable))

    def variable(found: tvm.ir.Var) -> None:
        if found in parameters:
            vectors[found] = None

    tvm_ffi.structural_walk(function.body, (tirx.For, loop))
    if not vectors:
        return function
    root = function.body.block
    checks = [_check(parameter) for parameter in function.params if parameter in vectors]
    body = tirx.SeqStmt([*checks, root.body])
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init,
        root.alloc_buffers, root.match_buffers, root.annotations,
    )  # fmt: skip
    realize = s_tir.SBlockRealize(function.body.iter_values, function.body.predicate, block)
    return tirx.PrimFunc(function.params, realize, function.ret_type, function.attrs)


def _check(parameter: Any) -> tirx.AssertStmt:
    """Raise if an address has one of the low bits.

    The mask is LLVM's: TVM does not lower the reinterpretation of a pointer as a number.
    """
    low = tirx.const(ALIGNMENT - 1, "int64")
    address = tirx.buffer.buffer_data(parameter)
    bits = tirx.call_llvm_pure_intrin("handle", "llvm.ptrmask", address, low)
    kind, name = tvm.ir.StringImm(_KIND), tvm.ir.StringImm(parameter.name)
    # TVM 0.27 names the first two parameters of this constructor the wrong way round.
    return tirx.AssertStmt(tirx.isnullptr(bits), kind, [name])


def realigned(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` for arguments at any address."""

    def launch(*values: Any) -> None:
        try:
            run(*values)
        except Unaligned:
            copies: dict[tuple[int, int], torch.Tensor] = {}
            again = [_aligned(value, copies) for value in values]
            run(*again)
            for value, copied in zip(values, again, strict=True):
                if copied is not value:
                    value.copy_(copied)

    return launch


def _aligned(value: Any, copies: dict[tuple[int, int], torch.Tensor]) -> Any:
    """Return a value, or an aligned copy of it: the same one for the same memory."""
    if not isinstance(value, torch.Tensor) or value.data_ptr() % ALIGNMENT == 0:
        return value
    key = (value.data_ptr(), value.numel())
    if key not in copies:
        copies[key] = value.clone()
    return copies[key]
