"""Functions in LLVM's own language, which kernels on the CPU call and LLVM inlines.

To TVM each is an operator that it knows nothing of: its simplifier takes no call apart, and
vectorised loops call it with vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm.ir
import tvm_ffi
from tvm import tirx

_PURE = 1  # CallEffectKind::kPure
_DEFINITIONS: dict[str, Callable[[str, str, int], str]] = {}


def function(name: str, inputs: int, definition: Callable[[str, str, int], str]) -> str:
    """Register a pure function of numbers of one dtype that returns one of it, and return the name
    of the operator that calls it.

    ``definition(symbol, dtype, lanes)`` is the function ``symbol`` for scalars or vectors.
    """
    operator = f"tirx.meta_{name}"
    tvm.ir._ffi_api.RegisterOp(operator, definition.__doc__ or name)
    tvm.ir._ffi_api.OpSetNumInputs(tvm.ir.Op.get(operator), inputs)
    tvm.ir.register_op_attr(operator, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(operator, "TVectorizable", True)
    tvm.ir.register_op_attr(operator, "TScriptPrinterName", f"meta_{name}")
    tirx.register_intrin_lowering(operator, "llvm", f=_lowered, level=10)
    _DEFINITIONS[operator] = definition
    return operator


def call(operator: str, *values: Any) -> Any:
    """Return the call of an operator that `function` returned."""
    return tvm.ir.Call(operator, list(values), ret_ty=values[0].ty)


def is_call(value: Any, operator: str) -> bool:
    """Whether a value is a call of an operator that `function` returned."""
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == operator


def with_definitions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function together with the functions that it calls."""
    called: set[tuple[str, str, int]] = set()

    def visit(node: Any) -> None:
        name = getattr(node.op, "name", "")
        if name in _DEFINITIONS:
            called.add((name, _scalar(node), int(node.ty.dtype.lanes)))

    tvm_ffi.structural_walk(function.body, (tvm.ir.Call, visit))
    if not called:
        return function
    code = "\n".join(
        _DEFINITIONS[name](_symbol(name, scalar, lanes), scalar, lanes)
        for name, scalar, lanes in sorted(called)
    )
    return function.with_body(
        tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", tvm.ir.StringImm(code), function.body)
    )


def typed(scalar: str, lanes: int) -> str:
    """Return LLVM's name of a type with so many lanes."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def integers(dtype: str, lanes: int) -> str:
    """Return LLVM's name of an integer dtype, which has no sign there, with so many lanes."""
    return typed(dtype.lstrip("u").replace("int", "i"), lanes)


def _symbol(operator: str, dtype: str, lanes: int) -> str:
    return f"{operator.removeprefix('tirx.')}_{dtype}x{lanes}"


def _scalar(value: Any) -> str:
    return str(value.ty.dtype).partition("x")[0]


def _lowered(node: Any) -> Any:
    symbol = _symbol(node.op.name, _scalar(node), node.ty.dtype.lanes)
    return tirx.call_pure_extern(node.ty, symbol, *node.args)
