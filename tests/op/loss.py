"""Test records of losses."""

import torch
import torch.nn.functional as nn

from meta.base.dtype import TO_TORCH
from meta.base.errors import IndexOutOfRange
from meta.testing import C, F, I, OpCase, error, refusals, sample
from meta.testing.case import FLOATS, Spec


def _nll(prediction, target):
    return nn.nll_loss(prediction, target.long())


def _cross_entropy(prediction, target, classes=None):
    return nn.cross_entropy(prediction[:, :classes], target.long())


def _cross_entropy_train(prediction, target, classes=None):
    scores = prediction[:, :classes].detach()
    largest = scores.amax(1)
    total = (scores - largest[:, None]).exp().sum(1)
    return _cross_entropy(prediction, target, classes), largest, total


def _cross_entropy_train_dpred(dy, prediction, target, largest, total, classes=None):
    """The formula in closed form, for statistics as given."""
    scores, counts = prediction[:, :classes], target.long() != -100
    hot = nn.one_hot(target.long().clamp(min=0), scores.shape[1])
    share = torch.where(counts, dy / counts.sum(), 0)[:, None]
    dx = ((scores - largest[:, None]).exp() / total[:, None] - hot) * share
    return nn.pad(dx, (0, prediction.shape[1] - scores.shape[1]))


def _derivative(loss, by):
    """Return the oracle of a loss's gradient: torch's, itself differentiable."""

    def oracle(*args, **options):
        *dy, prediction, target = args
        wanted = (prediction, target)[by]
        again = any(a.requires_grad for a in args)
        leaf = wanted if wanted.requires_grad else wanted.detach().requires_grad_()
        pair = (leaf, target) if by == 0 else (prediction, leaf)
        with torch.enable_grad():
            (found,) = torch.autograd.grad(
                loss(*pair, **options), leaf, dy or None, create_graph=again
            )
        return found

    return oracle


def _zeros(dy, prediction, target):
    return torch.zeros_like(target)


def _labels(n, classes, **options):
    return I(n, low=0, high=classes, **options)


CLASSES = [
    sample(F(5, 3), _labels(5, 3)),
    sample(F(1, 1), _labels(1, 1)),
    sample(F(64, 100), _labels(64, 100, dtype="int32")),
    sample(F(7, 4, low=-30.0, high=30.0), _labels(7, 4, dtype="uint8")),
    sample(F(40, 5), C([4, -100, 0, -100, 3] * 8, "int64")),
]

PADDED = [
    sample(F(5, 8), _labels(5, 3), classes=3),
    sample(F(3, 72), C([66, -100, 0], "int64"), classes=67),
    sample(F(4, 2), _labels(4, 1), classes=1),
    sample(F(2, 5), _labels(2, 5), classes=5),
]

NOTHING_COUNTS = [
    # Large enough to be left out of the numeric gradients: the loss is NaN, its gradient 0.
    sample(F(17, 4), I(17, low=-100, high=-99)),
    sample(F(0, 4), I(0, low=0, high=1)),
]

PAIRS = [
    sample(F(3, 4), F(3, 4)),
    sample(F(), F()),
    sample(F(1, 5, 1), F(1, 5, 1)),
    sample(F(400), F(400)),
]

EMPTY = sample(F(0, 2), F(0, 2))


def _with_dy(samples):
    return [sample(F(), *s.args, **s.kwargs) for s in samples]


def _statistics(n):
    """Return a number for each row: float64 beside float64, else float32."""
    spec = F(n, low=0.5, high=2.0)

    def make(dtype, generator):
        return spec.make("float64" if dtype == "float64" else "float32", generator)

    return Spec(make, f"statistics[{n}]")


OF_ROWS = [
    sample(F(), F(5, 3), _labels(5, 3), _statistics(5), _statistics(5)),
    sample(F(), F(4, 70), C([69, -100, 0, 3], "int64"), _statistics(4), _statistics(4)),
    sample(F(), F(3, 72), C([66, 5, 0], "int32"), _statistics(3), _statistics(3), classes=67),
]

CASES = [
    OpCase("smooth_l1_loss", [*PAIRS, EMPTY], nn.smooth_l1_loss),
    OpCase("smooth_l1_loss_dpred", [*PAIRS, EMPTY], _derivative(nn.smooth_l1_loss, 0)),
    OpCase("smooth_l1_loss_dtarget", [*PAIRS, EMPTY], _derivative(nn.smooth_l1_loss, 1)),
    OpCase("nll_loss", [*CLASSES, *NOTHING_COUNTS], _nll),
    OpCase("nll_loss_dpred", _with_dy(CLASSES), _derivative(_nll, 0)),
    # Zero whatever dy is, so its derivative is zero too; torch's is NaN.
    OpCase("nll_loss_dpred", _with_dy(NOTHING_COUNTS), _derivative(_nll, 0), grad=False),
    OpCase("nll_loss_dtarget", _with_dy(CLASSES), _zeros, grad=False),
    OpCase("cross_entropy", [*CLASSES, *PADDED, *NOTHING_COUNTS], _cross_entropy),
    OpCase("cross_entropy_dpred", _with_dy(CLASSES), _derivative(_cross_entropy, 0)),
    OpCase("cross_entropy_train", [*CLASSES, *PADDED, *NOTHING_COUNTS], _cross_entropy_train),
    OpCase(
        "cross_entropy_train_dpred",
        OF_ROWS,
        _cross_entropy_train_dpred,
        grad=False,
        why="it is the second gradient of cross_entropy_train",
    ),
    OpCase(
        "cross_entropy_dpred",
        _with_dy(NOTHING_COUNTS),
        _derivative(_cross_entropy, 0),
        grad=False,
    ),
    OpCase("cross_entropy_dpred", _with_dy(PADDED), _derivative(_cross_entropy, 0)),
    OpCase("cross_entropy_dtarget", _with_dy(CLASSES), _zeros, grad=False),
]

_LABELS, _SCORES = I(3, low=0, high=4), F(3, 4)

LABELS = [
    error(_SCORES, F(3), match="labels must be integers"),
    error(F(3), _LABELS, match=r"expected: prediction\[n, c\], target\[n\]"),
    error(_LABELS, _LABELS, match="do not have the axes of n rows"),
    error(F(2, 4), _LABELS, match="there must be one label per row"),
    error(F(3, 0), _LABELS, match="prediction has no class"),
]

NO_CLASSES = [
    error(_SCORES, _LABELS, classes=n, match="(?s)not so many classes.*1 to 4") for n in (0, 5)
]

FORMS = [
    error(F(), I(low=0, high=1), match="prediction has no axis of classes"),
    error(F(3), _LABELS, match=r"(?s)one label per row.*target\[\]"),
    error(F(2, 4, 3), I(2, 4, low=0, high=3), match=r"op.permute_dims\(scores, \(0, 2, 1\)\)"),
    error(F(3, 4), I(3, 4, low=0, high=2), match="labels are class indices"),
    error(_LABELS, _SCORES, match="the scores come first"),
    error(I(3, 4, low=0, high=2), _LABELS, match="prediction must be floating point"),
    error(F(2, 4), _LABELS, match="there must be one label per row"),
    error(F(3, 0), _LABELS, match="prediction has no class"),
    error(F(3, 0, 2), I(3, 2, low=0, high=1), match="prediction has no class"),
    error(_SCORES, C([True, False, True], "bool"), match="labels must be integers"),
    error(_SCORES, _LABELS, F(3), match="weight does not fit"),
    error(_SCORES, _LABELS, I(4, low=0, high=2), match="weight must be floating point"),
    error(_SCORES, _LABELS, reduction="median", match="there is no such reduction"),
]
MORE_FORMS = [
    error(_SCORES, F(3), match="labels are integers"),
    error(_SCORES, _SCORES, ignore_index=1, match="ignore_index is a label"),
    error(_SCORES, _SCORES, label_smoothing=1.5, match="label_smoothing is a part"),
    error(_SCORES, _SCORES, reduction="batchmean", match="there is no such reduction"),
]

LABELS_DX = [
    error(F(2), _SCORES, _LABELS, match="dy does not fit"),
    *[error(F(), *one.args, match=one.match) for one in LABELS],
]

VALUES = [
    error(F(3), F(2), match="prediction and target differ"),
    error(F(3), I(3, low=0, high=2), match="cast the int64 one"),
    error(_LABELS, _LABELS, match="prediction must be floating point"),
]

CASES += refusals(
    {
        "nll_loss": [*FORMS, error(_SCORES, F(3), match="labels must be integers")],
        "cross_entropy": [*LABELS, *NO_CLASSES],
        "cross_entropy_train": [*LABELS, *NO_CLASSES],
        "cross_entropy_train_dpred": [
            error(F(), _SCORES, _LABELS, F(3), F(4), match="total is not that of the rows"),
            error(F(), _SCORES, _LABELS, F(3), F(3), classes=9, match="not so many classes"),
            error(F(2), _SCORES, _LABELS, F(3), F(3), match="dy does not fit"),
        ],
        "cross_entropy_dpred": [error(F(), *e.args, match=e.match, **e.kwargs) for e in NO_CLASSES],
        "nll_loss_dpred cross_entropy_dpred": LABELS_DX,
        "nll_loss_dtarget cross_entropy_dtarget": LABELS_DX,
        "smooth_l1_loss smooth_l1_loss_dpred smooth_l1_loss_dtarget": VALUES,
    }
)

INF, NAN = float("inf"), float("nan")


def _torchs(loss):
    """Return torch's loss; its third argument is one that was given up long ago."""

    def oracle(prediction, target, reduction="mean", **options):
        return loss(prediction, target, reduction=reduction, **options)

    return oracle


def _huber(prediction, target, reduction="mean", delta=1.0):
    return nn.huber_loss(prediction, target, reduction=reduction, delta=delta)


def _kl(prediction, target, reduction="mean", log_target=False):
    elements = nn.kl_div(prediction, target, reduction="none", log_target=log_target)
    if reduction == "batchmean":
        return elements.sum() / prediction.shape[0]
    return elements if reduction == "none" else getattr(elements, reduction)()


def _dpred(loss):
    """Return the oracle of a loss's gradient by the prediction: torch's, itself differentiable."""

    def oracle(dy, prediction, target, *args, **kwargs):
        again = any(a.requires_grad for a in (dy, prediction, target))
        leaf = prediction if prediction.requires_grad else prediction.detach().requires_grad_()
        with torch.enable_grad():
            y = loss(leaf, target, *args, **kwargs)
            (found,) = torch.autograd.grad(y, leaf, dy, create_graph=again)
        # Where the loss is linear, torch's gradient does not depend on the prediction.
        return found + 0 * (target + prediction) if again else found

    return oracle


def _pairs(low, high, low_target, high_target):
    """Return pairs of all ranks, each with the reductions."""

    def pair(*shape):
        return F(*shape, low=low, high=high), F(*shape, low=low_target, high=high_target)

    return [
        sample(*pair(3, 4)),
        sample(*pair()),
        sample(*pair(), "none"),
        sample(*pair(1, 5, 1), "sum"),
        sample(*pair(2, 3), "none"),
        sample(*pair(400)),
        sample(*pair(33, 70), reduction="sum"),
        sample(*pair(0, 2), "sum"),
        sample(*pair(0, 2), "none"),
    ]


ELEMENTWISE_EMPTY = sample(F(0, 2), F(0, 2), "mean")


def _elementwise_with_dy(samples):
    """Return the samples of the gradient: a loss that is reduced has a 0-d one."""

    def dy(s):
        kept = s.kwargs.get("reduction", "mean") if len(s.args) < 3 else s.args[2]
        return s.args[0] if kept == "none" else F()

    return [sample(dy(s), *s.args, **s.kwargs) for s in samples]


def _both(name, samples, loss, values=(), further=(), dtypes=FLOATS, **bounds):
    """Return the cases of a loss and of its gradient.

    values: samples of special values, whose gradients are compared but not differentiated.
    further: samples of the loss alone.
    dtypes, bounds: which dtypes hold the gradients at the special values, and how exactly.
    """
    return [
        OpCase(name, [*samples, *further], loss),
        OpCase(name, list(values), loss, grad=False),
        OpCase(f"{name}_dpred", _elementwise_with_dy(samples), _dpred(loss)),
        OpCase(
            f"{name}_dpred",
            _elementwise_with_dy(values),
            _dpred(loss),
            dtypes,
            grad=False,
            **bounds,
        ),
    ]


REALS = _pairs(-2.0, 2.0, -2.0, 2.0)

SPECIAL = [
    sample(C([0.0, INF, 0.5, 1.0, NAN, -INF]), C([0.0, 1.0, INF, NAN, 0.0, 0.5]), "none"),
    sample(C([NAN, 0.0]), C([1.0, -1.0])),
]

HUBER = [
    sample(F(3, 4), F(3, 4), "mean", 0.5),
    sample(F(2, 5), F(2, 5), "none", delta=2.0),
    sample(F(7), F(7), "sum", 0.25),
]

PROBABILITIES = _pairs(0.1, 0.9, 0.1, 0.9)

CERTAIN = [sample(C([0.0, 1.0, 0.0, 1.0]), C([0.0, 1.0, 1.0, 0.0]), "none")]

LOGITS = [
    *_pairs(-3.0, 3.0, 0.0, 1.0),
    sample(F(20, low=-100.0, high=100.0), F(20, low=0.0, high=1.0), "none"),
]

EXTREME = [sample(C([90.0, 90.0, -90.0, -90.0, NAN]), C([0.0, 1.0, 1.0, 0.0, 0.5]), "none")]

DIVERGENCE = [
    *_pairs(-3.0, 0.0, 0.1, 0.9),
    sample(F(3, 4, low=-3.0, high=0.0), F(3, 4, low=0.1, high=0.9), "batchmean"),
    sample(F(3, 4, low=-3.0, high=0.0), F(3, 4, low=-3.0, high=0.0), "batchmean", True),
    sample(F(5, low=-3.0, high=0.0), F(5, low=-3.0, high=0.0), "none", log_target=True),
    sample(F(5, low=-3.0, high=0.0), F(5, low=-3.0, high=0.0), "sum", log_target=True),
]

NOTHING_TRUE = [sample(C([-1.0, 0.0, -2.0, -1.0]), C([0.0, 0.0, 1.0, NAN]), "none")]

CASES += [
    *_both("mse_loss", REALS, _torchs(nn.mse_loss), SPECIAL, [ELEMENTWISE_EMPTY]),
    *_both("l1_loss", REALS, _torchs(nn.l1_loss), SPECIAL, [ELEMENTWISE_EMPTY]),
    *_both("huber_loss", [*REALS, *HUBER], _huber, SPECIAL, [ELEMENTWISE_EMPTY]),
    *_both("kl_div", DIVERGENCE, _kl, NOTHING_TRUE, [ELEMENTWISE_EMPTY]),
    *_both(
        "binary_cross_entropy",
        PROBABILITIES,
        _torchs(nn.binary_cross_entropy),
        CERTAIN,
        [ELEMENTWISE_EMPTY],
        # A slope of 1e12 is infinite in float16.
        dtypes=("bfloat16", "float32", "float64"),
        # ATen's least denominator is 1e-12 in float32, whatever it computes in.
        rtol={"float64": 1e-8},
    ),
    *_both(
        "binary_cross_entropy_with_logits",
        LOGITS,
        _torchs(nn.binary_cross_entropy_with_logits),
        EXTREME,
        [ELEMENTWISE_EMPTY],
    ),
]

_NAMES = ["mse_loss", "l1_loss", "huber_loss", "kl_div"]

_NAMES += ["binary_cross_entropy", "binary_cross_entropy_with_logits"]

DIFFERENT = [
    error(F(3), F(2), match="prediction and target differ"),
    error(F(2), C([1.0, 2.0], "float16"), match="cast the float16 one"),
    error(F(3), F(3), reduction="median", match="there is no such reduction"),
]
WEIGHTS = [
    error(F(3), F(3), F(3), match="give weights by their name"),
    error(F(3), F(3), weight=I(3, low=0, high=2), match="weight must be floating point"),
    error(F(3), F(3), weight=F(2), match="weight does not fit"),
    error(F(3), F(2), weight=F(2), match="differ|weight does not fit"),
]

DIFFERENT_DX = [
    error(F(3), F(3), F(3), match="dy does not fit"),
    error(F(), F(3), F(3), reduction="none", match="dy does not fit"),
    *[error(F(), *one.args, match=one.match, **one.kwargs) for one in DIFFERENT],
]

CASES += refusals(
    {
        " ".join(_NAMES): DIFFERENT,
        " ".join(f"{name}_dpred" for name in _NAMES): DIFFERENT_DX,
        " ".join(_NAMES[:3] + _NAMES[4:]): WEIGHTS,
        "smooth_l1_loss": [
            error(F(3), F(3), reduction="median", match="there is no such reduction"),
            error(F(3), F(2), reduction="sum", match="prediction and target differ"),
            error(F(3), F(3), beta=-1.0, match="beta must not be negative"),
        ],
        "binary_cross_entropy_with_logits": [
            error(F(3), F(3), pos_weight=F(2, 3), match="pos_weight does not fit"),
        ],
        "huber_loss": [error(F(3), F(3), delta=0.0, match="delta must be positive")],
        "huber_loss_dpred": [error(F(), F(3), F(3), delta=-1.0, match="delta must be positive")],
        "kl_div": [error(F(), F(), reduction="batchmean", match="needs an axis of the batch")],
    }
)


def log_probs(*shape):
    """Logarithms of probabilities over the last axis."""

    def make(dtype, generator):
        values = torch.empty(shape, dtype=torch.float64).uniform_(-2, 2, generator=generator)
        return values.log_softmax(-1).to(TO_TORCH[dtype])

    return Spec(make, f"log_probs{list(shape)}", numbers=True)


def _probability(p, labels, blank):
    """The sum over all ways to write labels, blanks between them, in the rows of p."""
    places = [blank]
    for label in labels:
        places += [label, blank]
    if not len(p):
        return torch.ones((), dtype=p.dtype) * (not labels)
    zero = p[0, 0] * 0
    alpha = [p[0, k] if i < 2 else zero for i, k in enumerate(places)]
    for row in p[1:]:
        before, alpha = alpha, []
        for i, k in enumerate(places):
            reached = before[i] + (before[i - 1] if i else zero)
            if i > 1 and k not in (blank, places[i - 2]):
                reached = reached + before[i - 2]
            alpha.append(reached * row[k])
    return alpha[-1] + (alpha[-2] if len(alpha) > 1 else zero)


def losses(x, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """One sequence after the other."""
    lengths = target_lengths.tolist()
    rows = targets if targets.ndim == 2 else targets.split(lengths)
    found = []
    for i, (row, steps, n) in enumerate(zip(rows, input_lengths.tolist(), lengths, strict=True)):
        p = _probability(x[:steps, i].exp(), row[:n].tolist(), blank)
        found.append(p * 0 if zero_infinity and p == 0 else -p.log())
    return torch.stack(found) if found else x.sum() + x.new_zeros(0)


def losses_dx(dy, x, *arguments):
    """By torch, of the sums."""
    leaf = x.detach().requires_grad_()
    (found,) = torch.autograd.grad((losses(leaf, *arguments) * dy.detach()).sum(), leaf)
    return found


def ints(*values, dtype="int64"):
    return C(list(values), dtype)


PADDED = C([[1, 2, 2], [3, 1, -7]], "int64")
SAMPLES = [
    sample(log_probs(5, 2, 4), PADDED, ints(5, 4), ints(3, 2)),
    sample(log_probs(5, 2, 3), ints(0, 1, 1, dtype="int32"), ints(5, 3), ints(2, 1), 2),
    sample(log_probs(4, 1, 3), C([[1, 2]], "int64"), ints(2), ints(0)),
    sample(log_probs(1, 1, 2), C([[1]], "int64"), ints(1), ints(1)),
]
ENDLESS = [C([[1, 1, 1], [3, 1, 0]], "int64"), ints(3, 4), ints(3, 2)]
ONLY = {"dialects": ("torch",), "atol": {"float16": 4e-3}}
NOTHING = [ints(), ints(), ints()]

CASES += [
    OpCase("ctc_losses", SAMPLES, losses, second=False, **ONLY),
    OpCase(
        "ctc_losses",
        [
            sample(log_probs(4, 2, 4), *ENDLESS),
            sample(log_probs(4, 2, 4), *ENDLESS, zero_infinity=True),
            sample(log_probs(4, 0, 3), *NOTHING),
        ],
        losses,
        grad=False,
        **ONLY,
    ),
    OpCase(
        "ctc_losses_dx",
        [
            *(sample(F(one.make("float32")[0][0].shape[1]), *one.args) for one in SAMPLES),
            sample(F(2), log_probs(4, 2, 4), *ENDLESS, 0, True),
        ],
        losses_dx,
        grad=False,
        **ONLY,
    ),
]
_X, _T, _N = log_probs(4, 2, 3), C([[1, 2], [2, 1]], "int64"), ints(2, 2)
ERRORS = [
    ((F(4, 3), _T, _N, _N), "log_probs must have 3 axes"),
    ((F(0, 2, 3), _T, _N, _N), "no time step"),
    ((_X, F(2, 2), _N, _N), "targets must be integers"),
    ((_X, C([[1]], "int64"), _N, _N), "targets does not fit"),
    ((_X, _T, ints(2), _N), "input_lengths does not fit"),
    ((_X, _T, _N, ints(2)), "target_lengths does not fit"),
    ((_X, _T, _N, _N, 3), "blank is no class"),
]
CASES += refusals(
    {
        "ctc_losses": [error(*args, match=match) for args, match in ERRORS],
        "ctc_losses_dx": [
            *(error(F(2), *args, match=match) for args, match in ERRORS),
            error(F(3), _X, _T, _N, _N, match="dy does not fit"),
        ],
    }
)
WRONG = {
    "an input length is out of range": (_X, _T, ints(5, 2), _N),
    "a target length is out of range": (_X, _T, _N, ints(3, 2)),
    "do not add up": (_X, ints(1, 2, 1), _N, ints(1, 1)),
    "a target is no class": (_X, C([[1, 3], [2, 1]], "int64"), _N, _N),
    "not the blank": (_X, C([[1, 0], [2, 1]], "int64"), _N, _N),
}
"""What the host finds in the values, by the error's text."""
RAISES = IndexOutOfRange
