"""What the converters of `meta/frontend/relay/converters/nn.py` have to give."""

import numpy as np
import torch
import torch.nn.functional as F

from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats, integers

X, TARGET = floats(4, 3), np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
P = np.exp(X) / np.exp(X).sum(1, keepdims=True)
LABELS, PLACES = np.array([2, 0, 1, 1]), integers(4, 2, 5, low=0, high=3, dtype="int64")
WEIGHTS = np.array([0.5, 1.0, 2.0], np.float32)
IMAGES = floats(4, 3, 2, 5)


def nll(reduction, ignore):
    def run(x, t, w):
        x, t, w = (torch.as_tensor(v) for v in (x, t, w))
        return F.nll_loss(x, t.long(), w, ignore_index=ignore, reduction=reduction)

    return run


CASES = [
    Case(
        "nn.cross_entropy", (P, TARGET), lambda p, y: np.float32(-(np.log(p) * y).sum() / len(p))
    ),
    Case(
        "nn.cross_entropy_with_logits", (X, TARGET), lambda x, y: np.float32(-(x * y).sum() / 4)
    ),
    *(
        Case(
            "nn.nll_loss",
            (X, LABELS, WEIGHTS),
            nll(reduction, -100),
            {"reduction": reduction, "ignore_index": -100},
        )
        for reduction in ("mean", "sum", "none")
    ),
    *(
        Case(
            "nn.nll_loss",
            (IMAGES, PLACES.astype(np.int32), WEIGHTS),
            nll(reduction, 1),
            {"reduction": reduction, "ignore_index": 1},
        )
        for reduction in ("mean", "none")
    ),
    Case(
        "nn.nll_loss",
        (X, np.array([2, -7, 1, -7]), WEIGHTS),
        nll("mean", -7),
        {"reduction": "mean", "ignore_index": -7},
        label="ignored is no class",
    ),
    Case("nn.nll_loss", (X[0], LABELS[0], WEIGHTS), nll("mean", -1), {"ignore_index": -1},
         label="one row"),
    Case("nn.nll_loss", (X, LABELS, WEIGHTS), refused="reduction is one of",
         attrs={"reduction": "max", "ignore_index": 0}),
]  # fmt: skip
