"""TE helpers of the elementwise families: broadcasting, and the dtype in which to compute.

An operand is a `te.Tensor` or a scalar variable of a run-time number. Nothing here knows operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import te, tirx

from meta.base.dtype import TO_TORCH, bits, is_float, limits, overflow_rounded, truncation_dtype

_QUIET_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float64": 0x7FF8 << 48}
"""The bits of a NaN, by dtype."""


def computing(dtype: str) -> str:
    """Return the dtype in which values of ``dtype`` are computed, to be rounded once at the end."""
    if dtype == "bool":
        return "uint8"
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def elementwise(
    function: Callable[..., Any], *operands: Any, dtype: str, within: str | None = None
) -> te.Tensor:
    """Return function(*elements) over the broadcast operands, computed in ``within``, as ``dtype``.

    ``within`` is ``computing(dtype)`` unless given. An operand that is None is an element that is.
    """
    inner = within or computing(dtype)

    def computed(*elements: Any) -> Any:
        return function(*[None if e is None else cast(e, inner) for e in elements])

    return broadcast(computed, *operands, dtype=dtype)


def number_in(operand: Any, dtype: str) -> Any:
    """Return a run-time number rounded to a dtype of arrays; an array as it is."""
    return operand if isinstance(operand, te.Tensor) else cast(operand, dtype)


def broadcast(function: Callable[..., Any], *operands: Any, dtype: str) -> te.Tensor:
    """Return function(*elements) cast to ``dtype`` over the broadcast operands."""
    shape = broadcast_shape(*[o.shape for o in operands if isinstance(o, te.Tensor)])

    def element(*index: tirx.Var) -> Any:
        return cast(function(*[broadcast_at(o, index) for o in operands]), dtype)

    return te.compute(shape, element, name="elementwise")


def operand_dtype(*operands: Any) -> str:
    """Return the dtype that the tensors among operands have, which numbers take."""
    return next(str(o.dtype) for o in operands if isinstance(o, te.Tensor))


def broadcast_shape(*shapes: Any) -> list[Any]:
    """Return the common shape; extents may be symbolic, as the type function has checked them."""
    ndim = max((len(s) for s in shapes), default=0)
    result = []
    for i in range(-ndim, 0):
        extents = [s[i] for s in shapes if len(s) >= -i]
        result.append(next((e for e in extents if not is_unit(e)), extents[0]))
    return result


def cast(value: Any, dtype: Any) -> Any:
    """Cast an element. To bool means nonzero, which holds for the numbers below 1 too; a number
    beyond the range of a floating point dtype is infinite in it; of one beyond an integer dtype see
    `truncated`.
    """
    found, dtype = str(value.ty.dtype), str(dtype)  # an array's is an object of TVM's
    if found == dtype:
        return value
    if isinstance(value, tirx.Let):
        # Inside, because a cast to bfloat16 is made of several copies of what it casts.
        return tirx.Let(value.var, value.value, cast(value.body, dtype))
    if dtype == "bool":
        return not_equal(value, tirx.const(0, found))
    if isinstance(value, tirx.FloatImm | tirx.IntImm) and is_float(dtype):
        # TVM refuses what is out of range, and keeps the digits that half precision has not.
        number = overflow_rounded(value.value, dtype)
        number = number if bits(dtype) > 16 else torch.tensor(number, dtype=TO_TORCH[dtype]).item()
        return unfolded(tirx.const(number, dtype))
    if is_float(found) and not is_float(dtype) and not isinstance(value, tirx.FloatImm):
        return truncated(value, dtype)
    return value.astype(dtype)


def converted(x: te.Tensor, dtype: str, name: str = "cast") -> te.Tensor:
    """Return an array in a dtype: itself if it has that."""
    return x if str(x.dtype) == dtype else rounded(x, dtype, name)


def rounded(x: te.Tensor, dtype: str, name: str = "rounded") -> te.Tensor:
    """Return a stage of the same elements in a dtype."""
    return te.compute(x.shape, lambda *i: cast(x(*i), dtype), name=name)


def wide(x: te.Tensor) -> te.Tensor:
    """Return a stage of the same elements in the dtype in which to compute."""
    return rounded(x, computing(str(x.dtype)), "wide")


def truncated(value: Any, dtype: str) -> Any:
    """Return a floating point element as an integer, by the rule of `truncation_dtype`.

    What lies outside of the carrier is replaced: of such a conversion LLVM makes anything.
    """
    value = cast(value, computing(str(value.ty.dtype)))
    if dtype == "uint8" and str(value.ty.dtype) == "float32":
        # The same by way of int32, which vectors have: the low 8 bits of larger numbers are 0.
        return _carried(value, "int32").astype(dtype)
    if dtype != "uint64":
        return _carried(value, truncation_dtype(dtype)).astype(dtype)
    half = constant(2.0**63, value)
    beyond = _carried(value - half, "int64").astype(dtype) + tirx.const(2**63, dtype)
    return tirx.Select(value >= half, beyond, _carried(value, "int64").astype(dtype))


def _carried(value: Any, carrier: str) -> Any:
    inside = tirx.abs(value) < constant(-float(limits(carrier).min), value)
    least = tirx.const(int(limits(carrier).min), carrier)
    return tirx.Select(inside, value.astype(carrier), least)


def let(value: Any, body: Callable[[Any], Any]) -> Any:
    """Return body(value) with the value named, so that it is computed once; expressions are trees.

    TVM 0.27 leaves a bfloat16 inside the value as it is, which gives wrong numbers: it is to be
    `widened` first.
    """
    name = tirx.Var("t", value.ty)
    return tirx.Let(name, value, body(name))


def widened(value: Any) -> Any:
    """Return an element in the dtype in which to compute; a bfloat16 by its bits, see `let`."""
    dtype = str(value.ty.dtype)
    if dtype != "bfloat16":
        return cast(value, computing(dtype))
    bits = tirx.reinterpret("uint16", value).astype("uint32")
    return tirx.reinterpret("float32", tirx.shift_left(bits, tirx.const(16, "uint32")))


def constant(value: float | int, like: Any) -> Any:
    """Return a number as a constant of the dtype of ``like``."""
    return tirx.const(value, str(like.ty.dtype))


def unfolded(value: Any) -> Any:
    """Return an element in a form in which TVM does not see that it is 0.0, or NaN.

    It takes 0 * x and 0 / x for 0, also where x is infinite or NaN, and x + 0 for x, also where
    that is -0.0; it refuses x / 0, and does not see that a name bound to the same NaN is the same.
    """
    if not isinstance(value, tirx.FloatImm) or (value.value != 0 and value.value == value.value):
        return value
    dtype = str(value.ty.dtype)
    if dtype == "float32":  # TVM's CUDA source takes the address of the bits, if they are no int32
        return unfolded(tirx.const(value.value, "float64")).astype("float32")
    width = bits(dtype)
    if value.value != value.value:
        return tirx.reinterpret(dtype, tirx.const(_QUIET_NAN[dtype], f"int{width}"))
    negative = tirx.reinterpret(dtype, tirx.const(-(1 << (width - 1)), f"int{width}"))
    return negative if math.copysign(1.0, value.value) < 0 else tirx.Sub(value, negative)


def not_equal(a: Any, b: Any) -> Any:
    """a != b; unlike `tirx.NE` it is true for a NaN."""
    different = tirx.NE(a, b)
    if not is_float(str(a.ty.dtype)):
        return different
    return tirx.Or(different, tirx.Or(is_nan(a), is_nan(b)))


def is_nan(x: Any) -> Any:
    """Whether x is NaN; False for an integer."""
    dtype = str(x.ty.dtype)
    # TVM has no isnan of bfloat16.
    return tirx.isnan(cast(x, computing(dtype))) if is_float(dtype) else tirx.const(False, "bool")


def single(value: Any, dtype: str) -> Any:
    """Return a run-time number, or the only element of a tensor, in a dtype."""
    if isinstance(value, te.Tensor):
        value = value(*[0] * len(value.shape))
    return cast(value, dtype)


def is_unit(extent: Any) -> bool:
    """Whether an extent is known to be 1."""
    return isinstance(extent, tirx.IntImm) and extent.value == 1


def broadcast_at(operand: Any, index: Sequence[Any]) -> Any:
    """Return the element at an index of what an operand is broadcast to; a number is itself."""
    if not isinstance(operand, te.Tensor):
        return operand
    own = index[len(index) - len(operand.shape) :]
    return operand(*[0 if is_unit(e) else i for e, i in zip(operand.shape, own, strict=True)])
