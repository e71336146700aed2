"""Cross entropy of a fully connected layer: products by torch's libraries, of some classes at a
time, and kernels that read the scores of these classes once, while they are in the cache.

One kernel adds a piece of each row to its logsumexp and takes the label's score out of it; in the
backward pass another makes the gradients of scores, which are the factors of two products.

No size was measured yet, so these kernels run after all others.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from meta import op
from meta.dialect.core import REFERENCE, OpEnv, Unsupported, ask, require_static, tunable
from meta.dialect.torch.linear_loss import Scores, classes_at_once, workspace
from meta.dialect.triton import triton_dialect
from meta.dialect.triton.dialect import INTERPRETED
from meta.dialect.triton.prepared import Launch, launching
from meta.ir.types import TensorType
from meta.op.core.call import CallValues

LEVELS = {"cuda": REFERENCE - 1, "cpu": INTERPRETED}


@triton.jit
def _piece(scores, bias, row, begin, width, at):
    """Return scores of a row, of classes from ``begin`` on, -inf for those that are none."""
    inside = at < width
    value = tl.load(scores + row.to(tl.int64) * width + at, mask=inside, other=-float("inf"))
    if bias is not None:
        value += tl.load(bias + begin + at, mask=inside, other=0.0).to(value.dtype)
    return value


@triton.jit
def losses_of_piece(
    scores, bias, target, losses, logsumexp, classes, begin, width, last, BLOCK: tl.constexpr
):
    """Take a piece of each row into what is known of it: the logsumexp up to here, and in the place
    of the loss the label's score; of the last piece the loss.
    """
    row = tl.program_id(0)
    before, picked = tl.load(logsumexp + row), tl.load(losses + row)
    most = tl.full((), -float("inf"), losses.dtype.element_ty)
    total = tl.full((), 0.0, losses.dtype.element_ty)
    for j in range(0, width, BLOCK):
        value = _piece(scores, bias, row, begin, width, j + tl.arange(0, BLOCK))
        larger = tl.maximum(most, tl.max(value, 0))
        shift = tl.where(tl.abs(larger) == float("inf"), 0.0, larger)  # infinities do not cancel
        total = total * tl.exp(most - shift) + tl.sum(tl.exp(value - shift), 0)
        most = larger
    own = tl.where(tl.abs(most) == float("inf"), 0.0, most) + tl.log(total)
    both = tl.maximum(before, own) + tl.log(1.0 + tl.exp(-tl.abs(before - own)))
    known = tl.where(before == -float("inf"), own, tl.where(own == -float("inf"), before, both))
    known = tl.where(tl.maximum(before, own) == float("inf"), float("inf"), known)
    tl.store(logsumexp + row, known)
    label = tl.load(target + row).to(tl.int64)
    counts = (label >= 0) & (label < classes)
    place = label - begin
    here = counts & (place >= 0) & (place < width)
    own_score = tl.load(scores + row.to(tl.int64) * width + place, mask=here, other=0.0)
    if bias is not None:
        own_score += tl.load(bias + label, mask=here, other=0.0).to(own_score.dtype)
    picked = tl.where(here, own_score, picked)
    tl.store(losses + row, tl.where(last != 0, tl.where(counts, known - picked, 0.0), picked))


@triton.jit
def slopes_of_piece(
    scores, bias, target, logsumexp, dloss, dlogsumexp, slopes, classes, begin, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a piece of each row's scores."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = _piece(scores, bias, row, begin, width, at)
    label = tl.load(target + row).to(tl.int64)
    counts = (label >= 0) & (label < classes)
    own = tl.where(counts, tl.load(dloss + row), 0.0)
    share = own + tl.load(dlogsumexp + row)
    slope = tl.exp(value - tl.load(logsumexp + row)) * share
    slope = tl.where(at == label - begin, slope - own, slope)
    place = slopes + row.to(tl.int64) * width + at
    tl.store(place, slope.to(slopes.dtype.element_ty), mask=at < width)


def _launches(call: CallValues, function: Any, whole: bool, **named: Any) -> dict[int, Launch]:
    """Return prepared launches by how many classes a piece has: all have as many, but the last.

    named: what else the function is told. whole: whether a block has a whole row of a piece.
    """
    x, weight, bias = call.args.x, call.args.linear_weight, call.args.linear_bias
    require_static(x, weight, call.args.target)
    (rows, _), classes = x.static_shape, weight.static_shape[0]
    if 0 in x.static_shape:
        raise Unsupported("there is no row, or no feature")
    if classes >= 1 << 31:
        raise Unsupported(f"{classes} classes are counted in 32 bits")
    step = classes_at_once(rows, classes)
    most = ask("BLOCK", 2048, (1024, 4096))

    def launch(width: int) -> Launch:
        block = min(most, max(triton.next_power_of_2(width), 16))
        grid = (rows,) if whole else (rows, triton.cdiv(width, block))
        return Launch(
            function, call.device, grid, scores=_of_rows(call).dtype, bias=bias,
            target=call.args.target, logsumexp=_of_rows(call), classes=classes, begin="i32",
            width=width, BLOCK=block, num_warps=8, **named,
        )  # fmt: skip

    return {width: launch(width) for width in {step, classes % step or step}}


def _of_rows(call: CallValues) -> TensorType:
    """Return the type of a number for each row."""
    x: TensorType = call.args.x
    return x.with_shape(x.shape[:1]).with_dtype("float64" if x.dtype == "float64" else "float32")


@triton_dialect.op(op.linear_cross_entropies, plevel=LEVELS)
@tunable
def linear_cross_entropies(call: CallValues) -> OpEnv:
    """Prepare the kernel of the losses."""
    add = _launches(call, losses_of_piece, True, losses=_of_rows(call), last="i32")
    has_bias = call.args.linear_bias is not None

    def run(x: Any, weight: Any, target: Any, *more: Any) -> None:
        losses, logsumexp = more[-2:]
        logsumexp.fill_(-torch.inf)
        losses.zero_()
        bias = more[:1] if has_bias else ()
        for begin, end, scores in Scores(x, weight):
            last = int(end == len(weight))
            add[end - begin](scores, *bias, target, losses, logsumexp, begin, last)

    return launching(run, *add.values(), workspace=workspace(call))


@triton_dialect.op(op.linear_cross_entropies_dxwb, plevel=LEVELS)
@tunable
def linear_cross_entropies_dxwb(call: CallValues) -> OpEnv:
    """Prepare the kernel of the gradients."""
    of_rows = _of_rows(call)
    # On the CPU factors of products are in float32.
    factor = call.args.x.dtype if call.device.kind == "cuda" else of_rows.dtype
    named = {"dloss": of_rows, "dlogsumexp": of_rows, "slopes": factor}
    slope_of = _launches(call, slopes_of_piece, False, **named)
    has_bias, in_place = call.args.linear_bias is not None, factor == of_rows.dtype

    def run(dloss: Any, dlogsumexp: Any, x: Any, weight: Any, target: Any, *more: Any) -> None:
        logsumexp, bias = more[0], more[1:2] if has_bias else ()
        dx, dw, *db = more[2 if has_bias else 1 :]
        pieces = Scores(x, weight)
        whole = pieces.sums(dx)
        narrow = pieces.place if in_place else torch.empty_like(pieces.place, dtype=x.dtype)
        for begin, end, scores in pieces:
            slopes = narrow[: scores.numel()].view(scores.shape)
            given = (scores, *bias, target, logsumexp, dloss, dlogsumexp, slopes, begin)
            slope_of[end - begin](*given)
            if db:
                db[0][begin:end] = slopes.sum(0, dtype=whole.dtype)
            pieces.add_gradients(slopes, begin, end, whole, dw)
        if whole is not dx:
            dx.copy_(whole)

    return launching(run, *slope_of.values(), workspace=workspace(call))
