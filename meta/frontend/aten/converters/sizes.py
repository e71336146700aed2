"""Shapes as numbers: what a program asks of its tensors' types."""

import torch

from meta import op
from meta.base.dtype import COMPLEX, UNSIGNED, is_real
from meta.frontend.aten.arguments import axis_of
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible, constant_value
from meta.ir.dims import product


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
