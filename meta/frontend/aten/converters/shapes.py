"""Views: shapes, order and number of axes; what only passes a tensor on, or copies it; shapes as
numbers.

In the programs that are converted nothing is written to, so a view is a value like any other.
"""

from itertools import accumulate
from math import prod

import torch

from meta import op
from meta.base.dtype import COMPLEX, UNSIGNED, bits, is_real
from meta.frontend.aten.arguments import (
    at_least_1d,
    axis_of,
    cast_or_take_real,
    real_dtype,
    require_strided,
    restore_0d,
)
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible, constant_value
from meta.ir.dims import UnknownDim, product
from meta.op.core.check import broadcast_shapes


def reshaped(x, shape):
    """An extent that only the run time knows is inferred, if it is the only one."""
    found = tuple(-1 if isinstance(d, UnknownDim) else d for d in shape)
    if sum(type(d) is int and d == -1 for d in found) > 1:
        raise Unconvertible("it has several extents that only the run time knows")
    return op.reshape(x, found)


@aten("_reshape_alias", "_reshape_alias_copy", op.reshape, ignore=("stride",))
@aten("view", "view_copy", "_unsafe_view", "_reshape_copy", op.reshape)
def view(x, *, size):
    return reshaped(x, size)


@aten("reshape", op.reshape)
def reshape(x, *, shape):
    return reshaped(x, shape)


@aten("view_as", "reshape_as", op.reshape)
def reshape_as(x, other):
    return op.reshape_like(x, other)


@aten("ravel", op.reshape)
def ravel(x):
    return op.reshape(x, (product(x.shape),))


@aten("flatten.using_ints", op.reshape)
def flatten(x, *, start_dim, end_dim):
    x = at_least_1d(x)
    first, last = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    merged = product(x.shape[first : last + 1])
    return reshaped(x, (*x.shape[:first], merged, *x.shape[last + 1 :]))


@aten("unflatten.int", op.reshape)
def unflatten(x, *, dim, sizes):
    at = axis_of(dim, x.ndim)
    return reshaped(x, (*x.shape[:at], *sizes, *x.shape[at + 1 :]))


@aten("expand", "expand_copy", op.broadcast_to, ignore=("implicit",))
def expand(x, *, size):
    own = (1,) * (len(size) - x.ndim) + tuple(x.shape)
    wanted = (d if type(w) is int and w == -1 else w for w, d in zip(size, own, strict=True))
    return op.broadcast_to(x, tuple(wanted))


@aten("broadcast_to", op.broadcast_to)
def broadcast_to(x, *, size):
    return expand(x, size=size)


@aten("expand_as", op.broadcast_to)
def expand_as(x, other):
    return op.broadcast_to_like(x, other)


@aten("broadcast_tensors", op.broadcast_to)
def broadcast_tensors(tensors):
    shape = broadcast_shapes(*(tuple(t.shape) for t in tensors))
    return tuple(op.broadcast_to(t, shape) for t in tensors)


@aten("permute", "permute_copy", op.permute_dims)
def permute(x, *, dims):
    return op.permute_dims(x, dims)


def exchanged(x, first, second):
    return x if x.ndim == 0 else op.swapaxes(x, first, second)


@aten("transpose.int", "transpose_copy.int", "swapdims", op.swapaxes)
def transpose(x, *, dim0, dim1):
    return exchanged(x, dim0, dim1)


@aten("swapaxes", op.swapaxes)
def swapaxes(x, *, axis0, axis1):
    return exchanged(x, axis0, axis1)


@aten("t", "t_copy", op.swapaxes)
def t(x):
    return op.swapaxes(x, 0, 1) if x.ndim == 2 else x


@aten("numpy_T", op.permute_dims)
def numpy_t(x):
    return op.permute_dims(x)


@aten("mT", op.swapaxes)
def matrix_transpose(x):
    return op.swapaxes(x, -2, -1)


@aten("mH", "adjoint", "matrix_H", op.swapaxes, op.conj)
def adjoint(x):
    x = op.swapaxes(x, -2, -1) if x.ndim else x
    return op.conj(x) if x.dtype in COMPLEX else x


@aten("movedim.int", "moveaxis.int", "movedim.intlist", "moveaxis.intlist", op.permute_dims)
def movedim(x, *, source, destination):
    return x if x.ndim == 0 else op.moveaxis(x, source, destination)


@aten("squeeze", "squeeze_copy", op.squeeze)
def squeeze(x):
    return op.squeeze(x)


@aten("squeeze.dim", "squeeze.dims", "squeeze_copy.dim", "squeeze_copy.dims", op.squeeze)
def squeeze_dims(x, *, dim):
    dims = (dim,) if isinstance(dim, int) else dim
    axes = tuple(a for a in (axis_of(d, x.ndim) for d in dims) if a < x.ndim and x.shape[a] == 1)
    return op.squeeze(x, axes) if axes else x


@aten("unsqueeze", "unsqueeze_copy", op.expand_dims)
def unsqueeze(x, *, dim):
    return op.expand_dims(x, dim)


def at_least(x, ndim):
    """x with axes of extent 1: a vector is a row, a matrix is one with a last axis."""
    shapes = {0: (1,) * ndim, 1: (*(1,) * min(ndim - 1, 1), *x.shape, *(1,) * (ndim - 2))}
    shape = shapes.get(x.ndim, (*x.shape, 1))
    return x if x.ndim >= ndim else op.reshape(x, shape)


def _register_at_least(ndim):
    @aten(f"atleast_{ndim}d", op.reshape)
    def of_one(x):
        return at_least(x, ndim)

    @aten(f"atleast_{ndim}d.Sequence", op.reshape)
    def of_all(tensors):
        return tuple(at_least(x, ndim) for x in tensors)


for _ndim in (1, 2, 3):
    _register_at_least(_ndim)


@aten("pixel_shuffle", op.reshape, op.permute_dims)
def pixel_shuffle(x, *, upscale_factor):
    """[..., C * r * r, H, W] to [..., C, H * r, W * r] (Shi et al., arXiv:1609.05158)."""
    r, (*lead, c, h, w) = upscale_factor, x.shape
    n = len(lead)
    y = op.reshape(x, (*lead, c // r**2, r, r, h, w))
    y = op.permute_dims(y, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return op.reshape(y, (*lead, c // r**2, h * r, w * r))


@aten("pixel_unshuffle", op.reshape, op.permute_dims)
def pixel_unshuffle(x, *, downscale_factor):
    r, (*lead, c, h, w) = downscale_factor, x.shape
    n = len(lead)
    y = op.reshape(x, (*lead, c, h // r, r, w // r, r))
    y = op.permute_dims(y, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return op.reshape(y, (*lead, c * r**2, h // r, w // r))


@aten("channel_shuffle", "native_channel_shuffle", op.reshape, op.swapaxes)
def channel_shuffle(x, *, groups):
    n, c, *rest = x.shape
    y = op.swapaxes(op.reshape(x, (n, groups, c // groups, *rest)), 1, 2)
    return op.reshape(y, tuple(x.shape))


# What passes a tensor on.


@aten("contiguous", ignore=("memory_format",))
@aten("pin_memory", "_pin_memory", ignore=("device",))
@aten("alias", "detach", "lift", "lift_fresh", "positive", "resolve_conj", "resolve_neg", "data")
def alias(x):
    return x


@aten("to_dense", "_to_dense", op.astype, ignore=("masked_grad",))
def to_dense(x, *, dtype):
    return cast_or_take_real(x, dtype)


@aten("clone", op.copy, ignore=("memory_format",))
@aten("alias_copy", "detach_copy", "lift_fresh_copy", "_lazy_clone", op.copy)
def copied(x):
    return op.copy(x)


@aten("copy", op.broadcast_to, ignore=("non_blocking",))
def copy(x, source):
    return op.broadcast_to(cast_or_take_real(source, x.dtype), tuple(x.shape))


PLACEMENT = ("device", "non_blocking", "pin_memory", "memory_format")
"""Where a result lies and how: a program runs where it is asked to."""


@aten("_to_copy", op.astype, op.copy, ignore=PLACEMENT)
def to_copy(x, *, dtype, layout):
    require_strided(layout)
    return op.copy(x) if dtype in (None, x.dtype) else cast_or_take_real(x, dtype)


# What a graph of `dynamic=True` has for numbers that a module keeps.
@aten("prims.convert_element_type", op.astype, op.copy)
def convert_element_type(x, *, dtype):
    return moved(x, dtype, copy=True)


def moved(x, dtype, copy):
    return op.copy(x) if copy and dtype in (None, x.dtype) else cast_or_take_real(x, dtype)


@aten("to.device", op.astype, ignore=("device", "non_blocking", "memory_format"))
@aten("to.dtype", op.astype, ignore=("non_blocking", "memory_format"))
def to_dtype(x, *, dtype, copy):
    return moved(x, dtype, copy)


@aten("to.dtype_layout", op.astype, ignore=PLACEMENT)
def to_dtype_layout(x, *, dtype, layout, copy):
    require_strided(layout)
    return moved(x, dtype, copy)


@aten("to.other", op.astype, ignore=("non_blocking", "memory_format"))
def to_other(x, other, *, copy):
    return moved(x, other.dtype, copy)


@aten("type_as", op.astype)
def type_as(x, other):
    return cast_or_take_real(x, other.dtype)


def _register_cast(name, dtype):
    @aten(f"_cast_{name}", op.astype, ignore=("non_blocking",))
    def cast(x):
        return cast_or_take_real(x, dtype)


_CASTS = {"Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64"}
_CASTS |= {"Half": "float16", "Float": "float32", "Double": "float64"}
for _name, _dtype in _CASTS.items():
    _register_cast(_name, _dtype)


aten.refuse("chalf", why="torch.complex32 is no dtype here")


@aten("view_as_real", "view_as_real_copy", op.stack, op.real, op.imag)
def view_as_real(x):
    return op.stack((op.real(x), op.imag(x)), -1)


@aten("view_as_complex", "view_as_complex_copy", op.complex)
def view_as_complex(x):
    if x.dtype not in ("float32", "float64"):
        raise Unconvertible(f"complex numbers of {x.dtype} are no dtype here")
    real, imag = op.split(x, 2, -1)
    return op.complex(op.squeeze(real, -1), op.squeeze(imag, -1))


@aten("view.dtype", "view_copy.dtype", op.reinterpret)
def view_dtype(x, *, dtype):
    """The bits, read as another dtype of the same width; complex numbers also as their parts."""
    if dtype == x.dtype:
        return x
    if real_dtype(x.dtype) == dtype:
        pairs = view_as_real(at_least_1d(x))
        return op.reshape(pairs, (*pairs.shape[:-2], pairs.shape[-2] * 2))
    if real_dtype(dtype) == x.dtype:
        *lead, last = x.shape
        return view_as_complex(op.reshape(x, (*lead, last // 2, 2)))
    if "bool" in (dtype, x.dtype) or bits(dtype) != bits(x.dtype) or x.dtype in COMPLEX:
        raise Unconvertible(f"the bits of {x.dtype} cannot be read as {dtype}")
    return op.reinterpret(x, dtype)


@aten("flatten_dense_tensors", op.concat)
def flatten_dense_tensors(tensors):
    return op.concat(tuple(op.reshape(t, (product(t.shape),)) for t in tensors), 0)


@aten("unflatten_dense_tensors", op.reshape, op.split)
def unflatten_dense_tensors(flat, tensors):
    ends = tuple(accumulate(prod(t.shape) for t in tensors))[:-1]
    parts = op.split(flat, ends, 0) if ends else (flat,)
    return tuple(op.reshape(p, tuple(t.shape)) for p, t in zip(parts, tensors, strict=True))


@aten("unfold", "unfold_copy", op.take)
def unfold(x, *, dimension, size, step, call):
    """Windows along an axis; their elements are on a new last axis."""
    wide = at_least_1d(x)
    at = axis_of(dimension, wide.ndim)
    y = op.take(wide, windows(wide.shape[at], size, step, call), at)
    y = op.moveaxis(y, at + 1, -1)
    return op.reshape(y, (size,)) if x.ndim == 0 else y


def windows(extent, size, step, call):
    """The places that windows read: [windows, size]."""
    if not isinstance(extent, int):
        raise Unconvertible(f"windows along an axis of the extent {extent} are not supported")
    starts = op.arange(0, extent - size + 1, step, "int64", str(call.device))
    steps = op.arange(0, size, 1, "int64", str(call.device))
    return op.add(op.expand_dims(starts, 1), op.expand_dims(steps, 0))


@aten("unfold_backward", op.take_dx)
def unfold_backward(dy, *, input_sizes, dim, size, step, call):
    x = op.zeros(input_sizes, dy.dtype, str(call.device))
    if not input_sizes:
        return op.reshape(dy, ())
    at = axis_of(dim, len(input_sizes))
    places = windows(input_sizes[at], size, step, call)
    shape = (*input_sizes[:at], places.shape[0], *input_sizes[at + 1 :], size)
    dy = op.moveaxis(op.broadcast_to(dy, shape), -1, at + 1)  # istft gives one row for all
    return restore_0d(op.take_dx(x, dy, places, at), x)


# Shapes as numbers: what a program asks of its tensors' types.


@aten("sym_size.int", "size.int")
def size_along(x, *, dim):
    return x.shape[axis_of(dim, x.ndim)]


@aten("sym_size", "size")
def size(x):
    return tuple(x.shape)


@aten("sym_numel", "numel")
def numel(x):
    return product(x.shape)


@aten("dim")
def dim(x):
    return x.ndim


def row_major(shape):
    """The strides of a compact tensor, which the walker has made sure of."""
    return tuple(product((1, *shape[i + 1 :])) for i in range(len(shape)))


@aten("sym_stride", "stride")
def strides(x):
    return row_major(x.shape)


@aten("sym_stride.int", "stride.int")
def stride_along(x, *, dim):
    return row_major(x.shape)[axis_of(dim, x.ndim)]


@aten("sym_storage_offset", "storage_offset")
def storage_offset(_x):
    return 0


@aten("is_contiguous", "is_non_overlapping_and_dense")
def is_contiguous(_x):
    return True


@aten("sym_is_contiguous", "is_contiguous.memory_format")
def is_contiguous_as(_x, *, memory_format):
    if memory_format not in (torch.contiguous_format, torch.preserve_format, 0):
        raise Unconvertible(f"how a tensor lies in memory is not known: {memory_format}")
    return True


@aten("is_floating_point")
def is_floating_point(x):
    return is_real(x.dtype)


@aten("is_complex")
def is_complex(x):
    return x.dtype in COMPLEX


@aten("is_signed")
def is_signed(x):
    return x.dtype != "bool" and x.dtype not in UNSIGNED


@aten("is_same_size")
def is_same_size(x, y):
    return tuple(x.shape) == tuple(y.shape)


@aten("is_conj", "is_neg", "is_inference", "_is_zerotensor")
def is_lazy(_x):
    return False


@aten("item", "_local_scalar_dense")
def item(x):
    """A number that follows from constants; others only the run time knows."""
    now = constant_value(x)
    if now is None:
        raise Unconvertible(
            "a number of Python's depends on the values of inputs",
            hint="compute with the tensor, or give it as a constant",
        )
    return now.item()


@aten("is_nonzero")
def is_nonzero(x):
    return bool(item(x))


@aten("_shape_as_tensor", op.shape_as_tensor)
def shape_as_tensor(x):
    return op.shape_as_tensor(x)
