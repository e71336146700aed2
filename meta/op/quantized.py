"""Products with weights that are stored in 8 or 4 bits, and what makes such weights.

A stored number q stands for ``scale * (q - zero)``. Scales and zeros belong to the groups of a row:
``group`` columns each, or all of them (by channel).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meta import op as operators
from meta.base.errors import TypeInferError
from meta.base.registry import nearest
from meta.ir.types import TensorType
from meta.op.core import Tensor, op
from meta.op.core.axes import Args, Axes, labels_of
from meta.op.core.check import require, require_float, require_ndim, shapes_compatible
from meta.op.core.function import as_operand, function

BLOCK = 32
"""Columns of a row that are packed together in 4 bits: 16 bytes."""
MIDDLE = {"int8": 0, "uint8": 8, "float8_e4m3fn": 0}
"""What stands for 0 where there are no zeros, by the dtype of stored weights."""
KINDS = {"int8": ("int8", 127.0), "int4": ("uint8", 7.0), "float8": ("float8_e4m3fn", 448.0)}
"""Kinds of quantised weights: the dtype that is stored, and what the largest number of a group
becomes.
"""


def columns_of(weight: Any) -> Any:
    """Return how many columns a stored weight stands for."""
    return weight.shape[-1] * (2 if weight.dtype == "uint8" else 1)


def _axes(args: Args) -> Iterable[Axes]:
    """Rows of x and of the weight are free; by channel, columns are summed over."""
    front = labels_of(args["x"].ndim - 1)
    inner = "k" if args["scales"].shape[-1] == 1 and args["weight"].dtype != "uint8" else None
    tensors = {"x": (*front, inner), "weight": ("n", inner), "scales": ("n", None)}
    if args["zeros"] is not None:
        tensors["zeros"] = ("n", None)
    return (Axes(tensors, ((*front, "n"),)),)


@op(float8=True, axes=_axes)
def quantized_matmul(
    x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None = None
) -> Tensor:
    """``x @ w.T``, where ``w = scales * (weight - zeros)`` is stored in 8 or 4 bits.

    x: (..., k), floating point. weight: rows of w, (n, k): int8 or float8_e4m3fn; or in 4 bits,
    two in a byte, uint8 (n, k / 2): of 32 columns, 16 bytes hold the first 16 in their low halves
    and the last 16 in their high halves, as numbers from 0 to 15; k is then a multiple of 32.
    scales: (n, groups), floating point of any width: each of a row's groups of k / groups columns
    has its own, or, of one group, each row. zeros: of the shape of scales, floating point, in units
    of the stored numbers; without them 0, and 8 of 4 bits.

    Result: (..., n) in the dtype of x. Products are summed in at least float32 and rounded once;
    for many rows w is written down first, in the dtype of x. `quantize_weight` makes such weights.
    Gradients flow to x, scales and zeros. Raises TypeInferError for other dtypes and for shapes
    that do not fit.
    """
    require_float(x, "x")
    require(x.ndim > 0, "x has no columns", expected="x[..., k]", found=str(x))
    k = require_quantized(weight, scales, zeros)
    found = f"x={x}, weight={weight}"
    what = f"x has {x.shape[-1]} columns and the weight {k}"
    require(shapes_compatible(x.shape[-1:], (k,)), what, expected="as many", found=found)
    return x.with_shape((*x.shape[:-1], weight.shape[0]))


def require_quantized(weight: Any, scales: Any, zeros: Any) -> int:
    """Return how many columns a weight has; TypeInferError unless its parts fit together."""
    found = f"weight={weight}, scales={scales}, zeros={zeros}"
    known = weight.dtype in MIDDLE
    require(known, "no weight is stored so", expected=" or ".join(MIDDLE), found=found)
    require_ndim(weight, 2, "weight")
    require_ndim(scales, 2, "scales")
    require_float(scales, "scales")
    (n, _), k = weight.shape, columns_of(weight)
    packed = weight.dtype == "uint8" and k % BLOCK
    require(not packed, f"weights of 4 bits have {k} columns", expected="32, 64, ...", found=found)
    groups = scales.shape[1]
    fits = scales.shape[0] == n and k % max(groups, 1) == 0 and (groups > 0 or k == 0)
    require(fits, "scales do not fit", expected=f"scales[{n}, a divisor of {k}]", found=found)
    if zeros is not None:
        require_float(zeros, "zeros")
        alike = zeros.shape == scales.shape
        require(alike, "zeros do not fit", expected="the shape of scales", found=found)
    return int(k)


def _error(name: str, what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op=name, **more)


def _stored(weight: Any, dtype: str) -> Any:
    """Return the stored numbers as (n, k) in a floating point dtype."""
    if weight.dtype != "uint8":
        return operators.astype(weight, dtype)
    n, k = weight.shape[0], columns_of(weight)
    blocks = operators.reshape(weight, (n, k // BLOCK, 1, BLOCK // 2))
    halves = operators.bitwise_and(blocks, 15), operators.bitwise_right_shift(blocks, 4)
    both = operators.concat(halves, 2)
    return operators.astype(operators.reshape(both, (n, k)), dtype)


@function
def dequantize_weight(
    weight: Any, scales: Any, zeros: Any = None, *, dtype: str | None = None
) -> Any:
    """Return ``scales * (weight - zeros)``, (n, k), of a weight as `quantized_matmul` takes it.

    dtype: of the result, float32 unless given, or float64 of scales of that; computed in float32,
    or in float64 if it is that. Raises TypeInferError for parts that do not fit together.

    >>> weight, scales, _ = meta.quantize_weight(meta.array([[0.5, -1.0, 0.25]]))
    >>> meta.dequantize_weight(weight, scales).numpy().round(2)
    array([[ 0.5 , -1.  ,  0.25]], dtype=float32)
    """
    weight, scales = as_operand(weight), as_operand(scales)
    zeros = None if zeros is None else as_operand(zeros)
    require_quantized(*(_type_of(t) for t in (weight, scales, zeros)))
    dtype = dtype or _wide(scales)
    wide = "float64" if dtype == "float64" else "float32"
    (n, groups), k = scales.shape, columns_of(weight)
    grouped = operators.reshape(_stored(weight, wide), (n, groups, k // max(groups, 1)))
    if zeros is not None:
        grouped = grouped - operators.astype(operators.expand_dims(zeros, 2), wide)
    elif MIDDLE[weight.dtype]:
        grouped = grouped - float(MIDDLE[weight.dtype])
    whole = grouped * operators.astype(operators.expand_dims(scales, 2), wide)
    return operators.astype(operators.reshape(whole, (n, k)), dtype)


def _wide(x: Any) -> str:
    """Return the dtype in which x is rounded and scaled."""
    return "float64" if x.dtype == "float64" else "float32"


def _type_of(value: Any) -> Any:
    return None if value is None else TensorType(tuple(value.shape), value.dtype)


@function
def quantize_weight(
    w: Any,
    kind: str = "int8",
    *,
    group: int | None = None,
    symmetric: bool = True,
    scale_dtype: str | None = None,
) -> tuple[Any, Any, Any]:
    """Return a matrix as `quantized_matmul` takes it: ``(weight, scales, zeros)``.

    w: (n, k), floating point. kind: "int8", "int4" or "float8". group: columns that share a scale,
    a divisor of k; all if None. symmetric: the largest magnitude of a group becomes 127, 7 or 448,
    and zeros are None; else its range, with 0, becomes that of the integers, and zeros are whole
    numbers (Jacob et al., arXiv:1712.05877). scale_dtype: of scales and zeros; float32, or float64
    if w is that, unless given. Numbers are rounded to the nearest. Raises TypeInferError for
    another kind, for w that is no matrix, and for a group that does not divide k; of 4 bits k is a
    multiple of 32.

    >>> weight, scales, zeros = meta.quantize_weight(meta.ones((3, 64)), "int4", group=32)
    >>> weight.shape, weight.dtype, scales.shape, zeros
    ((3, 32), 'uint8', (3, 2), None)
    """
    w = as_operand(w)
    name = "quantize_weight"
    if kind not in KINDS:
        hint = nearest(kind, KINDS)
        what = "there is no such kind of quantised weights"
        raise _error(name, what, expected=", ".join(KINDS), found=kind, hint=hint)
    require_ndim(_type_of(w), 2, "w")
    require_float(_type_of(w), "w")
    n, k = w.shape
    each = k if group is None else group
    if each < 1 or k % each or (kind == "int4" and k % BLOCK):
        expected = f"a divisor of {k}" + (", itself a multiple of 32" if kind == "int4" else "")
        raise _error(name, "groups do not divide the columns", expected=expected, found=each)
    if kind == "float8" and not symmetric:
        raise _error(name, "float8 has no zeros", expected="symmetric=True")
    dtype, most = KINDS[kind]
    wide_dtype = _wide(w)
    grouped = operators.astype(operators.reshape(w, (n, k // each, each)), wide_dtype)
    if symmetric:
        scales = operators.max(operators.abs(grouped), 2, True) / most
        least, zeros = -most, None
    else:
        low = operators.minimum(operators.min(grouped, 2, True), 0.0)
        high = operators.maximum(operators.max(grouped, 2, True), 0.0)
        least, most = (-128.0, 127.0) if kind == "int8" else (0.0, 15.0)
        scales = (high - low) / (most - least)
    # Numbers are divided by what the scale is rounded to; a group of zeros has the scale 1.
    scale_dtype = scale_dtype or wide_dtype
    scales = operators.astype(scales, scale_dtype)
    scales = operators.where(operators.equal(scales, 0.0), 1.0, scales)
    wide = operators.astype(scales, wide_dtype)
    stored = grouped / wide
    if not symmetric:
        shift = operators.round(least - low / wide)
        stored = stored + shift
        zeros = operators.reshape(operators.astype(shift, scale_dtype), (n, k // each))
    stored = operators.clip(stored if kind == "float8" else operators.round(stored), least, most)
    stored = operators.reshape(stored, (n, k))
    if kind == "int4":
        middle = MIDDLE[dtype] if symmetric else 0
        weight = pack_halves(operators.astype(stored + middle, dtype))
    else:
        weight = operators.astype(stored, dtype)
    return weight, operators.reshape(scales, (n, k // each)), zeros


def pack_halves(numbers: Any) -> Any:
    """Return whole numbers from 0 to 15, uint8 (n, k), as `quantized_matmul` takes 4 bits."""
    n, k = numbers.shape
    blocks = operators.reshape(numbers, (n, k // BLOCK, 2, BLOCK // 2))
    low, high = operators.split(blocks, 2, 2)
    both = operators.bitwise_or(low, operators.bitwise_left_shift(high, 4))
    return operators.reshape(both, (n, k // 2))
