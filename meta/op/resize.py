"""Resizing and sampling of images."""

from typing import Any

from meta import op as operators
from meta.base import dtype as dtypes
from meta.base.errors import ArgumentError
from meta.ir.types import UNKNOWN, Dim, TensorType
from meta.op.core import Ints, Op, Tensor, op
from meta.op.core.axes import images, terms
from meta.op.core.check import pair, require, require_float, require_ndim, require_same_dtype
from meta.op.core.function import as_operand, function
from meta.op.core.resample import sampling, upsampled
from meta.op.core.window import DATA, fill_docstring, layout_permutation


def resize_type(
    count: int,
    x: Tensor,
    size: Ints,
    layout: str,
    method: str,
    mode: str,
    rounding: str,
    alpha: float,
    exclude: int,
    out_dtype: str,
) -> Tensor:
    """Check the arguments of a resize of ``count`` spatial axes; return its type."""
    require_ndim(x, count + 2, "x")
    layout_permutation(layout, DATA[count], "layout")
    if method != "nearest_neighbor":
        require_float(x, "x")
    extents = pair(size, "size", count)
    shape: list[Dim] = list(x.shape)
    for letter, out in zip(DATA[count][2:], extents, strict=True):
        axis = layout.index(letter)
        extent = shape[axis]
        known = extent if isinstance(extent, int) else 1
        sampling(known, out, method, mode, rounding, alpha, exclude)
        shape[axis] = out
    dtype = dtypes.canonical(out_dtype) if out_dtype else x.dtype
    floats = dtypes.is_float(x.dtype) == dtypes.is_float(dtype)
    require(floats, "out_dtype is of another kind than x", expected=x.dtype, found=dtype)
    return x.with_shape(tuple(shape)).with_dtype(dtype)


def _resizing(n: int) -> Op:
    data = DATA[n]

    @op(name=f"resize{n}d", axes=images("x"))
    @fill_docstring(n)
    def resize(
        x: Tensor,
        size: Ints,
        layout: str = data,
        method: str = "linear",
        coordinate_transformation_mode: str = "half_pixel",
        rounding_method: str = "",
        cubic_alpha: float = -0.5,
        cubic_exclude: int = 0,
        out_dtype: str = "",
    ) -> Tensor:
        """Resize the spatial axes by interpolation; what is read outside is the nearest edge.

        x: [{shape}], or as ``layout`` orders these letters; floating point, for "nearest_neighbor"
        of any dtype. size: of the spatial axes {axes}, in elements; one int for all, or each.
        method: "nearest_neighbor"; "linear", between the 2 nearest elements of each axis; "cubic",
        between 4, by the kernel of Keys (1981) with parameter cubic_alpha (-0.5 his own, -0.75
        torch's). cubic_exclude: if not 0, elements outside have weight 0 and the others are scaled
        to the sum 1.
        coordinate_transformation_mode: where sample o of n lies on an axis of size m: "half_pixel"
        (o + 0.5) * m / n - 0.5; "align_corners" o * (m - 1) / (n - 1); "asymmetric" o * m / n;
        "pytorch_half_pixel" as half_pixel, but 0 where n is 1; "tf_half_pixel_for_nn"
        (o + 0.5) * m / n. As in ONNX's Resize.
        rounding_method: of "nearest_neighbor": "floor", "ceil", "round" (halves up),
        "round_prefer_ceil", "round_prefer_floor"; "" is "round" for align_corners, else "floor".
        out_dtype: dtype of the result; "" is that of x.
        Result: x's shape with the new size. Half precision is computed in float32.

        Raises TypeInferError for unknown names, sizes below 1 and an empty spatial axis.
        """
        return resize_type(
            n, x, size, layout, method, coordinate_transformation_mode, rounding_method,
            cubic_alpha, cubic_exclude, out_dtype,
        )  # fmt: skip

    @op(name=f"resize{n}d_dx", axes=images("x", "dy"), options=resize)
    @fill_docstring(n)
    def resize_dx(x: Tensor, dy: Tensor, *options: Any) -> Tensor:
        """Gradient of `resize{n}d`: every sample's dy, spread with its weights over what it read.

        x: the argument of the forward call, of which only the type counts; floating point. dy:
        gradient of the result, of its shape. Other arguments as there. Result: type of x.
        """
        require_float(x, "x")
        require_float(dy, "dy")
        y = resize_type(n, x, *options)
        fits = dy.shape == y.shape or not (dy.is_static and y.is_static)
        require(fits, "dy does not fit", expected=list(y.shape), found=str(dy))
        return x

    return resize


_, resize2d, _ = map(_resizing, DATA)


@op(axes=images("x"))
def upsampling(
    x: Tensor,
    scale_h: float = 1.0,
    scale_w: float = 1.0,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
) -> Tensor:
    """`resize2d` to round(scale_h * H) by round(scale_w * W).

    method: "nearest_neighbor", "bilinear" or "bicubic" (with alpha -0.5; "linear" and "cubic" name
    them too). align_corners: the coordinate mode "align_corners", else "asymmetric", as TVM's
    operator of this name has it. x, layout and the result as in `resize2d`.
    """
    require_ndim(x, 4, "x")
    layout_permutation(layout, "NCHW", "layout")
    axes = [layout.index(letter) for letter in "HW"]
    sizes = tuple(d if isinstance(d, int) else 1 for d in (x.shape[a] for a in axes))
    for extent, scale in zip(sizes, (scale_h, scale_w), strict=True):
        fits = abs(extent * scale) < 2**63
        expected = "a finite number that gives less than 2**63 elements"
        require(fits, "no extent follows from the scale", expected=expected, found=scale)
    size, method, mode = upsampled(sizes, (scale_h, scale_w), method, align_corners)
    y = resize_type(2, x, size, layout, method, mode, "", -0.5, 0, "")
    # How an extent grows that is not a number depends on how it is rounded.
    unknown = [a for a in axes if not isinstance(x.shape[a], int)]
    return y.with_shape(tuple(UNKNOWN if i in unknown else d for i, d in enumerate(y.shape)))


SAMPLING_MODES = ("bilinear", "nearest", "bicubic")


PADDING_MODES = ("zeros", "border", "reflection")


@op(axes=terms("x=nc grid=n -> nc"))
def grid_sample(
    x: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Sample an image or a volume at the positions in ``grid`` (Jaderberg et al., Spatial
    Transformer Networks, 2015).

    x: [N, C, H, W] or [N, C, D, H, W], floating point. grid: [N, height, width, 2] or [N, depth,
    height, width, 3] of x's dtype; a position is (x, y) or (x, y, z), the last axis of x first, and
    -1 and 1 are its ends: the centres of the first and the last element with align_corners, their
    outer edges without.
    mode: "bilinear" between the 2 elements per axis around the position (in a volume too),
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
        ("mode", mode, SAMPLING_MODES),
        ("padding_mode", padding_mode, PADDING_MODES),
    ):
        require(value in names, f"{name} is not known", expected=", ".join(names), found=value)
    require(
        x.ndim == 4 or mode != "bicubic", "bicubic is for images", expected="4 axes", found=str(x)
    )
    fits = grid.shape[-1] == x.ndim - 2 or not isinstance(grid.shape[-1], int)
    fits = fits and (grid.shape[0] == x.shape[0] or not (x.is_static and grid.is_static))
    require(
        fits, "grid does not fit x", expected=f"[{x.shape[0]}, ..., {x.ndim - 2}]", found=str(grid)
    )
    filled = all(extent != 0 for extent in x.shape[2:])
    require(filled, "there is nothing to sample", expected="extents of 1 or more", found=str(x))
    return TensorType((x.shape[0], x.shape[1], *grid.shape[1:-1]), x.dtype)


@op(axes=terms("x=nc grid=n dy=nc -> nc n"), options=grid_sample)
def grid_sample_dx(
    x: Tensor, grid: Tensor, dy: Tensor, *options: Any
) -> tuple[TensorType, TensorType]:
    """Gradients of `grid_sample`: (dx, dgrid), of the types of x and grid. dy: that of the result.

    At positions that are NaN or infinite they are those of ATen on the device.
    """
    y = grid_sample.type_function(x, grid, *options)
    require_same_dtype(x, dy)
    fits = dy.shape == y.shape or not (dy.is_static and y.is_static)
    require(fits, "dy does not fit", expected=list(y.shape), found=str(dy))
    return x, grid


_MODES = {
    "nearest": ("nearest_neighbor", "asymmetric"),
    "nearest-exact": ("nearest_neighbor", "tf_half_pixel_for_nn"),
    "linear": ("linear", "half_pixel"),
    "bilinear": ("linear", "half_pixel"),
    "trilinear": ("linear", "half_pixel"),
    "bicubic": ("cubic", "half_pixel"),
}
_RANK = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
"""Spatial axes of the modes that are for one number of them."""


@function
def interpolate(
    x: Any,
    size: int | tuple[int, ...] | None = None,
    scale_factor: float | tuple[float, ...] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Any:
    """Resize the spatial axes of ``x``, as torch.nn.functional.interpolate does.

    x: [n, c, w], [n, c, h, w] or [n, c, d, h, w]. size: of the spatial axes; or scale_factor, by
    which their extents are multiplied. mode: "nearest", "nearest-exact", "area", and "linear",
    "bilinear", "bicubic" or "trilinear" for 1, 2, 2 and 3 spatial axes. align_corners: the centres
    of the corner elements are at the same places before and after; not for "nearest" and "area".
    Raises ArgumentError unless one of size and scale_factor is given, and for a scale that gives a
    broken size: kernels differ in where they then sample.

    >>> meta.interpolate(meta.ones((1, 3, 4, 4)), scale_factor=2).shape
    (1, 3, 8, 8)
    """
    x = as_operand(x)
    count = x.ndim - 2
    if count not in (1, 2, 3):
        raise ArgumentError("interpolate takes 1 to 3 spatial axes", found=f"shape {x.shape}")
    if (size is None) == (scale_factor is None):
        raise ArgumentError("give one of size and scale_factor", found=f"{size}, {scale_factor}")
    if mode != "area" and (mode not in _MODES or _RANK.get(mode, count) != count):
        known = [m for m in _MODES if _RANK.get(m, count) == count]
        expected = ", ".join([*known, "area"])
        raise ArgumentError("unknown mode for these axes", expected=expected, found=mode)
    if align_corners and mode not in _RANK:
        raise ArgumentError("align_corners is not defined for this mode", found=mode)
    extents = size if size is not None else _scaled(x.shape[2:], scale_factor)
    if mode == "area":
        average = getattr(operators, f"adaptive_avg_pool{count}d")
        return average(x, extents)
    method, coordinates = _MODES[mode]
    return getattr(operators, f"resize{count}d")(
        x,
        extents,
        method=method,
        coordinate_transformation_mode="align_corners" if align_corners else coordinates,
        rounding_method="floor" if method == "nearest_neighbor" else "",
        cubic_alpha=-0.75,
    )


def _scaled(extents: tuple[int, ...], scale: Any) -> tuple[int, ...]:
    """Return extents times scales; ArgumentError unless they are whole."""
    factors = tuple(scale) if isinstance(scale, tuple | list) else (scale,) * len(extents)
    if len(factors) != len(extents):
        raise ArgumentError("one factor for each spatial axis", found=scale)
    sizes = [e * f for e, f in zip(extents, factors, strict=True)]
    if any(s != int(s) for s in sizes):
        raise ArgumentError("the scaled size is broken", found=sizes, hint="pass size=")
    return tuple(int(s) for s in sizes)
