"""Resizing of signals by interpolation, written with `resize.py`."""

from meta.op.core import Ints, Tensor, op
from meta.op.resize import resized, resized_dx


@op
def resize1d(
    x: Tensor,
    size: Ints,
    layout: str = "NCW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = "",
) -> Tensor:
    """Resize its one spatial axis by interpolation; what is read outside is the nearest edge.

    x: [N, C, W], or as ``layout`` orders these letters; floating point, for "nearest_neighbor" of
    any dtype. size: int or (length,), in elements. Everything else as in `resize2d`.
    Result: x's shape with the new size. Half precision is computed in float32.

    Raises TypeInferError for unknown names, sizes below 1 and an empty spatial axis.
    """
    return resized(
        1, x, size, layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
        cubic_exclude, out_dtype,
    )  # fmt: skip


@op
def resize1d_dx(
    x: Tensor,
    dy: Tensor,
    size: Ints,
    layout: str = "NCW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = "",
) -> Tensor:
    """Gradient of `resize1d`: every sample's dy, spread with its weights over what it read.

    x: the argument of the forward call, of which only the type counts; floating point. dy: gradient
    of the result, of its shape. Other arguments as there. Result: type of x.
    """
    return resized_dx(
        1, x, dy, size, layout, method, coordinate_transformation_mode, rounding_method,
        cubic_alpha, cubic_exclude, out_dtype,
    )  # fmt: skip
