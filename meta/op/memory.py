"""Operators that move elements between buffers and devices without changing them. Add one here."""

from itertools import accumulate, pairwise
from math import prod

from meta.base.device import Device
from meta.base.device import require as require_device
from meta.base.errors import DeviceError
from meta.op.core import CallValues, DeviceName, InOut, Ints, Tensor, TensorType, op
from meta.op.core.axes import last
from meta.op.core.check import require, require_like, require_ndim, require_same_dtype
from meta.op.shapes import view_of_first


@op
def fuse_tensor(data: tuple[Tensor, ...]) -> Tensor:
    """The elements of several tensors, one tensor after the other, in one vector.

    data: at least one tensor; any shapes, one dtype. Result: shape (sum of their sizes,).
    `defuse_tensor` undoes it. TypeInferError for no tensor or different dtypes.
    """
    require(len(data) > 0, "data is empty", expected="at least one tensor")
    require_same_dtype(*data)
    return TensorType((sum(prod(t.static_shape) for t in data),), data[0].dtype)


def fused_layout(
    tensors: tuple[TensorType, ...],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return ``sizes, shapes, shape_indices`` with which `defuse_tensor` returns these tensors."""
    sizes = tuple(prod(t.static_shape) for t in tensors)
    shapes = tuple(d for t in tensors for d in t.static_shape)
    return sizes, shapes, tuple(accumulate(t.ndim for t in tensors))


@op
def defuse_tensor(
    data: Tensor, sizes: Ints, shapes: Ints, shape_indices: Ints
) -> tuple[Tensor, ...]:
    """Several tensors out of one vector, which lies in their order in it. Undoes `fuse_tensor`.

    data: shape (sum of sizes,), any dtype. sizes: number of elements of each tensor. shapes: the
    extents of all of them, one tensor's after the other's. shape_indices: for each tensor, where
    in ``shapes`` its extents end. An int is a tuple of one.
    Example: sizes (6, 1), shapes (2, 3), shape_indices (2, 2) are a matrix and a scalar.
    Result: a tuple of tensors with memory of their own. TypeInferError where these do not fit.
    """
    require_ndim(data, 1, "data")
    counts, extents, ends = (
        (v,) if isinstance(v, int) else v for v in (sizes, shapes, shape_indices)
    )
    found = f"sizes={counts}, shapes={extents}, shape_indices={ends}"
    require(len(counts) > 0, "there is no tensor to make", expected="at least one size")
    require(
        len(ends) == len(counts),
        f"{len(counts)} sizes and {len(ends)} shape_indices",
        expected="one of each per tensor",
        found=found,
    )
    fits = all(a <= b for a, b in pairwise((0, *ends))) and ends[-1] == len(extents)
    expected = f"indices that ascend to {len(extents)}, the number of extents"
    require(fits, "shape_indices do not cut shapes into parts", expected=expected, found=found)
    parts = tuple(extents[a:b] for a, b in pairwise((0, *ends)))
    for size, part in zip(counts, parts, strict=True):
        fits = all(d >= 0 for d in part) and prod(part) == size
        require(fits, f"a tensor of shape {list(part)} does not have {size} elements", found=found)
    fits = data.shape[0] == sum(counts) or not data.is_static
    expected = f"{sum(counts)}, the sum of sizes"
    require(fits, "data has another number of elements", expected=expected, found=str(data))
    return tuple(data.with_shape(part) for part in parts)


@op(axes=last(data=0), float8=True)
def device_copy(
    data: Tensor, src_device: DeviceName = "cpu", dst_device: DeviceName = "cpu"
) -> Tensor:
    """A copy of ``data`` on another device, or on the same one.

    data: any shape and dtype. src_device: where it is. dst_device: where the result is to be; both
    "cpu" or "cuda:N". The gradient is copied back.
    Raises DeviceError if ``data`` is not on src_device, if a device is not present, and where a
    program that is compiled for one device is to hold an array on another.
    """
    return data


@device_copy.declare
def _to_destination(call: CallValues) -> None:
    call.out_device = Device(call.args.dst_device)


def require_devices(call: CallValues) -> None:
    """Raise DeviceError unless `device_copy` finds its argument and its destination."""
    if call.device != call.args.src_device:
        raise DeviceError(
            "the array to copy is on another device than src_device",
            op=call.op.name,
            expected=call.args.src_device,
            found=call.device,
        )
    require_device(call.args.dst_device)


@op
def optimization_barrier(x: Tensor, after: tuple[Tensor, ...]) -> Tensor:
    """``x`` itself, which counts as known only when all of ``after`` are. A view.

    What is computed from the result is not computed before them, and is another value to passes
    than what is computed from ``x``, so that the two are not merged: `meta.model.checkpoint`
    computes a value again this way, late. x, after: any shapes and dtypes.
    """
    return x


optimization_barrier.declare(view_of_first)


@op(complex=True, axes=last(x=0, value=0))
def assign(x: InOut, value: Tensor) -> tuple[()]:
    """Overwrite ``x`` with ``value``, in place: what a model's array that traced code sets becomes.

    x: any shape and dtype. value: of x's type. Returns x, the array that was given. TypeInferError
    for a value of another type.
    """
    require_like(value, x, "value does not fit")
    return ()
