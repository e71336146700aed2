"""ATen operators that TVM's importer does not know, or reads as something else without an error.

Each is a function of a node of torch's graph and of the importer that returns Relax, as the
importer's own are; it is called instead of them. Add one to `OPERATORS`.

TVM's importer takes arrays of positions beside a whole axis (``x[:, i, j]``) for independent of
each other, where torch broadcasts them to each other, and writes only where every axis has one.
Relax indexes leading axes: here others are moved there, and back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from tvm import relax

from meta.frontend.core import Failure, failed
from meta.frontend.relax.registry import RelaxError
from meta.frontend.relax.walker import EMBEDDING


def index(node: Any, importer: Any) -> Any:
    """``x[i, ..., :, j]``."""
    x, at = importer.env[node.args[0]], _positions(node, importer)
    if len(at) == 1:
        return importer._index_tensor(node)
    rest, before = _axes(x.ty.ndim, at)
    leading = _permuted(importer, x, [*at, *rest])
    found = importer.block_builder.emit(relax.op.index_tensor(leading, [*at.values()]))
    width = found.ty.ndim - len(rest)
    every = range(found.ty.ndim)
    order = [*every[width : width + before], *every[:width], *every[width + before :]]
    return _permuted(importer, found, order)


def index_put(node: Any, importer: Any) -> Any:
    """``x[i, ..., :, j] = values``, or ``+=``."""
    emit = importer.block_builder.emit
    x, at = importer.env[node.args[0]], _positions(node, importer)
    rest, before = _axes(x.ty.ndim, at)
    # Relax wants positions for every axis: for whole ones, all that there are.
    extents = [x.ty.shape.values[a] for a in rest]
    positions = [
        emit(relax.op.reshape(i, [*i.ty.shape.values, *(1 for _ in rest)])) for i in at.values()
    ]
    for k, extent in enumerate(extents):
        every = emit(relax.op.arange(0, extent, 1, "int64"))
        positions.append(emit(relax.op.reshape(every, [extent, *(1 for _ in rest[k + 1 :])])))
    indexed = _broadcast([i.ty.shape.values for i in at.values()])
    shape = [*extents[:before], *indexed, *extents[before:]]
    values = emit(relax.op.broadcast_to(importer.env[node.args[2]], shape))
    axes = range(len(shape))
    order = [*axes[before : before + len(indexed)], *axes[:before], *axes[before + len(indexed) :]]
    accumulate = node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False)
    moved = [*at, *rest]
    written = relax.op.index_put(
        _permuted(importer, x, moved),
        relax.Tuple(positions),
        _permuted(importer, values, order),
        accumulate,
    )
    return _permuted(importer, emit(written), [moved.index(a) for a in range(x.ty.ndim)])


def _positions(node: Any, importer: Any) -> dict[int, Any]:
    """Return the arrays of positions by axis."""
    return {a: importer.env[i] for a, i in enumerate(node.args[1]) if i is not None}


def _axes(ndim: int, at: Collection[int]) -> tuple[list[int], int]:
    """Return the axes without positions, and how many of them are before the positions' axes in
    torch's result: those of positions are first unless the axes indexed are neighbours.
    """
    neighbours = max(at) - min(at) + 1 == len(at)
    return [a for a in range(ndim) if a not in at], min(at) if neighbours else 0


def _broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the extents that shapes have together."""
    ndim = max(map(len, shapes))
    extents: list[Any] = [1] * ndim
    for shape in shapes:
        for k, extent in enumerate(shape, ndim - len(shape)):
            if getattr(extent, "value", extent) != 1:
                extents[k] = extent
    return extents


def _permuted(importer: Any, x: Any, axes: Sequence[int]) -> Any:
    if list(axes) == sorted(axes):
        return x
    return importer.block_builder.emit(relax.op.permute_dims(x, list(axes)))


def _refused(node: Any, why: str, hint: str) -> RelaxError:
    """Return the error for a call that is not converted."""
    return failed([Failure(str(node.target), why, place=node.name)], RelaxError, hint)


def _dtype(node: Any) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _embedding(node: Any, importer: Any) -> Any:
    """The importer leaves out the row of padding, which gets no gradient; so would Relax."""
    weight, indices = (importer.env[n] for n in node.args[:2])
    padding = node.args[2] if len(node.args) > 2 else -1
    shape = [*indices.ty.shape.values, *weight.ty.shape.values[1:]]
    return importer.block_builder.emit(
        relax.Call(
            relax.ExternFunc(EMBEDDING),
            [weight, indices, relax.prim_value(padding)],
            ty_args=[relax.TensorType(shape, weight.ty.dtype)],
        )
    )


def _extremum(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        stated = dict(zip(("dim", "keepdim"), node.args[1:], strict=False))
        options = {**node.kwargs, **stated}
        axes = list(options.get("dim") or ()) or None
        x = importer.env[node.args[0]]
        return importer.block_builder.emit(function(x, axes, options.get("keepdim", False)))

    return convert


def _arithmetic(function: Callable[..., Any], swapped: bool = False) -> Callable[[Any, Any], Any]:
    """The importer computes in the dtype of the first operand, and leaves out ``alpha``."""

    def convert(node: Any, importer: Any) -> Any:
        dtype = _dtype(node)
        emit = importer.block_builder.emit

        def tensor(value: Any) -> Any:
            if isinstance(value, torch.fx.Node):
                value = importer.env[value]
            if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
                return relax.const(value, dtype)
            return value if value.ty.dtype == dtype else emit(relax.op.astype(value, dtype))

        a, b = map(tensor, node.args[:2])
        alpha = node.args[2] if len(node.args) > 2 else node.kwargs.get("alpha", 1)
        if swapped:
            a, b = b, a
            a = a if alpha == 1 else emit(relax.op.multiply(a, relax.const(alpha, dtype)))
        elif alpha != 1:
            b = emit(relax.op.multiply(b, relax.const(alpha, dtype)))
        return emit(function(a, b))

    return convert


def _arange(node: Any, importer: Any) -> Any:
    """TVM gives a type of another extent to what counts down; this is counted up, negated."""
    start, end, step = (*node.args, 1)[:3]
    if not isinstance(step, int | float) or step > 0:
        return importer._arange(node)
    dtype, emit = _dtype(node), importer.block_builder.emit
    signed = dtype if "float" in dtype else "int64"
    bounds = (-importer.env.get(v, v) for v in (start, end))
    up = emit(relax.op.arange(*bounds, -step, dtype=signed))
    return emit(relax.op.astype(emit(relax.op.negative(up)), dtype))


def _cumsum(node: Any, importer: Any) -> Any:
    """The importer does not widen integers."""
    dtype = _dtype(node)
    x = importer.block_builder.emit(relax.op.astype(importer.env[node.args[0]], dtype))
    return importer.block_builder.emit(relax.op.cumsum(x, node.args[1]))


def _elu(node: Any, importer: Any) -> Any:
    """The importer leaves out both scales, and so is wrong about selu."""
    given: tuple[float, ...] = node.args[1:]
    alpha, scale, input_scale = (*given, *(1.0, 1.0, 1.0)[len(given) :])
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype = x.ty.dtype

    def times(value: Any, factor: float) -> Any:
        return emit(relax.op.multiply(value, relax.const(factor, dtype)))

    below = emit(relax.op.minimum(x, relax.const(0.0, dtype)))
    curve = emit(relax.op.exp(below if input_scale == 1 else times(below, input_scale)))
    negative = times(emit(relax.op.subtract(curve, relax.const(1.0, dtype))), alpha * scale)
    positive = times(emit(relax.op.nn.relu(x)), scale)
    return emit(relax.op.add(positive, negative))


def _avg_pool2d(node: Any, importer: Any) -> Any:
    """The importer leaves out the divisor."""
    if len(node.args) > 6 and node.args[6] is not None:
        raise _refused(
            node, "its divisor_override is not supported", "multiply the mean of a window instead"
        )
    return importer._avg_pool2d(node)


def _max_pool2d(node: Any, importer: Any) -> Any:
    """The importer gives zeros for the places of the maxima."""
    used = [u for u in node.users if u.target is not operator.getitem or u.args[1] != 0]
    if any(u.users for u in used):
        raise _refused(node, "the indices of the maxima are not supported", "return_indices=False")
    return importer._max_pool2d_with_indices(node)


def _resized(node: Any, scales: Any) -> tuple[int, ...]:
    """Return the new extents; the importer takes scales for their quotients, which they are not
    where an extent is rounded.
    """
    given, wanted = (tuple(n.meta["val"].shape[2:]) for n in (node.args[0], node))
    if not all(isinstance(e, int) for e in (*given, *wanted)):
        raise _refused(
            node, "resizing an image whose extents vary is not supported", "export one size"
        )
    if scales and any(e * s != w for e, s, w in zip(given, scales, wanted, strict=True)):
        raise _refused(
            node, "resizing by scales that give no whole extents is not supported", "state size="
        )
    return wanted


def _upsample(name: str) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        _resized(node, node.args[3] if len(node.args) > 3 else None)
        return getattr(importer, name)(node)

    return convert


def _upsample_nearest2d(node: Any, importer: Any) -> Any:
    """Element ``floor(o * extent / new extent)``; the importer takes the nearest to a centre."""
    wanted = _resized(node, node.args[2] if len(node.args) > 2 else None)
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
    raise _refused(node, "filtering before resizing is not supported", "antialias=False")


_ARITHMETIC = {
    "add": _arithmetic(relax.op.add),
    "div": _arithmetic(relax.op.divide),
    "mul": _arithmetic(relax.op.multiply),
    "rsub": _arithmetic(relax.op.subtract, swapped=True),
    "sub": _arithmetic(relax.op.subtract),
}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"{name}.{kind}": f for name, f in _ARITHMETIC.items() for kind in ("Scalar", "Tensor")},
    "_upsample_bilinear2d_aa.default": _filtered,
    "amax.default": _extremum(relax.op.max),
    "amin.default": _extremum(relax.op.min),
    "arange.start_step": _arange,
    "avg_pool2d.default": _avg_pool2d,
    "cumsum.default": _cumsum,
    "elu.default": _elu,
    "embedding.default": _embedding,
    "grid_sampler_2d.default": _grid_sampler_2d,
    "index.Tensor": index,
    "index_put.default": index_put,
    "max_pool2d_with_indices.default": _max_pool2d,
    "mean.dim": _mean,
    "upsample_bicubic2d.vec": _upsample("_upsample_bicubic2d"),
    "upsample_bilinear2d.vec": _upsample("_upsample_bilinear2d"),
    "upsample_nearest2d.vec": _upsample_nearest2d,
}
"""By the importer's name of an operator, the function that is called."""


aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's own, but for those below."""
    table = torch.export.default_decompositions()
    table[aten._scaled_dot_product_flash_attention_for_cpu.default] = _attention
    return table


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result lies in memory as the query does, and views behind it were exported for
    that; the result of torch's decomposition always has the axes (tokens, batch, heads, width).
    """
    y, weights = aten._scaled_dot_product_attention_math.default(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    order = sorted(range(4), key=query.stride, reverse=True)
    if order == [0, 1, 2, 3]:
        return y, weights
    return y.permute(order).contiguous().permute([order.index(a) for a in range(4)]), weights
