"""Converters of operators on images."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relax.registry import relax

PAD_MODES = {
    "constant": "constant",
    "edge": "edge",
    "reflect": "reflect",
    "replicate": "edge",
    "symmetric": "symmetric",
}


@relax("nn.pad", op.pad)
def pad(x: Any, *, pad_width: tuple[int, ...], pad_value: float, pad_mode: str) -> Any:
    pairs = list(zip(pad_width[::2], pad_width[1::2], strict=True))
    return padded(x, pairs, pad_value, pad_mode)


def padded(x: Any, pairs: list[tuple[int, int]], value: Any, mode: str) -> Any:
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
    return op.pad(x, tuple(n for p in pairs for n in p), value, PAD_MODES[mode])


def _circular(x: Any, pairs: list[tuple[int, int]]) -> Any:
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


@relax("image.resize2d", op.resize2d)
def resize2d(
    x: Any,
    size: Any,
    *,
    roi: tuple[float, ...],
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
    rounding_method: str,
    cubic_alpha: float,
    cubic_exclude: int,
    extrapolation_value: float,
    out_dtype: str,
) -> Any:
    """Region and value outside are those of "tf_crop_and_resize" alone."""
    del roi, extrapolation_value
    return op.resize2d(
        x,
        tuple(size),
        layout,
        method,
        coordinate_transformation_mode,
        rounding_method,
        cubic_alpha,
        cubic_exclude,
        out_dtype or "",
    )


@relax("image.resize3d", op.resize2d)
def resize3d(
    x: Any,
    size: Any,
    *,
    roi: tuple[float, ...],
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
    rounding_method: str,
    cubic_alpha: float,
    cubic_exclude: int,
    extrapolation_value: float,
    out_dtype: str,
) -> Any:
    """Interpolation is one axis after the other: height and width first, then depth."""
    del roi, extrapolation_value
    if layout != "NCDHW":
        raise Unconvertible(f"resize3d in layout {layout} is not supported", hint="NCDHW")
    options = (
        "NCHW",
        method,
        coordinate_transformation_mode,
        rounding_method,
        cubic_alpha,
        cubic_exclude,
        out_dtype or "",
    )
    n, c, d, h, w = x.shape
    depth, height, width = size
    y = x
    if (height, width) != (h, w):
        y = op.resize2d(op.reshape(y, (n * c, d, h, w)), (height, width), *options)
    if depth != d:
        rows = op.reshape(y, (n * c, d, height * width))
        rows = op.expand_dims(op.transpose(rows, (0, 2, 1)), 3)
        rows = op.resize2d(rows, (depth, 1), *options)
        y = op.transpose(op.squeeze(rows, 3), (0, 2, 1))
    return op.reshape(y, (n, c, depth, height, width))
