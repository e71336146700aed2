"""Comparing neighbourhoods on ATen: for each displacement a product of two shifted images."""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened
from meta.op.core.window import pads
from meta.op.matching import displacements


def _padded(x, padding):
    top, left, bottom, right = pads(padding)
    return F.pad(widened(x), (left, right, top, bottom))


def _places(x, max_displacement, stride2):
    """Return, for each displacement, where in a padded image the taps of x1 and of x2 lie."""

    def shifted(dy, dx):
        rows, columns = (slice(max_displacement + d, n - max_displacement + d)
                         for d, n in zip((dy, dx), x.shape[2:], strict=True))  # fmt: skip
        return (..., rows, columns)

    steps = displacements(max_displacement, stride2)
    return shifted(0, 0), [shifted(dy, dx) for dy in steps for dx in steps]


@dialect.kernel(op.correlation)
def correlation(x1, x2, kernel_size, max_displacement, stride1, stride2, padding, is_multiply):
    a, b = _padded(x1, padding), _padded(x2, padding)
    center, others = _places(a, max_displacement, stride2)
    own = a[center]
    found = []
    for place in others:
        products = own * b[place] if is_multiply else (own - b[place]).abs()
        found.append(F.avg_pool2d(products.mean(1, keepdim=True), kernel_size, stride1))
    return torch.cat(found, 1).to(x1.dtype)


@dialect.kernel(op.correlation_dx)
def correlation_dx(
    x1, x2, dy, kernel_size, max_displacement, stride1, stride2, padding, is_multiply
):
    a, b = _padded(x1, padding), _padded(x2, padding)
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    center, others = _places(a, max_displacement, stride2)
    own, shares = a[center], widened(dy) / x1.shape[1]
    for q, place in enumerate(others):
        # What a tap of the window gets of the mean's gradient.
        window = (kernel_size, kernel_size), (stride1, stride1), (0, 0), False, True, None
        part = torch.ops.aten.avg_pool2d_backward(shares[:, q : q + 1], own[:, :1], *window)
        if is_multiply:
            da[center] += part * b[place]
            db[place] += part * own
        else:
            sign = part * (own - b[place]).sign()
            da[center] += sign
            db[place] -= sign
    top, left, _, _ = pads(padding)
    height, width = x1.shape[2:]
    inside = (..., slice(top, top + height), slice(left, left + width))
    return tuple(d[inside].to(x1.dtype).contiguous() for d in (da, db))
