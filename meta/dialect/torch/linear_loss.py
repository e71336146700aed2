"""Cross entropy of a fully connected layer on ATen: of some classes at a time.

What is computed of scores is in at least float32, also from half precision; only the gradients of
scores are rounded to it, as factors of products.
"""

from collections.abc import Iterator

import torch

from meta import op
from meta.dialect.core.kernel_signature import bind_kernel
from meta.dialect.core.openv import OpEnv
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import HALF, in_float32, wide

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


class Scores:
    """The scores of rows, of some classes at a time, in one place of memory."""

    def __init__(self, x, linear_weight):
        self.weight = linear_weight
        self.dtype = wide(x.dtype)
        # The CPU has no product of half precision with a wider result.
        self.widens = x.dtype in HALF and not x.is_cuda
        self.x = x.to(self.dtype) if self.widens else x
        (self.rows, _), (self.classes, _) = x.shape, linear_weight.shape
        self.step = classes_at_once(self.rows, self.classes)
        self.place = torch.empty(self.rows * self.step, dtype=self.dtype, device=x.device)

    def __iter__(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Iterate over pieces: where the classes begin and end, and the scores, which may be
        written over.
        """
        for begin in range(0, self.classes, self.step):
            end = min(begin + self.step, self.classes)
            scores = self.place[: self.rows * (end - begin)].view(self.rows, end - begin)
            self._product(self.x, self._part(begin, end).t(), scores)
            yield begin, end, scores

    def _part(self, begin, end):
        """Return some rows of the weight, as factors of products."""
        part = self.weight[begin:end]
        return part.to(self.dtype) if self.widens else part

    def _product(self, a, b, out):
        """Write a product of matrices in the dtype of computing."""
        if a.dtype == out.dtype:
            _mm(a, b, out=out)
        else:
            torch.mm(a, b, out.dtype, out=out)

    def sums(self, dx):
        """Return zeros in which the gradient of x is added up: ``dx``, or wider ones."""
        return dx.zero_() if dx.dtype == self.dtype else torch.zeros_like(dx, dtype=self.dtype)

    def add_gradients(self, slopes, begin, end, whole, dw):
        """Add to the gradient of x, and write that of the weight, by the scores of some classes."""
        if slopes.dtype == whole.dtype:
            _addmm(whole, slopes, self._part(begin, end), out=whole)
        else:
            whole += torch.mm(slopes, self._part(begin, end), whole.dtype)
        if slopes.dtype == dw.dtype:
            _mm(slopes.t(), self.x, out=dw[begin:end])
        else:
            dw[begin:end] = _mm(slopes.t(), self.x)


class _Labels:
    """The labels of rows: which of them count, and where they are among some classes."""

    def __init__(self, target, classes):
        target = target.long()
        self.counts = (target >= 0) & (target < classes)
        self.target = target.masked_fill(~self.counts, -1)

    def within(self, begin, end):
        """Return of each row its label among some classes, and whether it is one of them."""
        inside = (self.target >= begin) & (self.target < end)
        return (self.target - begin).clamp_(0, end - begin - 1)[:, None], inside


def _known(logsumexp):
    """Return NaN where a score is infinite: a softmax of it has no probabilities, as in torch."""
    return logsumexp.masked_fill(logsumexp == torch.inf, torch.nan)


def _losses(x, linear_weight, target, linear_bias, out):
    losses, logsumexp = out
    labels = _Labels(target, len(linear_weight))
    logsumexp.fill_(-torch.inf)
    picked = torch.zeros_like(losses)
    for begin, end, scores in Scores(x, linear_weight):
        if linear_bias is not None:
            scores.add_(linear_bias[begin:end])
        label, inside = labels.within(begin, end)
        picked = torch.where(inside, scores.gather(1, label)[:, 0], picked)
        most = scores.amax(1)
        most.masked_fill_(most.isinf(), 0)  # infinities do not cancel
        total = scores.sub_(most[:, None]).exp_().sum(1).log_().add_(most)
        torch.logaddexp(logsumexp, total, out=logsumexp)
    torch.sub(_known(logsumexp), picked, out=losses).masked_fill_(~labels.counts, 0)


def _gradients(dloss, dlogsumexp, x, linear_weight, target, logsumexp, linear_bias, out):
    dx, dw, *db = out
    labels = _Labels(target, len(linear_weight))
    own = dloss.masked_fill(~labels.counts, 0)
    share = (own + dlogsumexp)[:, None]
    pieces, logsumexp = Scores(x, linear_weight), _known(logsumexp)
    whole = pieces.sums(dx)
    for begin, end, scores in pieces:
        if linear_bias is not None:
            scores.add_(linear_bias[begin:end])
        label, inside = labels.within(begin, end)
        slopes = scores.sub_(logsumexp[:, None]).exp_().mul_(share)
        slopes.scatter_add_(1, label, torch.where(inside, -own, 0)[:, None])
        if db:
            db[0][begin:end] = slopes.sum(0)
        pieces.add_gradients(slopes.to(pieces.x.dtype), begin, end, whole, dw)
    if whole is not dx:
        dx.copy_(whole)


def workspace(call):
    """Return the bytes that a kernel of a call takes for scores and their gradients."""
    x, classes = call.args.x, call.args.linear_weight.shape[0]
    known = x.is_static and isinstance(classes, int)
    count = x.shape[0] * classes_at_once(x.shape[0], classes) if known else ELEMENTS
    return count * {"float64": 8, "float32": 4}.get(x.dtype, 4 + 2)


def _register(base, function):
    def make(call):
        return OpEnv(bind_kernel(function, call), False, strided=True, workspace=workspace(call))

    dialect.op(base)(make)


_register(op.linear_cross_entropies, _losses)
_register(op.linear_cross_entropies_dxwb, _gradients)
