"""ATen operators that TVM's importer does not know, or reads as something else without an error.

Each is a function of a node of torch's graph and of the importer that returns Relax, as the
importer's own are; it is called instead of them. Add one to `OPERATORS`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tvm import relax


def _extremum(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        stated = dict(zip(("dim", "keepdim"), node.args[1:], strict=False))
        options = {**node.kwargs, **stated}
        axes = list(options.get("dim") or ()) or None
        x = importer.env[node.args[0]]
        return importer.block_builder.emit(function(x, axes, options.get("keepdim", False)))

    return convert


def _max_pool2d(node: Any, importer: Any) -> Any:
    """The importer gives zeros for the places of the maxima."""
    used = [u for u in node.users if u.target is not operator.getitem or u.args[1] != 0]
    if any(u.users for u in used):
        raise NotImplementedError("the indices of max_pool2d are not supported")
    return importer._max_pool2d_with_indices(node)


def _upsample_nearest2d(node: Any, importer: Any) -> Any:
    """Element ``floor(o * extent / new extent)``; the importer takes the nearest to a centre."""
    given, wanted = (tuple(n.meta["val"].shape[2:]) for n in (node.args[0], node))
    scales = node.args[2] if len(node.args) > 2 else node.kwargs.get("scale_factors")
    if not all(isinstance(e, int) for e in (*given, *wanted)):
        raise NotImplementedError("upsample_nearest2d of a size that varies is not supported")
    if scales and any(e * s != w for e, s, w in zip(given, scales, wanted, strict=True)):
        raise NotImplementedError("upsample_nearest2d by scales without whole extents")
    return importer.block_builder.emit(
        relax.op.image.resize2d(
            importer.env[node.args[0]],
            wanted,
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    )


def _grid_sampler_2d(node: Any, importer: Any) -> Any:
    """The importer hands on the grid as it is; in Relax its positions are along axis 1."""
    x, grid = (importer.env[n] for n in node.args[:2])
    method, padding_mode, align_corners = node.args[2:]
    builder = importer.block_builder
    return builder.emit(
        relax.op.image.grid_sample(
            x,
            builder.emit(relax.op.permute_dims(grid, [0, 3, 1, 2])),
            method=("bilinear", "nearest", "bicubic")[method],
            layout="NCHW",
            padding_mode=("zeros", "border", "reflection")[padding_mode],
            align_corners=align_corners,
        )
    )


def _mean(node: Any, importer: Any) -> Any:
    """No axes are all of them in torch, and none in Relax."""
    if len(node.args) > 1 and not node.args[1]:
        node.args = (node.args[0], None, *node.args[2:])
    return importer._mean(node)


def _filtered(node: Any, importer: Any) -> Any:
    """The importer leaves out the filter."""
    raise NotImplementedError(f"filtering before resizing ({node.target}) is not supported")


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "_upsample_bilinear2d_aa.default": _filtered,
    "amax.default": _extremum(relax.op.max),
    "amin.default": _extremum(relax.op.min),
    "grid_sampler_2d.default": _grid_sampler_2d,
    "max_pool2d_with_indices.default": _max_pool2d,
    "mean.dim": _mean,
    "upsample_nearest2d.vec": _upsample_nearest2d,
}
"""By the importer's name of an operator, the function that is called."""
