"""Converters of operators that rearrange, repeat, join and pad tensors or reverse sequences, of
Fourier transforms, and of what TVM's compiler puts into programs: marks, which are the identity,
and what is not converted, with the reason.

The shape codes of reshape: 0 copies an extent, -1 infers one, -2 copies all that are left, -3
merges the next two, and -4 splits the next one into the two that follow, one of which may be -1.

Layouts that TVM's auto-scheduler writes, "4N32C2c", list extents, each with the axis's name, which
has letters only. An axis that the target splits stands there several times, outermost first.
"""

from __future__ import annotations

import re
from collections import deque
from math import prod, sqrt

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import (
    SLICE_END,
    as_integers,
    constant,
    constant_ints,
    constant_number,
    extent_of,
    is_static,
    vector,
)
from meta.frontend.core.arithmetic import cast_number, cast_to
from meta.frontend.core.operators import meshgrid
from meta.frontend.relay.layout import change_layout
from meta.frontend.relay.registry import relay
from meta.ir.dims import UnknownDim, product


def resolved_shape(shape, codes, *, allowzero=False, reverse=False):
    """Return the extents that ``codes`` stand for; -1 is one to be inferred, as is one that is
    unknown. Unconvertible for codes that do not fit the shape.

    shape: of the data; anything that multiplies and divides will do. allowzero: a 0 is an extent.
    reverse: codes are matched from the last axis.
    """
    if reverse:
        return resolved_shape(tuple(shape)[::-1], tuple(codes)[::-1], allowzero=allowzero)[::-1]
    what = f"reshape of {list(shape)} by {list(codes)}"
    left, rest, result = deque(shape), deque(codes), []

    def axis():
        if not left:
            raise Unconvertible(f"{what}: there is no axis left to copy")
        return left.popleft()

    while rest:
        code = rest.popleft()
        if code == 0 and not allowzero:
            result.append(axis())
        elif code == -2:
            result += left
            left.clear()
        elif code == -3:
            result.append(product((axis(), axis())))
        elif code == -4:
            whole = axis()
            if len(rest) < 2:
                raise Unconvertible(f"{what}: two extents have to follow -4")
            result += _halves(whole, rest.popleft(), rest.popleft(), what)
        elif code < -4:
            raise Unconvertible(f"{what}: {code} is no code")
        else:
            result.append(code)
            if left:
                left.popleft()
    return tuple(-1 if isinstance(d, UnknownDim) else d for d in result)


def _halves(whole, first, second, what):
    """Return the two extents that an axis is split into."""
    if first == -1 == second or min(first, second) < -1 or 0 in (first, second):
        raise Unconvertible(f"{what}: -4 cannot split into {first} and {second}")
    if isinstance(whole, UnknownDim):
        return first, second
    if first == -1:
        return whole // second, second
    return first, whole // first if second == -1 else second


_AXIS = re.compile(r"([0-9]{1,12})([A-Za-z]+)")


def _read(layout):
    found = list(_AXIS.finditer(layout))
    if not found or "".join(m[0] for m in found) != layout:
        raise Unconvertible(f"{layout!r} is no layout of the auto-scheduler", hint='"4N32C"')
    return [(int(m[1]), m[2]) for m in found]


@relay("auto_scheduler_layout_transform", op.reshape, op.permute_dims)
def change_tuning_layout(x, *, src_layout, dst_layout):
    """Axes of the source are whole."""
    old, new = _read(src_layout), _read(dst_layout)
    names = [name for _, name in old]
    extents = [[d for d, n in new if n == name] for name in names]
    fits = all(prod(e) == d for e, (d, _) in zip(extents, old, strict=True) if e)
    if len(set(names)) != len(names) or {n for _, n in new} != set(names) or not fits:
        raise Unconvertible(f"the layouts {src_layout!r} and {dst_layout!r} do not fit each other")
    x = op.reshape(x, tuple(d for e in extents for d in e))
    places: dict[str, list[int]] = {}
    at = 0
    for name, parts in zip(names, extents, strict=True):
        places[name] = list(range(at, at + len(parts)))
        at += len(parts)
    order = tuple(places[name].pop(0) for _, name in new)
    return x if order == tuple(range(at)) else op.permute_dims(x, order)


@relay("reshape", op.reshape, op.dynamic_reshape)
def reshape(data, *, newshape, allowzero, reverse, call):
    """By shape codes; ``reverse`` (TVM 0.6) matches them from the last axis."""
    codes = newshape or ()
    options = {"allowzero": allowzero, "reverse": reverse}
    shape = resolved_shape(data.shape, codes, **options)
    numbers = [d for d in shape if isinstance(d, int)]
    copied = tuple(i for i, code in enumerate(codes) if code == 0)
    # Of no elements, and of several unknown extents, nothing can be inferred otherwise.
    undecided = numbers.count(-1) > 1 or {-1, 0} <= set(numbers)
    if undecided and copied and min(codes) >= -1 and not (reverse or allowzero):
        return op.reshape.plain(data, shape, copied)
    if numbers.count(-1) <= 1:
        return op.reshape(data, shape)
    if all(not isinstance(d, UnknownDim) for d in data.shape):
        raise Unconvertible(f"reshape by {list(codes)}: only one extent can be inferred")
    extents = [extent_of(data, i) for i in range(data.ndim)]
    shape = resolved_shape(extents, codes, **options)
    return op.dynamic_reshape(data, vector(shape, call))


@relay("contrib_reverse_reshape", "_contrib_reverse_reshape", op.reshape, ignore=("reverse",))
def reverse_reshape(data, *, newshape, allowzero, call):
    """By shape codes that are matched from the last axis."""
    return reshape(data, newshape=newshape, allowzero=allowzero, reverse=True, call=call)


@relay("reshape_like", op.reshape, op.reshape_like)
def reshape_like(data, shape_like, *, lhs_begin, lhs_end, rhs_begin, rhs_end):
    """Axes [lhs_begin, lhs_end) of the data get the extents [rhs_begin, rhs_end) of the other."""
    if not (lhs_begin or rhs_begin) and lhs_end is None and rhs_end is None:
        return op.reshape_like(data, shape_like)
    left = slice(lhs_begin or 0, lhs_end).indices(data.ndim)
    right = slice(rhs_begin or 0, rhs_end).indices(shape_like.ndim)
    kept = shape_like.shape[right[0] : right[1]]
    return op.reshape(data, (*data.shape[: left[0]], *kept, *data.shape[left[1] :]))


@relay("transpose", op.permute_dims)
def transpose(data, *, axes):
    """Without axes their order is reversed."""
    return op.permute_dims(data, axes or None)


# Without an axis the first one.
relay.same("reverse", op.flip, otherwise={"axis": 0})

_SAME = """
adv_index broadcast_to_like dft expand_dims repeat squeeze stack tile
"""
for _name in _SAME.split():
    relay.same(_name, getattr(op, _name))
relay.same("concatenate", op.concat)
relay.same("broadcast_to", op.broadcast_to, ignore=("dtype",))
relay("meshgrid", op.reshape, op.broadcast_to)(meshgrid)


@relay("collapse_sum_to", op.sum, op.reshape, ignore=("shape", "dtype"))
def collapse_sum_to(data, shape):
    """Summed to a shape that broadcasts to that of the data, in the dtype of the data."""
    extents = constant_ints(shape)
    if extents is None:
        raise Unconvertible("the shape to sum to is not known while converting")
    lead = data.ndim - len(extents)
    axes = tuple(
        a
        for a, d in enumerate(data.shape)
        if a < lead or (extents[a - lead] == 1 and not (isinstance(d, int) and d == 1))
    )
    summed = cast_to(op.sum(data, axes, True), data.dtype) if axes else data
    return op.reshape(summed, extents)


@relay("einsum", op.einsum)
def einsum(data, *, equation):
    return op.einsum(equation.replace(" ", ""), *data)


@relay("layout_transform", op.reshape, op.permute_dims, op.pad)
def layout_transform(data, *, src_layout, dst_layout):
    return change_layout(data, src_layout, dst_layout)


relay.refuse(
    "meta_schedule_layout_transform",
    why="its index map is a tensor expression that a tuner made; save the model before tuning",
)


@relay("shape_of", "vm.shape_of", op.shape_as_tensor)
def shape_of(data, *, dtype, call):
    """The extents as a vector, known while converting if they are."""
    stated = dtype or ("int64" if call.name == "vm.shape_of" else "int32")
    if is_static(data.shape):
        return constant(data.shape, stated, call)
    return cast_to(op.shape_as_tensor(data), stated)


@relay("ndarray_size", "contrib.ndarray_size", op.shape_as_tensor, op.prod)
def ndarray_size(data, *, dtype, call):
    """The number of elements, as a scalar."""
    stated = dtype or "int32"
    if is_static(data.shape):
        return constant(data.size, stated, call)
    return cast_to(op.prod(op.shape_as_tensor(data)), stated)


@relay("nn.pad", op.pad)
def pad(data, pad_val=None, *, pad_width, pad_mode, pad_value):
    """The value is an attribute up to TVM 0.7, later a second tensor."""
    if pad_mode != "constant":
        return op.pad.plain(data, pad_width, pad_mode=pad_mode)
    value = pad_val if pad_value is None else pad_value
    if value is None:
        return op.pad.plain(data, pad_width)
    number = value if isinstance(value, int | float) else constant_number(value)
    if number is not None:
        return op.pad.plain(data, pad_width, cast_number(number, data.dtype))
    inside = op.pad.plain(op.ones_like(op.astype(data, "bool")), pad_width, False)
    value = cast_to(op.reshape(value, (1,) * data.ndim), data.dtype)
    return op.where(inside, op.pad.plain(data, pad_width), value)


@relay("nn.mirror_pad", op.pad)
def mirror_pad(data, *, pad_width, mode):
    return op.pad.plain(data, pad_width, pad_mode=mode.lower())


@relay("nn.dilate", op.pad)
def dilate(x, *, strides, dilation_value):
    """Each element is followed by strides - 1 values along its axes, but for the last ones."""
    split = tuple(n for extent in x.shape for n in (extent, 1))
    widths = tuple(n for s in strides for n in (0, 0, 0, s - 1))
    spread = op.pad.plain(op.reshape(x, split), widths, cast_number(dilation_value, x.dtype))
    spread = op.reshape(spread, tuple(n * s for n, s in zip(x.shape, strides, strict=True)))
    ends = tuple(
        SLICE_END if s == 1 else n * s - (s - 1) for n, s in zip(x.shape, strides, strict=True)
    )
    return op.strided_slice(spread, (0,) * x.ndim, ends)


@relay("sequence_mask", op.sequence_mask)
def sequence_mask(data, valid_length, *, mask_value, axis):
    """Positions are on axis 0 or 1, the batch on the other."""
    value = cast_number(mask_value, data.dtype)
    return op.sequence_mask(data, as_integers(valid_length), value, axis)


@relay("reverse_sequence", op.reverse_sequence)
def reverse_sequence(data, seq_lengths, *, seq_axis, batch_axis):
    """Only as far as each sequence goes."""
    axis = 1 if seq_axis is None else seq_axis
    return op.reverse_sequence(data, as_integers(seq_lengths), axis, batch_axis or 0)


@relay("stft", op.take, op.dft, op.stack)
def stft(data, window, *, n_fft, hop_length, win_length, normalized, onesided, call):
    """Transforms of frames, [batch, frequencies, frames, 2]; a vector has no batch.

    Frames are as long as the window, and begin at multiples of the hop, as far as ``n_fft``
    elements are left.
    """
    extent = data.shape[-1]
    if not 0 < win_length <= n_fft <= extent or hop_length < 1 or window.shape != (win_length,):
        raise Unconvertible(
            f"n_fft={n_fft}, win_length={win_length}, hop_length={hop_length} do not fit a signal "
            f"of {extent} and a window of {window.shape}"
        )
    device = str(call.device)
    count = (extent - n_fft) // hop_length + 1
    starts = op.arange(0, count * hop_length, hop_length, dtype="int32", device=device)
    steps = op.arange(0, win_length, 1, dtype="int32", device=device)
    places = op.add(op.expand_dims(starts, 1), steps)
    frames = op.multiply(op.take(data, places, -1), window)
    re, im = op.dft(frames, op.zeros_like(frames))
    rows = n_fft // 2 + 1 if onesided else n_fft
    if rows != win_length:
        # Frequencies are multiples of that of the window: behind the last one they repeat.
        numbers = op.arange(0, rows, 1, dtype="int32", device=device)
        chosen = op.remainder(numbers, win_length)
        re, im = op.take(re, chosen, -1), op.take(im, chosen, -1)
    both = op.swapaxes(op.stack((re, im), -1), -2, -3)
    return op.divide(both, sqrt(n_fft)) if normalized else both


_DEVICES = ("constrain_body", "constrain_result", "virtual_device", "device_type", "is_fixed")
_COPY = ("dst_virtual_device", "src_virtual_device", "src_dev_type", "dst_dev_type")


@relay("copy", *(f"annotation.{mark}" for mark in ("bitpack_end", "bitpack_start", "cast_hint")))
@relay(*(f"annotation.{mark}" for mark in ("checkpoint", "stop_fusion", "with_funcid")))
# What TVM would hand to another compiler: here the program stays one.
@relay("annotation.compiler_begin", "annotation.compiler_end", ignore=("compiler",))
# The function that TVM would call is of the process that wrote the file.
@relay("debug", ignore=("debug_func",))
# The whole program runs on one device, which is chosen where it is run, not in its file.
@relay("on_device", ignore=_DEVICES)
@relay("device_copy", ignore=_COPY)
def identity(data):
    """Marks for passes of TVM."""
    return data


_COMPILED = "it calls what TVM has compiled; save the model before relay.build, or before lowering"
REFUSED = {
    "call_lowered memory.invoke_tvm_op vm.invoke_tvm_op memory.shape_func vm.shape_func": _COMPILED,
    "memory.alloc_storage memory.alloc_tensor memory.kill": "memory is planned in it by TVM; save "
    "the model before relay.vm.compile",
    "torch_op": "it holds a function of PyTorch as a pickle, which is code and is not run",
    "parser.MetaRef": "it is a reference that TVM's parser replaces; it is in no program that was "
    "read",
    "contrib.ethosu.binary_elementwise contrib.ethosu.conv2d contrib.ethosu.depthwise_conv2d "
    "contrib.ethosu.identity contrib.ethosu.pooling contrib.ethosu.unary_elementwise": "it is an "
    "instruction of the Ethos-U processor with packed weights; save the model before it is "
    "partitioned for that processor",
}
for _names, _why in REFUSED.items():
    relay.refuse(*_names.split(), why=_why)
