"""Sampling of images at given positions. Add one here."""

from meta.ir.types import TensorType
from meta.op.core import Tensor, op
from meta.op.core.check import require, require_float, require_ndim
from meta.op.core.same_dtype import require_same_dtype

METHODS = ("bilinear", "nearest", "bicubic")
PADDING_MODES = ("zeros", "border", "reflection")


@op
def grid_sample(
    x: Tensor,
    grid: Tensor,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Sample an image or a volume at the positions in ``grid`` (Jaderberg et al., Spatial
    Transformer Networks, 2015).

    x: [N, C, H, W] or [N, C, D, H, W], floating point. grid: [N, height, width, 2] or [N, depth,
    height, width, 3] of x's dtype; a position is (x, y) or (x, y, z), the last axis of x first, and
    -1 and 1 are its ends: the centres of the first and the last element with align_corners, their
    outer edges without.
    method: "bilinear" between the 2 elements per axis around the position (in a volume too),
    "nearest" (halves to even), or, in images, "bicubic" between 4 by the kernel of Keys (1981) with
    parameter -0.75. padding_mode: what is read outside: "zeros"; "border", the nearest element;
    "reflection", the image mirrored at its ends as often as needed.
    A position that is NaN or infinite: in images, "bicubic" samples, and "bilinear" ones with
    "zeros", are NaN; otherwise "zeros" reads 0, "border" the element at that end, or the first for
    NaN, and "reflection" the first. In volumes "border" and "reflection" read the last one in the
    place of the first. (So does torch on the CPU; on CUDA it differs.)
    Result: [N, C, height, width], or [N, C, depth, height, width]. Half precision is computed in
    float32.

    As torch's grid_sample and ONNX's GridSample. Raises TypeInferError for other ranks, unknown
    names and empty images.
    """
    require_float(x, "x")
    require_same_dtype(x, grid)
    require(x.ndim in (4, 5), "x is no image and no volume", expected="4 or 5 axes", found=str(x))
    require_ndim(grid, x.ndim, "grid")
    for name, value, names in (
        ("method", method, METHODS),
        ("padding_mode", padding_mode, PADDING_MODES),
    ):
        require(value in names, f"{name} is not known", expected=", ".join(names), found=value)
    require(
        x.ndim == 4 or method != "bicubic", "bicubic is for images", expected="4 axes", found=str(x)
    )
    fits = grid.shape[-1] == x.ndim - 2 or not isinstance(grid.shape[-1], int)
    fits = fits and (grid.shape[0] == x.shape[0] or not (x.is_static and grid.is_static))
    require(
        fits, "grid does not fit x", expected=f"[{x.shape[0]}, ..., {x.ndim - 2}]", found=str(grid)
    )
    filled = all(extent != 0 for extent in x.shape[2:])
    require(filled, "there is nothing to sample", expected="extents of 1 or more", found=str(x))
    return TensorType((x.shape[0], x.shape[1], *grid.shape[1:-1]), x.dtype)
