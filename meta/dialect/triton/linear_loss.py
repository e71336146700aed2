"""Cross entropy of a fully connected layer in half precision, whose scores never reach memory.

A thread block computes a tile of scores and keeps, of each row, their maximum, the sum of their
exponentials above it, and the label's score; a second kernel joins the tiles. In the backward pass
tiles are computed again, and become the gradients of scores: half precision factors of two products
of torch's libraries, of some classes at a time.

A step makes four products of rows x classes x features instead of three, and no pass over scores in
memory. Recomputing tiles is the idea of FlashAttention (Dao et al., 2022).
"""

from typing import Any

import torch
import triton
import triton.language as tl

from meta import op
from meta.dialect.core import HANDWRITTEN, OpEnv, Unsupported, ask, require_static, tunable
from meta.dialect.triton import triton_dialect
from meta.dialect.triton.dialect import INTERPRETED
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.op.core.call import CallValues

LEVELS = {"cuda": HANDWRITTEN, "cpu": INTERPRETED}
ROWS, FEATURES = 128, 64
"""Of a tile: its rows, and how many features are read at a time."""
ELEMENTS = 1 << 25
"""Gradients of scores that are in memory at a time: 64 MB of half precision."""
LANES = 128
"""Classes at a time are a multiple of it."""


@triton.jit
def _scores(
    x, weight, bias, r, c, rows, classes, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return the scores of rows and classes, -inf behind the last class."""
    k = tl.arange(0, BLOCK_K)
    # Behind the last, the last is read again.
    x_at = x + tl.minimum(r, rows - 1).to(tl.int64)[:, None] * WIDTH + k[None, :]
    w_at = weight + tl.minimum(c, classes - 1).to(tl.int64)[:, None] * WIDTH + k[None, :]
    scores = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, WIDTH, BLOCK_K):
        if WIDTH % BLOCK_K == 0:
            a, b = tl.load(x_at + start), tl.load(w_at + start)
        else:
            inside = (k < WIDTH - start)[None, :]
            a = tl.load(x_at + start, mask=inside, other=0.0)
            b = tl.load(w_at + start, mask=inside, other=0.0)
        scores = tl.dot(a, tl.trans(b), scores)
    if bias is not None:
        scores += tl.load(bias + tl.minimum(c, classes - 1)).to(tl.float32)[None, :]
    return tl.where((c < classes)[None, :], scores, float("-inf"))


@triton.jit
def _label(target, r, row, classes):
    """Return the labels of rows, -1 where there is none."""
    label = tl.load(target + r, mask=row, other=-1).to(tl.int64)
    return tl.where((label >= 0) & (label < classes), label, -1).to(tl.int32)


@triton.jit
def _finite(peak):
    """Return maxima by which exponentials are shifted: infinities do not cancel."""
    return tl.where(tl.abs(peak) == float("inf"), 0.0, peak)


@triton.jit
def _of_softmax(logsumexp):
    """Return NaN where a score is infinite: a softmax of it has no probabilities, as in torch."""
    return tl.where(logsumexp == float("inf"), float("nan"), logsumexp)


@triton.jit
def losses_of_tile(
    x, weight, bias, target, most, total, picked, rows, classes, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write the maximum of each row of a tile, and the sum of exponentials above it; and the score
    of its label if that is here.
    """
    place, down = tl.program_id(0), tl.cdiv(rows, BLOCK_M)
    tile = place // down
    r = (place % down) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    scores = _scores(x, weight, bias, r, c, rows, classes, WIDTH, BLOCK_M, BLOCK_N, BLOCK_K)
    peak = tl.max(scores, 1)
    shift = _finite(peak)
    row = r < rows
    at = tile.to(tl.int64) * rows + r
    tl.store(most + at, peak, mask=row)
    tl.store(total + at, tl.sum(tl.exp(scores - shift[:, None]), 1), mask=row)
    label = _label(target, r, row, classes)
    here = (label >= tile * BLOCK_N) & (label < (tile + 1) * BLOCK_N)
    own = tl.sum(tl.where(label[:, None] == c[None, :], scores, 0.0), 1)
    tl.store(picked + r, own, mask=row & here)


@triton.jit
def losses_of_rows(
    most, total, target, losses, logsumexp, rows, classes, tiles,
    BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Join the tiles of rows; a loss has the label's score in its place before."""
    r, t = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_T)
    row = r < rows
    peak = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    sums = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, tiles, BLOCK_T):
        inside = (start + t < tiles)[:, None] & row[None, :]
        at = (start + t).to(tl.int64)[:, None] * rows + r[None, :]
        peaks = tl.load(most + at, mask=inside, other=-float("inf"))
        parts = tl.load(total + at, mask=inside, other=0.0)
        larger = tl.maximum(peak, tl.max(peaks, 0))
        shift = _finite(larger)
        sums = sums * tl.exp(peak - shift) + tl.sum(parts * tl.exp(peaks - shift[None, :]), 0)
        peak = larger
    known = _finite(peak) + tl.log(sums)
    counts = _label(target, r, row, classes) >= 0
    picked = tl.load(losses + r, mask=row & counts, other=0.0)
    tl.store(logsumexp + r, known, mask=row)
    tl.store(losses + r, tl.where(counts, _of_softmax(known) - picked, 0.0), mask=row)


@triton.jit
def slopes_of_tile(
    x, weight, bias, target, logsumexp, dloss, dlogsumexp, slopes, rows, classes, begin,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a tile of scores, of classes from ``begin`` on: of whole tiles, within
    rows of STRIDE elements, so that several elements are written at once.
    """
    place, down = tl.program_id(0), tl.cdiv(rows, BLOCK_M)
    r = (place % down) * BLOCK_M + tl.arange(0, BLOCK_M)
    local = (place // down) * BLOCK_N + tl.arange(0, BLOCK_N)
    c = begin + local
    scores = _scores(x, weight, bias, r, c, rows, classes, WIDTH, BLOCK_M, BLOCK_N, BLOCK_K)
    row = r < rows
    label = _label(target, r, row, classes)
    own = tl.load(dloss + r, mask=row & (label >= 0), other=0.0)
    share = own + tl.load(dlogsumexp + r, mask=row, other=0.0)
    known = _of_softmax(tl.load(logsumexp + r, mask=row, other=0.0))
    slope = tl.exp(scores - known[:, None]) * share[:, None]
    slope -= tl.where(label[:, None] == c[None, :], own[:, None], 0.0)
    inside = row[:, None] & (local < STRIDE)[None, :]
    at = slopes + r[:, None] * STRIDE + local[None, :]
    tl.store(at, slope.to(slopes.dtype.element_ty), mask=inside)


class _Layer:
    """What the kernels of a call have in common."""

    def __init__(self, call: CallValues) -> None:
        self.x, weight, self.bias = call.args.x, call.args.linear_weight, call.args.linear_bias
        require_static(self.x, weight, call.args.target)
        if self.x.dtype not in ("float16", "bfloat16"):
            raise Unsupported(f"products in {self.x.dtype} are those of libraries")
        (self.rows, self.features), self.classes = self.x.static_shape, weight.static_shape[0]
        if 0 in self.x.static_shape:
            raise Unsupported("there is no row, or no feature")
        if self.classes >= 1 << 30 or self.rows >= 1 << 23:
            raise Unsupported(f"{self.rows} rows of {self.classes} classes: places have 32 bits")
        self.call = call
        self.columns = ask("BLOCK_N", 128, (256,))
        self.warps = ask("num_warps", 8 if self.columns == 256 else 4, (8,))

    def launch(self, function: Any, classes: int, **named: Any) -> TritonLaunch:
        """Prepare a launch for tiles of so many classes."""
        tiles = triton.cdiv(self.rows, ROWS) * triton.cdiv(classes, self.columns)
        args = self.call.args
        return TritonLaunch(
            function, self.call.device, (tiles,), x=self.x, weight=args.linear_weight,
            bias=self.bias, target=args.target, rows=self.rows, classes=self.classes,
            WIDTH=self.features, BLOCK_M=ROWS, BLOCK_N=self.columns, BLOCK_K=FEATURES,
            num_warps=self.warps, num_stages=3, **named,
        )  # fmt: skip


@triton_dialect.op(op.linear_cross_entropies, plevel=LEVELS)
@tunable
def linear_cross_entropies(call: CallValues) -> OpEnv:
    """Prepare the kernels of the losses."""
    layer = _Layer(call)
    tiles = triton.cdiv(layer.classes, layer.columns)
    wide: dict[str, Any] = dict.fromkeys(("most", "total"), "float32")
    of_tiles = layer.launch(losses_of_tile, layer.classes, **wide, picked="float32")
    of_rows = TritonLaunch(
        losses_of_rows, call.device, (triton.cdiv(layer.rows, 32),), **wide,
        target=call.args.target, losses="float32", logsumexp="float32", rows=layer.rows,
        classes=layer.classes, tiles=tiles, BLOCK_M=32, BLOCK_T=32, num_warps=4,
    )  # fmt: skip
    has_bias = layer.bias is not None

    def run(x: Any, weight: Any, target: Any, *more: Any) -> None:
        losses, logsumexp = more[-2:]
        most, total = torch.empty((2, tiles, len(x)), device=x.device)
        of_tiles(x, weight, *(more[:1] if has_bias else ()), target, most, total, losses)
        of_rows(most, total, target, losses, logsumexp)

    return launch_sequence(run, of_tiles, of_rows, workspace=8 * tiles * layer.rows)


def _add_product(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Add the product of matrices of half precision to one of float32."""
    if out.is_cuda:
        torch.addmm(out, x, y, out.dtype, out=out)
    else:  # which has no such product
        out += x.float() @ y.float()


@triton_dialect.op(op.linear_cross_entropies_dxwb, plevel=LEVELS)
@tunable
def linear_cross_entropies_dxwb(call: CallValues) -> OpEnv:
    """Prepare the kernel of the gradients of scores."""
    layer = _Layer(call)
    parts = triton.cdiv(layer.rows * layer.classes, ELEMENTS)
    step = triton.cdiv(triton.cdiv(layer.classes, parts), LANES) * LANES
    names = "logsumexp", "dloss", "dlogsumexp"
    named = {**dict.fromkeys(names, "float32"), "slopes": layer.x.dtype, "begin": "i32"}
    stride = min(step, triton.cdiv(layer.classes, 8) * 8)
    widths = {min(step, layer.classes), layer.classes % step or min(step, layer.classes)}
    slope_of = {n: layer.launch(slopes_of_tile, n, **named, STRIDE=stride) for n in widths}
    has_bias = layer.bias is not None

    def run(dloss: Any, dlogsumexp: Any, x: Any, weight: Any, target: Any, *more: Any) -> None:
        logsumexp, bias = more[0], more[1:2] if has_bias else ()
        dx, dw, *db = more[2 if has_bias else 1 :]
        whole = torch.zeros_like(dx, dtype=torch.float32)
        place = torch.empty((len(x), stride), dtype=x.dtype, device=x.device)
        for begin in range(0, len(weight), step):
            end = min(begin + step, len(weight))
            given = target, logsumexp, dloss, dlogsumexp, place, begin
            slope_of[end - begin](x, weight, *bias, *given)
            if db:
                db[0][begin:end] = place[:, : end - begin].sum(0, dtype=whole.dtype)
            # Products of extents that are no multiple of 8 are slow: the rest is one of its own.
            even = (end - begin) // 8 * 8
            for first, last in ((0, even), (even, end - begin)):
                slopes, part = place[:, first:last], slice(begin + first, begin + last)
                if first < last:
                    _add_product(whole, slopes, weight[part])
                    torch.mm(slopes.t(), x, out=dw[part])
        dx.copy_(whole)

    bytes_ = 2 * layer.rows * stride + 4 * layer.rows * layer.features
    return launch_sequence(run, *slope_of.values(), workspace=bytes_)
