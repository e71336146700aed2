"""Padding on ATen, axis by axis, for any number of axes and any dtype."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.init import fill
from meta.dialect.torch.operands import wide
from meta.op.core.padding import pad_pairs, read_at
from meta.op.padding import MIRRORS


def _source(before, after, extent, mode, device):
    """Return which element of an axis each place of the padded axis reads."""
    place = torch.arange(-before, extent + after, device=device)
    return read_at(
        place,
        extent,
        mode,
        lambda a, b: a.minimum(torch.as_tensor(b, device=device)),
        lambda a, b: a.maximum(torch.as_tensor(b, device=device)),
    )


@dialect.kernel(op.pad)
def pad(x, pad_width, pad_value, pad_mode, out):
    pairs = pad_pairs(pad_width, x.ndim)
    if pad_mode != "constant":
        out.copy_(repeated(x, pairs, pad_mode))
        return
    fill(pad_value, out)
    inner(out, pairs, x.shape).copy_(x)


def inner(padded, pairs, shape):
    """Return what is not padding, a view."""
    for axis, ((before, _), extent) in enumerate(zip(pairs, shape, strict=True)):
        padded = padded.narrow(axis, before, extent)
    return padded


def repeated(x, pairs, mode):
    """Return ``x`` with its own elements around it."""
    for axis, pair in enumerate(pairs):
        if any(pair):
            x = x.index_select(axis, _source(*pair, x.shape[axis], mode, x.device))
    return x


@dialect.kernel(op.mirror_pad)
def mirror_pad(x, pad_width, mode, out):
    out.copy_(repeated(x, pad_pairs(pad_width, x.ndim), MIRRORS[mode]))


@dialect.kernel(op.pad_dx)
def pad_dx(dy, pad_width, pad_mode, out):
    pairs = pad_pairs(pad_width, dy.ndim)
    if pad_mode == "constant":
        out.copy_(inner(dy, pairs, out.shape))
        return
    total = dy.to(wide(dy.dtype)) if dy.dtype.is_floating_point else dy
    for axis, (pair, extent) in enumerate(zip(pairs, out.shape, strict=True)):
        if any(pair):
            shape = (*total.shape[:axis], extent, *total.shape[axis + 1 :])
            source = _source(*pair, extent, pad_mode, dy.device)
            total = total.new_zeros(shape).index_add_(axis, source, total)
    out.copy_(total)
