"""Views and other arrangements of the elements of one tensor."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import (
    at_least_1d,
    axis_of,
    indices,
    narrowed,
    picked,
    shape_of,
)
from tools.torch_samples.decline import decline_if


def reshape(input: Any, *shape: Any) -> Any:
    """Another shape; to torch a 0 is an extent, to `meta` the extent that there was."""
    wanted = shape_of(*shape)
    if 0 in input.shape and -1 in wanted:
        rest = int(np.prod([d for d in wanted if d != -1]))
        wanted = tuple(input.size // rest if d == -1 else d for d in wanted)
    return meta.reshape(input, wanted)


def squeeze(input: Any, dim: Any = None) -> Any:
    """Remove axes of extent 1; others that are named stay."""
    if dim is None:
        return meta.squeeze(input)
    named = (dim,) if isinstance(dim, int) else tuple(dim)
    axes = {axis_of(input, d) for d in named} if input.ndim else set()
    return meta.squeeze(input, tuple(a for a in sorted(axes) if input.shape[a] == 1))


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merge adjacent axes."""
    if input.ndim == 0:
        return meta.reshape(input, (1,))
    first, last = axis_of(input, start_dim), axis_of(input, end_dim)
    merged = int(np.prod(input.shape[first : last + 1]))
    return reshape(input, (*input.shape[:first], merged, *input.shape[last + 1 :]))


def unflatten(input: Any, dim: int, sizes: Any) -> Any:
    """Take one axis apart."""
    at = axis_of(input, dim)
    inner = np.empty(input.shape[at], bool).reshape(tuple(sizes)).shape
    return reshape(input, (*input.shape[:at], *inner, *input.shape[at + 1 :]))


def expand(input: Any, *shape: Any) -> Any:
    """Repeat axes of extent 1; -1 keeps an extent."""
    wanted = shape_of(*shape)
    own = (1,) * (len(wanted) - input.ndim) + input.shape
    return meta.broadcast_to(
        input, tuple(o if d == -1 else d for o, d in zip(own, wanted, strict=True))
    )


def movedim(input: Any, source: Any, destination: Any) -> Any:
    """Permute axes by naming where some of them go."""
    sources, places = (
        [axis_of(input, a) for a in ((at,) if isinstance(at, int) else at)]
        for at in (source, destination)
    )
    rest = iter([a for a in range(input.ndim) if a not in sources])
    where = dict(zip(places, sources, strict=True))
    order = tuple(where[i] if i in where else next(rest) for i in range(input.ndim))
    return meta.permute_dims(input, order)


def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """Swap two axes."""
    return meta.swapaxes(input, dim0, dim1) if input.ndim else meta.copy(input)


def split_at(input: Any, points: Any, dim: int) -> Any:
    """Cut before the given indices, as numpy counts them; the parts may overlap or be empty."""
    at = axis_of(input, dim)
    extent = input.shape[at]
    bounds = [0, *[min(max(p + extent if p < 0 else p, 0), extent) for p in points], extent]
    if all(a <= b for a, b in pairwise(bounds)):
        return meta.split(input, tuple(bounds[1:-1]), at)
    return tuple(narrowed(input, at, a, max(a, b)) for a, b in pairwise(bounds))


def split(input: Any, sizes: Any, dim: int = 0) -> Any:
    """Cut into parts of one size, the last one perhaps smaller, or of given sizes."""
    extent = input.shape[dim]
    if isinstance(sizes, int):
        return split_at(input, range(sizes, extent, sizes), dim)
    return split_at(input, np.cumsum(sizes)[:-1].tolist(), dim)


def chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    """Cut into a number of parts, or fewer, all but the last of one size."""
    return split(input, max(-(-input.shape[dim] // chunks), 1), dim)


def tensor_split(input: Any, where: Any, dim: int = 0) -> Any:
    """Cut into a number of parts of nearly one size, or before given indices."""
    if hasattr(where, "numpy"):
        where = where.numpy().tolist()
    if isinstance(where, int):
        size, larger = divmod(input.shape[dim], where)
        where = np.cumsum([size + (i < larger) for i in range(where)])[:-1].tolist()
    return split_at(input, where, dim)


def unbind(input: Any, dim: int = 0) -> Any:
    """The slices along an axis, which is gone."""
    if input.shape[dim] == 0:
        return ()
    return tuple(meta.squeeze(part, dim) for part in meta.split(input, None, dim))


def narrow(input: Any, dim: int, start: Any, length: int) -> Any:
    """``length`` elements of an axis from ``start``."""
    begin = int(start)
    begin += input.shape[dim] if begin < 0 else 0
    return narrowed(input, dim, begin, begin + length)


def slice_(input: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """``x[..., start:end:step, ...]`` along one axis."""
    begin, stop, _ = slice(start, end, step).indices(input.shape[dim])
    return narrowed(input, dim, begin, max(begin, stop), step)


def rot90(input: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    """Turn a plane by right angles."""
    a, b = dims
    turns = {
        0: meta.copy,
        1: lambda x: meta.swapaxes(meta.flip(x, (b,)), a, b),
        2: lambda x: meta.flip(x, (a, b)),
        3: lambda x: meta.flip(meta.swapaxes(x, a, b), (b,)),
    }
    return turns[k % 4](input)


def diag(input: Any, diagonal: int = 0) -> Any:
    """The diagonal of a matrix, or a matrix with a diagonal."""
    return meta.diagonal(input, diagonal) if input.ndim == 2 else diag_embed(input, diagonal)


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices with a diagonal, on two new axes."""
    ndim = input.ndim + 1
    a, b = dim1 % ndim, dim2 % ndim
    rows, columns = (input.shape[-1] + abs(offset),) * 2
    others = iter(input.shape[:-1])
    shape = tuple(rows if i == a else columns if i == b else next(others) for i in range(ndim))
    return meta.diagonal_dx(input, shape, offset, a, b)


def unfold(input: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of an axis, the places in a window on a new last axis."""
    x, at = at_least_1d(input), axis_of(input, dimension)
    windows = np.arange(0, x.shape[at] - size + 1, step)[:, None] + np.arange(size)
    taken = meta.take(x, indices(windows), at)
    y = movedim(taken, at + 1, -1)
    return meta.squeeze(y, 0) if input.ndim == 0 else y


def as_strided(input: Any, size: Any, stride: Any, storage_offset: int = 0) -> Any:
    """The elements that strides lead to, counted in row-major order."""
    decline_if(any(s < 0 for s in stride), "a negative stride")
    return meta.take(input, indices(strided_places(size, stride, storage_offset)))


def strided_places(size: Any, stride: Any, offset: int | None) -> Any:
    """Return where in memory strides lead to."""
    places = np.full(tuple(size), offset or 0)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        shape = tuple(extent if i == axis else 1 for i in range(len(size)))
        places = places + (np.arange(extent) * step).reshape(shape)
    return places


def as_strided_scatter(
    input: Any, src: Any, size: Any, stride: Any, storage_offset: int = 0
) -> Any:
    """Elements written where strides lead to, counted in row-major order."""
    decline_if(any(s < 0 for s in stride), "a negative stride")
    places = strided_places(size, stride, storage_offset)
    flat = meta.reshape(input, (-1,))
    y = meta.scatter(flat, 0, indices(places.reshape(-1)), meta.reshape(src, (-1,)))
    return meta.reshape(y, input.shape)


def resized_to(x: Any, ndim: int) -> Any:
    """Return at least so many axes, as atleast_1d and its kin place them."""
    shape = x.shape
    while len(shape) < ndim:
        shape = (*shape, 1) if len(shape) == 2 else (1, *shape)
    return meta.reshape(x, shape) if shape != x.shape else meta.copy(x)


def at_least(ndim: int) -> Any:
    """Return torch's atleast_1d and its kin: of one tensor, several, or a sequence of them."""

    def raised(*tensors: Any) -> Any:
        several = tensors[0] if isinstance(tensors[0], tuple | list) else tensors
        raised = tuple(resized_to(x, ndim) for x in several)
        return raised[0] if len(tensors) == 1 and several is tensors else raised

    return raised


def repeat(input: Any, *reps: Any) -> Any:
    """The whole tensor several times along every axis."""
    return meta.tile(input, shape_of(*reps))


def repeat_interleave(
    input: Any, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    """Every element several times, as often as one number or an index each says."""
    x = meta.reshape(input, (-1,)) if dim is None or input.ndim == 0 else input
    axis = 0 if dim is None else axis_of(input, dim)
    if isinstance(repeats, int):
        return meta.repeat(x, repeats, axis)
    counts = np.broadcast_to(repeats.numpy().reshape(-1), (x.shape[axis],))
    return meta.take(x, indices(np.repeat(np.arange(x.shape[axis]), counts)), axis)


def roll(input: Any, shifts: Any, dims: Any = ()) -> Any:
    """Shift along axes; none named: as if flattened."""
    if input.ndim == 0:
        return meta.copy(input)
    named = (dims,) if isinstance(dims, int) else tuple(dims)
    by = shifts if isinstance(shifts, int) else tuple(shifts)
    return meta.roll(input, by, named or None)


def fftshift(back: bool) -> Any:
    """Return fft.fftshift, or its inverse: the middle of axes comes to the front."""

    def shifted(input: Any, dim: Any = None) -> Any:
        named = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
        by = tuple((input.shape[d] + back) // 2 for d in named)
        return meta.roll(input, by, tuple(named))

    return shifted


def sum_to_size(input: Any, *size: Any) -> Any:
    """Sum over the axes along which a shape would be repeated to the input's."""
    if shape_of(*size) == input.shape and input.ndim:
        return meta.copy(input)
    return meta.collapse_sum_like(input, meta.zeros(shape_of(*size), input.dtype))


def matrix_transposed(input: Any) -> Any:
    """Swap the last two axes."""
    return meta.swapaxes(input, -1, -2)


def reversed_axes(input: Any) -> Any:
    """All axes in reversed order."""
    return meta.permute_dims(input)


def pixel_shuffle(function: Any) -> Any:
    """Return pixel_shuffle or its inverse, which take any leading axes."""

    def shuffled(input: Any, upscale_factor: int = 1, downscale_factor: int = 1) -> Any:
        factor = upscale_factor * downscale_factor
        lead, image = input.shape[:-3], input.shape[-3:]
        y = function(meta.reshape(input, (int(np.prod(lead)), *image)), factor, "NCHW", "CRD")
        return meta.reshape(y, (*lead, *y.shape[1:]))

    return shuffled


def channel_shuffle(input: Any, groups: int) -> Any:
    """Interleave groups of channels."""
    n, c, *rest = input.shape
    y = meta.swapaxes(meta.reshape(input, (n, groups, c // groups, *rest)), 1, 2)
    return meta.reshape(y, input.shape)


ADAPTERS = {
    "H": matrix_transposed,
    "T": reversed_axes,
    "alias_copy": meta.copy,
    "as_strided": as_strided,
    "as_strided_copy": as_strided,
    "as_strided_scatter": as_strided_scatter,
    "atleast_1d": at_least(1),
    "atleast_2d": at_least(2),
    "atleast_3d": at_least(3),
    "broadcast_to": meta.broadcast_to,
    "chunk": chunk,
    "clone": lambda input, *, memory_format=None: meta.copy(input),
    "contiguous": lambda input, *, memory_format=None: meta.copy(input),
    "diag": diag,
    "diag_embed": diag_embed,
    "diagflat": lambda input, offset=0: diag_embed(meta.reshape(input, (-1,)), offset),
    "diagonal": lambda input, offset=0, dim1=0, dim2=1: meta.diagonal(input, offset, dim1, dim2),
    "diagonal_copy": lambda input, offset=0, dim1=0, dim2=1: meta.diagonal(
        input, offset, dim1, dim2
    ),
    "dsplit": lambda input, where: tensor_split(input, where, 2),
    "expand": expand,
    "expand_as": meta.broadcast_to_like,
    "expand_copy": expand,
    "fft.fftshift": fftshift(False),
    "fft.ifftshift": fftshift(True),
    "flatten": flatten,
    "flip": lambda input, dims: meta.flip(input, dims) if input.ndim else meta.copy(input),
    "fliplr": lambda input: meta.flip(input, 1),
    "flipud": lambda input: meta.flip(input, 0),
    "hsplit": lambda input, where: tensor_split(input, where, 1 if input.ndim > 1 else 0),
    "linalg.diagonal": lambda A, *, offset=0, dim1=-2, dim2=-1: meta.diagonal(
        A, offset, dim1, dim2
    ),
    "mH": matrix_transposed,
    "mT": matrix_transposed,
    "movedim": movedim,
    "narrow": narrow,
    "narrow_copy": narrow,
    "nn.functional.channel_shuffle": channel_shuffle,
    "nn.functional.pixel_shuffle": pixel_shuffle(meta.depth_to_space),
    "nn.functional.pixel_unshuffle": pixel_shuffle(meta.space_to_depth),
    "permute": lambda input, *dims: meta.permute_dims(input, shape_of(*dims)),
    "permute_copy": lambda input, *dims: meta.permute_dims(input, shape_of(*dims)),
    "ravel": lambda input: meta.reshape(input, (-1,)),
    "repeat": repeat,
    "repeat_interleave": repeat_interleave,
    "reshape": reshape,
    "reshape_as": lambda input, other: meta.reshape_like(input, other),
    "resize_": lambda input, size: meta.reshape(input, tuple(size)),
    "resize_as_": meta.reshape_like,
    "resolve_conj": meta.copy,
    "resolve_neg": meta.copy,
    "roll": roll,
    "rot90": rot90,
    "select": picked,
    "slice": slice_,
    "split": split,
    "split_with_sizes": split,
    "split_with_sizes_copy": split,
    "split|list_args": split,
    "squeeze": squeeze,
    "squeeze_copy": squeeze,
    "squeeze|multiple": squeeze,
    "sum_to_size": sum_to_size,
    "t": reversed_axes,
    "t_copy": reversed_axes,
    "tensor_split": tensor_split,
    "tile": lambda input, dims: meta.tile(input, dims),
    "trace": lambda input: meta.sum(meta.diagonal(input)),
    "transpose": transpose,
    "transpose_copy": transpose,
    "tril": lambda input, diagonal=0: meta.tril(input, diagonal),
    "triu": lambda input, diagonal=0: meta.triu(input, diagonal),
    "unbind": unbind,
    "unbind_copy": unbind,
    "unflatten": unflatten,
    "unfold": unfold,
    "unfold_copy": unfold,
    "unsafe_chunk": chunk,
    "unsafe_split": split,
    "unsqueeze": meta.expand_dims,
    "unsqueeze_copy": meta.expand_dims,
    "view": reshape,
    "view_as": lambda input, other: meta.reshape_like(input, other),
    "view_copy": reshape,
    "vsplit": lambda input, where: tensor_split(input, where, 0),
    # What torch calls the conjugate and the real part of real numbers is what there is.
    "conj": meta.copy,
    "conj_physical": meta.copy,
    "real": meta.copy,
}
