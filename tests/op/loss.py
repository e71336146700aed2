"""Test records of the losses."""

import torch
import torch.nn.functional as nn

from meta.testing import C, F, I, OpCase, error, refusals, sample


def _nll(y_true, y_pred):
    return nn.nll_loss(y_pred, y_true.long())


def _cross_entropy(y_true, y_pred):
    return nn.cross_entropy(y_pred, y_true.long())


def _smooth_l1(y_true, y_pred):
    return nn.smooth_l1_loss(y_pred, y_true)


def _derivative(loss, by):
    """Return the oracle of a loss's gradient: torch's, itself differentiable."""

    def oracle(*args):
        *dy, y_true, y_pred = args
        wanted = (y_true, y_pred)[by]
        again = any(a.requires_grad for a in args)
        leaf = wanted if wanted.requires_grad else wanted.detach().requires_grad_()
        pair = (leaf, y_pred) if by == 0 else (y_true, leaf)
        with torch.enable_grad():
            (found,) = torch.autograd.grad(loss(*pair), leaf, dy or None, create_graph=again)
        return found

    return oracle


def _zeros(dy, y_true, y_pred):
    return torch.zeros_like(y_true)


def _labels(n, classes, **options):
    return I(n, low=0, high=classes, **options)


CLASSES = [
    sample(_labels(5, 3), F(5, 3)),
    sample(_labels(1, 1), F(1, 1)),
    sample(_labels(64, 100, dtype="int32"), F(64, 100)),
    sample(_labels(7, 4, dtype="uint8"), F(7, 4, low=-30.0, high=30.0)),
    sample(C([4, -100, 0, -100, 3] * 8, "int64"), F(40, 5)),
]
NOTHING_COUNTS = [
    # Large enough to be left out of the numeric gradients: the loss is NaN, its gradient 0.
    sample(I(17, low=-100, high=-99), F(17, 4)),
    sample(I(0, low=0, high=1), F(0, 4)),
]
PAIRS = [
    sample(F(3, 4), F(3, 4)),
    sample(F(), F()),
    sample(F(1, 5, 1), F(1, 5, 1)),
    sample(F(400), F(400)),
]
EMPTY = sample(F(0, 2), F(0, 2))


def _with_dy(samples):
    return [sample(F(), *s.args) for s in samples]


CASES = [
    OpCase("smooth_l1_loss", [*PAIRS, EMPTY], _smooth_l1),
    OpCase("smooth_l1_loss_dpred", [*PAIRS, EMPTY], _derivative(_smooth_l1, 1)),
    OpCase("smooth_l1_loss_dtrue", [*PAIRS, EMPTY], _derivative(_smooth_l1, 0)),
    OpCase("nll_loss", [*CLASSES, *NOTHING_COUNTS], _nll),
    OpCase("nll_loss_dpred", _with_dy(CLASSES), _derivative(_nll, 1)),
    # Zero whatever dy is, so its derivative is zero too; torch's is NaN.
    OpCase("nll_loss_dpred", _with_dy(NOTHING_COUNTS), _derivative(_nll, 1), grad=False),
    OpCase("nll_loss_dtrue", _with_dy(CLASSES), _zeros, grad=False),
    OpCase("cross_entropy", [*CLASSES, *NOTHING_COUNTS], _cross_entropy),
    OpCase("cross_entropy_dpred", _with_dy(CLASSES), _derivative(_cross_entropy, 1)),
    OpCase(
        "cross_entropy_dpred",
        _with_dy(NOTHING_COUNTS),
        _derivative(_cross_entropy, 1),
        grad=False,
    ),
    OpCase("cross_entropy_dtrue", _with_dy(CLASSES), _zeros, grad=False),
]

_LABELS, _SCORES = I(3, low=0, high=4), F(3, 4)
LABELS = [
    error(F(3), _SCORES, match="labels must be integers"),
    error(_LABELS, F(3), match=r"expected: y_true\[n\], y_pred\[n, c\]"),
    error(
        I(2, 4, 5, low=0, high=3),
        F(2, 3, 4, 5),
        match=r"op.reshape\(op.transpose\(scores, \(0, 2, 3, 1\)\), \(-1, c\)\)",
    ),
    error(I(2, 4, low=0, high=3), F(2, 4, 3), match=r"scores op.reshape\(scores, \(-1, c\)\)"),
    error(I(3, 4, low=0, high=2), F(3, 4), match="labels are class indices"),
    error(_SCORES, _LABELS, match="the labels come first"),
    error(_LABELS, F(2, 4), match="there must be one label per row"),
    error(_LABELS, F(3, 0), match="y_pred has no class"),
]
LABELS_DX = [
    error(F(2), _LABELS, _SCORES, match="dy does not fit"),
    *[error(F(), *one.args, match=one.match) for one in LABELS],
]
VALUES = [
    error(F(3), F(2), match="y_true and y_pred differ"),
    error(I(3, low=0, high=2), F(3), match="cast the int64 one"),
    error(_LABELS, _LABELS, match="y_pred must be floating point"),
]

CASES += refusals(
    {
        "nll_loss cross_entropy": LABELS,
        "nll_loss_dpred cross_entropy_dpred": LABELS_DX,
        "nll_loss_dtrue cross_entropy_dtrue": LABELS_DX,
        "smooth_l1_loss smooth_l1_loss_dpred smooth_l1_loss_dtrue": VALUES,
    }
)
