"""Converters of operators on images."""

from __future__ import annotations

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import number_in
from meta.frontend.relax.converters.movement import numbers
from meta.frontend.relax.registry import relax
from meta.op.core.op import Op
from meta.runtime.ndarray import array

PAD_MODES = {
    "constant": "constant",
    "edge": "edge",
    "reflect": "reflect",
    "replicate": "edge",
    "symmetric": "symmetric",
}


@relax("nn.pad", op.pad)
def pad(x, *, pad_width, pad_value, pad_mode):
    pairs = list(zip(pad_width[::2], pad_width[1::2], strict=True))
    return padded(x, pairs, pad_value, pad_mode)


def padded(x, pairs: list[tuple[int, int]], value, mode: str):
    """Pad by (before, after) for each axis; negative numbers cut off."""
    if any(min(p) < 0 for p in pairs):
        begin = tuple(max(-b, 0) for b, _ in pairs)
        end = tuple(e - max(-a, 0) for e, (_, a) in zip(x.shape, pairs, strict=True))
        x = op.strided_slice(x, begin, end)
        pairs = [(max(b, 0), max(a, 0)) for b, a in pairs]
    if mode == "circular":
        return _circular(x, pairs)
    if mode not in PAD_MODES:
        raise Unconvertible(f"the padding mode {mode!r} is not supported")
    widths = tuple(n for p in pairs for n in p)
    return op.pad(x, widths, number_in(value, x.dtype), PAD_MODES[mode])


def _circular(x, pairs: list[tuple[int, int]]):
    for axis, (before, after) in enumerate(pairs):
        if not before and not after:
            continue
        extent = x.shape[axis]
        if max(before, after) > extent:
            raise Unconvertible(f"circular padding of {extent} elements by {before}, {after}")
        lead = (0,) * axis
        ends = tuple(x.shape[:axis])
        parts = [
            op.strided_slice(x, (*lead, extent - before), (*ends, extent)),
            x,
            op.strided_slice(x, (*lead, 0), (*ends, after)),
        ]
        x = op.concatenate(tuple(p for p in parts if p.shape[axis]), axis)
    return x


def _resizing(name: str, function: Op) -> None:
    @relax(name, function)
    def resize(
        x,
        size,
        *,
        roi,
        layout,
        method,
        coordinate_transformation_mode,
        rounding_method,
        cubic_alpha,
        cubic_exclude,
        extrapolation_value,
        out_dtype,
    ):
        """Region and value outside are those of "tf_crop_and_resize" alone."""
        del roi, extrapolation_value
        return function(
            x,
            tuple(numbers(size, "the size of an image")),
            layout,
            method,
            coordinate_transformation_mode,
            rounding_method,
            cubic_alpha,
            cubic_exclude,
            out_dtype or "",
        )


_resizing("image.resize2d", op.resize2d)
_resizing("image.resize3d", op.resize3d)


@relax("image.grid_sample", op.grid_sample)
def grid_sample(x, grid, *, method, layout, padding_mode, align_corners):
    """The grid has its positions along axis 1."""
    if layout not in ("NCHW", "NCDHW"):
        raise Unconvertible(f"the layout {layout!r} is not supported", hint="NCHW or NCDHW")
    last = op.transpose(grid, (0, *range(2, grid.ndim), 1))
    return op.grid_sample(x, last, method, padding_mode, align_corners)


@relax("image.affine_grid", op.matmul)
def affine_grid(x, size, *, align_corners, call):
    """Positions [N, axes, ...] of a grid from -1 to 1, by matrices [N, axes, axes + 1]: of the
    first and last elements with align_corners, of outer edges without.
    """
    extents = tuple(numbers(size, "the size of a grid"))
    planes = np.meshgrid(*(_centres(e, align_corners) for e in extents), indexing="ij")
    rows = np.stack([p.reshape(-1) for p in (*planes[::-1], np.ones(extents))])
    places = x @ array(rows, x.dtype, device=call.device)
    return op.reshape(places, (x.shape[0], len(extents), *extents))


def _centres(extent: int, align_corners: bool):
    if align_corners:
        return np.linspace(-1.0, 1.0, extent)
    return (2.0 * np.arange(extent) + 1.0) / extent - 1.0
