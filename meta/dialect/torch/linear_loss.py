"""Cross entropy of a fully connected layer on ATen: of some classes at a time.

What is computed of scores is in at least float32, also from half precision; only the gradients of
scores are rounded to it, as factors of products.
"""

from collections.abc import Iterator

import torch

from meta import op
from meta.dialect.core.bound import bind_kernel
from meta.dialect.core.openv import OpEnv
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import HALF, wide
from meta.dialect.torch.precision import in_float32

ELEMENTS = 1 << 23
"""Scores that are in memory at a time: 32 MB of float32."""
LEAST_CLASSES = 1024
"""Products of fewer columns are slow, of however many rows."""
LANES = 8

_addmm = in_float32(torch.addmm, torch.backends.cuda.matmul)
_mm = in_float32(torch.mm, torch.backends.cuda.matmul)


def classes_at_once(rows: int, classes: int) -> int:
    """Return how many classes are computed at a time."""
    many = max(LEAST_CLASSES, ELEMENTS // max(rows, 1))
    return min(-(-many // LANES) * LANES, classes)


class _Scores:
    """The scores of rows, of some classes at a time, in one place of memory."""

    def __init__(self, x, linear_weight, linear_bias, target):
        self.weight, self.bias = linear_weight, linear_bias
        self.dtype = wide(x.dtype)
        # The CPU has no product of half precision with a wider result.
        self.widens = x.dtype in HALF and not x.is_cuda
        self.x = x.to(self.dtype) if self.widens else x
        (self.rows, _), (self.classes, _) = x.shape, linear_weight.shape
        self.step = classes_at_once(self.rows, self.classes)
        self.place = torch.empty(self.rows * self.step, dtype=self.dtype, device=x.device)
        target = target.long()
        self.counts = (target >= 0) & (target < self.classes)
        self.target = target.masked_fill(~self.counts, -1)

    def __iter__(self) -> Iterator:
        """Iterate over pieces: where the classes begin and end, the scores, which may be written
        over, and of each row its label among these classes, and whether it is one of them.
        """
        for begin in range(0, self.classes, self.step):
            end = min(begin + self.step, self.classes)
            scores = self.place[: self.rows * (end - begin)].view(self.rows, end - begin)
            self.product(self.x, self.part(begin, end).t(), scores)
            if self.bias is not None:
                scores.add_(self.bias[begin:end])
            inside = (self.target >= begin) & (self.target < end)
            yield begin, end, scores, (self.target - begin).clamp_(0, end - begin - 1), inside

    def part(self, begin, end):
        """Return some rows of the weight, as factors of products."""
        part = self.weight[begin:end]
        return part.to(self.dtype) if self.widens else part

    def product(self, a, b, out):
        """Write a product of matrices in the dtype of computing."""
        if a.dtype == out.dtype:
            _mm(a, b, out=out)
        else:
            torch.mm(a, b, out.dtype, out=out)


def _losses(x, linear_weight, target, linear_bias, out):
    losses, logsumexp = out
    scores = _Scores(x, linear_weight, linear_bias, target)
    logsumexp.fill_(-torch.inf)
    picked = torch.zeros_like(losses)
    for _, _, part, label, inside in scores:
        picked = torch.where(inside, part.gather(1, label[:, None])[:, 0], picked)
        most = part.amax(1)
        most.masked_fill_(most.isinf(), 0)  # infinities do not cancel
        total = part.sub_(most[:, None]).exp_().sum(1).log_().add_(most)
        torch.logaddexp(logsumexp, total, out=logsumexp)
    torch.sub(logsumexp, picked, out=losses).masked_fill_(~scores.counts, 0)


def _gradients(dloss, dlogsumexp, x, linear_weight, target, logsumexp, linear_bias, out):
    dx, dw, *db = out
    scores = _Scores(x, linear_weight, linear_bias, target)
    own = dloss.masked_fill(~scores.counts, 0)
    share = (own + dlogsumexp)[:, None]
    whole = dx.zero_() if dx.dtype == scores.dtype else torch.zeros_like(dx, dtype=scores.dtype)
    factor = scores.x.dtype
    for begin, end, part, label, inside in scores:
        slopes = part.sub_(logsumexp[:, None]).exp_().mul_(share)
        slopes.scatter_add_(1, label[:, None], torch.where(inside, -own, 0)[:, None])
        if db:
            db[0][begin:end] = slopes.sum(0)
        slopes = slopes.to(factor)
        if factor == whole.dtype:
            _addmm(whole, slopes, scores.part(begin, end), out=whole)
        else:
            whole += torch.mm(slopes, scores.part(begin, end), whole.dtype)
        if factor == dw.dtype:
            _mm(slopes.t(), scores.x, out=dw[begin:end])
        else:
            dw[begin:end] = _mm(slopes.t(), scores.x)
    if whole is not dx:
        dx.copy_(whole)


def _register(base, function):
    def make(call):
        x, classes = call.args.x, call.args.linear_weight.shape[0]
        size = torch.empty((), dtype=torch.float64 if x.dtype == "float64" else torch.float32)
        known = x.is_static and isinstance(classes, int)
        count = x.shape[0] * classes_at_once(x.shape[0], classes) if known else ELEMENTS
        taken = count * size.itemsize
        if x.dtype in ("float16", "bfloat16"):
            taken += taken // 2
        return OpEnv(bind_kernel(function, call), False, strided=True, workspace=taken)

    dialect.op(base)(make)


_register(op.linear_cross_entropies, _losses)
_register(op.linear_cross_entropies_dxwb, _gradients)
