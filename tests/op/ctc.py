"""What the operators of `meta/op/ctc.py` have to do: sums over alignments, of probabilities."""

import torch

from meta.base.dtype import TO_TORCH
from meta.base.errors import IndexOutOfRange
from meta.testing import C, F, OpCase, error, refusals, sample
from meta.testing.case import Spec


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

CASES = [
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
