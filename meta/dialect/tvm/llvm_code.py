"""Functions in LLVM's own language, which kernels on the CPU call and LLVM inlines.

To TVM each is an operator that it knows nothing of: its simplifier takes no call apart, and
vectorised loops call it with vectors.

bfloat16 inside of a kernel on the CPU, rounded as it would be in memory.

TVM computes what is bfloat16 in float32, and rounds what is stored in a kernel's results only
(``tirx.transform.BF16ComputeLegalize``): a cast to bfloat16 and back is lost, and what several
operators in one kernel hand to each other has more digits than it has between kernels. Here each
cast to bfloat16 goes through a function of float32 that TVM knows nothing of. Other expressions of
bfloat16 only choose and move: kernels compute in float32 (`elementwise.computing`).

The function is LLVM's own code (`llvm_code`). As an expression of TVM it would name its argument,
to use it twice: code generation puts the values of names into one another, and takes exponential
time for rounded values of rounded values.

Remainders by powers of two in indices, which LLVM's loop vectoriser takes for no remainders.

``x[(i % 8) * 8 + j]`` for i below 16 is read by LLVM 22 as ``x[i * 8 + j]``: TVM lowers the
remainder to ``i & 7``, LLVM describes that as a number of 3 bits which is assumed not to wrap
around, and where the loop over j is unrolled, nothing is left of the test of this assumption. What
TVM has vectorised itself is as it should be. Here the mask is a number that LLVM does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import tvm.ir
import tvm_ffi
from tvm import tirx

_PURE = 1  # CallEffectKind::kPure
_DEFINITIONS: dict[str, Callable[[str, str, int], str]] = {}
_BECOMES: dict[str, str] = {}


def function(
    name: str, inputs: int, definition: Callable[[str, str, int], str], lowers: str | None = None
) -> str:
    """Register a pure function of numbers of one dtype that returns one of it, and return the name
    of the operator that calls it.

    ``definition(symbol, dtype, lanes)`` is the function ``symbol`` for scalars or vectors.
    ``lowers`` is an operator of TVM's that is lowered to a call of it, but for float64: halves as
    float32.
    """
    operator = f"tirx.meta_{name}"
    tvm.ir._ffi_api.RegisterOp(operator, definition.__doc__ or name)
    tvm.ir._ffi_api.OpSetNumInputs(tvm.ir.Op.get(operator), inputs)
    tvm.ir.register_op_attr(operator, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(operator, "TVectorizable", True)
    tvm.ir.register_op_attr(operator, "TScriptPrinterName", f"meta_{name}")
    tirx.register_intrin_lowering(operator, "llvm", f=_lowered, level=10)
    _DEFINITIONS[operator] = definition
    if lowers is not None:
        _BECOMES[lowers] = operator
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
        elif name in _BECOMES and _scalar(node) != "float64":
            called.add((_BECOMES[name], "float32", int(node.ty.dtype.lanes)))

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
    return tirx.Cast("bfloat16", call(_ROUND, value))


def _unrounded(value: Any) -> Any:
    """Return a value whose last step is not rounded: what is stored, TVM rounds."""
    if isinstance(value, tirx.Let):
        body = _unrounded(value.body)
        return value if body is value.body else tirx.Let(value.var, value.value, body)
    if isinstance(value, tirx.Cast) and _is_bfloat16(value) and is_call(value.value, _ROUND):
        return tirx.Cast("bfloat16", value.value.args[0])
    return value


def _definition(symbol: str, dtype: str, lanes: int) -> str:
    """The bfloat16 nearest to a float32, as a float32; a NaN becomes the quiet one."""

    def number(value: int) -> str:
        return str(value) if lanes == 1 else f"<{', '.join([f'i32 {value}'] * lanes)}>"

    floats, words, truths = (typed(scalar, lanes) for scalar in ("float", "i32", "i1"))
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


_ROUND = function("round_to_bfloat16", 1, _definition)


def _masked_definition(symbol: str, dtype: str, lanes: int) -> str:
    """The bits of the first number that the second has, which is hidden from the optimiser."""
    kind = integers(dtype, lanes)
    return f"""
define {kind} @{symbol}({kind} %x, {kind} %mask) nounwind {{
  %hidden = call {kind} asm "", "=r,0"({kind} %mask) nounwind memory(none)
  %y = and {kind} %x, %hidden
  ret {kind} %y
}}"""


_MASKED = function("masked", 2, _masked_definition)


def hidden(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function whose scalar accesses have such masks in their indices."""

    def of_load(node: Any) -> Any:
        indices = _masked(node.indices)
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def of_store(node: Any) -> Any:
        indices = _masked(node.indices)
        return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

    def of_name(node: Any) -> Any:  # of a part of several indices
        value = _masked([node.value])
        return node if value is None else tirx.Bind(node.var, *value)

    rules = [(tvm.ir.TensorLoad, of_load), (tirx.BufferStore, of_store), (tirx.Bind, of_name)]
    return function.with_body(tvm_ffi.structural_map(function.body, rules, order="post"))


def _masked(values: Any) -> list[Any] | None:
    """Return values without such remainders, or None if they have none."""
    new = [tvm_ffi.structural_map(v, [(tirx.FloorMod, _remainder)], order="post") for v in values]
    same = all(a.same_as(b) for a, b in zip(new, values, strict=True))
    return None if same else new


def _remainder(node: Any) -> Any:
    divisor = node.b.value if isinstance(node.b, tirx.IntImm) else 0
    if divisor < 2 or divisor & (divisor - 1):
        return node
    return call(_MASKED, node.a, tirx.const(divisor - 1, str(node.a.ty.dtype)))
