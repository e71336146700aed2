"""Detection and matching of images on ATen."""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened
from meta.dialect.torch.optimizer import number
from meta.op.core.window import pads
from meta.op.vision import displacements


def _packed(keep, order):
    """Return ``order`` with those to keep moved to the front, -1 behind them, and their count."""
    return order.where(keep, -1).gather(1, _first(keep)), keep.sum(1, keepdim=True)


def _first(keep):
    """Return the places of what to keep, in order, then the other places."""
    return torch.sort(keep, dim=1, descending=True, stable=True).indices


def _rows(data, order):
    """Return the rows of ``data`` in an order in which -1 stands for a row of -1."""
    places = order.clamp(min=0)[..., None].expand_as(data)
    return data.gather(1, places).where(order[..., None] >= 0, -1)


def _numbers(keep):
    return torch.arange(keep.shape[1], device=keep.device).expand_as(keep)


@dialect.kernel(op.get_valid_counts)
def get_valid_counts(data, score_threshold, id_index, score_index):
    valid = widened(data[..., score_index]) > number(score_threshold)
    if id_index >= 0:
        valid = valid & (data[..., id_index] >= 0)
    order, count = _packed(valid, _numbers(valid))
    return count[:, 0].to(torch.int32), _rows(data, order), order.to(torch.int32)


def _overlap(boxes):
    """Return the intersections over unions [batch, boxes, boxes] of boxes [batch, boxes, 4]."""
    low, high = boxes[..., :2], boxes[..., 2:]
    area = (high - low).abs().prod(-1)
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    sides = torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(
        low[:, :, None], low[:, None]
    )
    shared = sides.clamp(min=0).prod(-1)
    union = area[:, :, None] + area[:, None] - shared
    return torch.where(union <= 0, 0, shared / union)


def _undefeated(alive, drops):
    """Return who is left if a row that is left drops the later rows that ``drops`` says.

    What the first n rows decide is right after n rounds; the rounds end when nothing changes.
    """
    drops = drops.tril(-1)  # [batch, row, who is before it]
    left = alive
    while True:
        again = alive & ~(drops & left[:, None]).any(2)
        if torch.equal(again, left):
            return left
        left = again


@dialect.kernel(op.non_max_suppression)
def non_max_suppression(data, valid_count, indices, max_output_size, iou_threshold, call):
    a = call.args
    scores = data[..., a.score_index]
    present = _numbers(scores) < valid_count[:, None]
    active = torch.as_tensor(number(iou_threshold), device=data.device) > 0

    by_score = torch.sort(scores, dim=1, descending=True, stable=True).indices
    order = by_score.gather(1, _first(present.gather(1, by_score)))
    rows = widened(data.gather(1, order[..., None].expand_as(data)))
    looked_at = present & (_numbers(scores) < a.top_k) if a.top_k > 0 else present
    counts = looked_at & (rows[..., a.score_index] > 0)
    boxes = rows[..., a.coord_start : a.coord_start + 4]
    drops = (_overlap(boxes) >= number(iou_threshold)) & counts[:, None]
    if a.id_index >= 0:
        classes = rows[..., a.id_index]
        drops &= (classes >= 0)[:, None]
        if not a.force_suppress:
            drops &= classes[:, :, None] == classes[:, None]
    left = _undefeated(counts, drops)
    before = left.cumsum(1) - left.long()
    limit = number(max_output_size)
    full = (before >= limit) & (torch.as_tensor(limit, device=data.device) >= 0)
    keep = looked_at & (left | ~counts) & ~full

    keep = torch.where(active, keep, present)
    order = torch.where(active, order, _numbers(scores))
    if a.return_indices:
        names = indices.gather(1, order)
        names, count = _packed(keep & (names >= 0), names)
        return names, count.to(torch.int32)
    return _rows(data, _packed(keep, order)[0] if a.invalid_to_bottom else order.where(keep, -1))


def _padded(x, padding):
    top, left, bottom, right = pads(padding)
    return F.pad(widened(x), (left, right, top, bottom))


def _tap_positions(x, max_displacement, stride2):
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
    center, others = _tap_positions(a, max_displacement, stride2)
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
    center, others = _tap_positions(a, max_displacement, stride2)
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
