"""Products of integers and fixed-point numbers: how quantized networks scale. Add one here.

A fixed-point number is ``multiplier * 2**(shift - 31)``, both int32; 2**30 <= multiplier < 2**31
for one that is normalised. Jacob et al., "Quantization and training of neural networks for
efficient integer-arithmetic-only inference", CVPR 2018, section 2.2.
"""

from meta.op.core import Scalar, Tensor, TensorType, op
from meta.op.core.check import broadcast_shapes, require, shape_of
from meta.op.core.same_dtype import require_same_dtype

ROUNDINGS = ("upward", "nearest")


@op
def fixed_point_multiply(
    x: Tensor, multiplier: Scalar | Tensor, shift: Scalar | Tensor, rounding: str = "upward"
) -> Tensor:
    """x * multiplier * 2**(shift - 31), rounded to a whole number.

    x, multiplier, shift: int32, broadcast against one another; the last two may be numbers. The
    result is int32, exact where that can hold it, for shifts up to 31.
    rounding: where halves go: "upward" (-1.5 to -1) or "nearest", away from 0 (-1.5 to -2).
    Raises TypeInferError for other dtypes or roundings, or shapes that do not broadcast.
    """
    require(x.dtype == "int32", "x must be int32", expected="int32", found=str(x))
    require_same_dtype(x, multiplier, shift)
    require(
        rounding in ROUNDINGS, "unknown rounding", expected=" or ".join(ROUNDINGS), found=rounding
    )
    return TensorType(broadcast_shapes(x.shape, shape_of(multiplier), shape_of(shift)), "int32")


@op
def fixed_point_number(x: Tensor) -> tuple[Tensor, Tensor]:
    """The normalised fixed-point numbers nearest to x, halves away from 0: (multiplier, shift).

    x: finite, not subnormal, float64 of any shape. Results: int32 of its shape; 0 gives 0 and 0.
    Raises TypeInferError for other dtypes.
    """
    require(x.dtype == "float64", "x must be float64", expected="float64", found=str(x))
    return x.with_dtype("int32"), x.with_dtype("int32")
