"""`embedding_bag` and `ctc_loss` beside torch's: values and gradients, eager and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.errors import IndexOutOfRange, TypeInferError
from meta.model import trace
from meta.passes import autodiff, infer_type
from meta.runtime.ndarray import ndarray
from meta.testing import check
from tests.op.loss import RAISES, WRONG


def agree_eagerly(ours: Any, theirs: Any, leaves: list[torch.Tensor]) -> tuple[Any, Any]:
    """Compare eager values, and gradients of the sum of squares; return torch's."""
    given = [t.clone().requires_grad_() for t in leaves]
    expected = theirs(*given)
    dxs = torch.autograd.grad((expected * expected).sum(), given)
    arrays = [ndarray(t.clone()) for t in leaves]
    for array in arrays:
        array.requires_grad = True
    y = ours(*arrays)
    assert y.shape == tuple(expected.shape)
    check(y, expected, 1e-10, 1e-10)
    check(meta.grad.grad(meta.sum(y * y), arrays), dxs, 1e-9, 1e-9)
    return expected, dxs


def agree(ours: Any, theirs: Any, leaves: list[torch.Tensor]) -> None:
    """Compare values and gradients of the sum of squares, eager and compiled."""
    expected, dxs = agree_eagerly(ours, theirs, leaves)

    def square(*xs: Any) -> Any:
        y = ours(*xs)
        return meta.sum(y * y)

    arrays = [ndarray(t.clone()) for t in leaves]
    dy = meta.array(1.0, "float64")
    wrt = list(range(len(arrays)))
    module = infer_type(autodiff(trace(square).program(*arrays).module, wrt=wrt))
    y, found = meta.vm.compile(module, dy, *arrays)(dy, *arrays)
    check(y, (expected * expected).sum(), 1e-10, 1e-10)
    check(tuple(found), dxs, 1e-9, 1e-9)


TABLE = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
BAGS = np.array([[1, 2, 4], [4, 0, 6]])
ROW = np.array([1, 2, 4, 4, 6, 3, 2, 4])
OFFSETS = np.array([0, 3, 3, 4])
WEIGHTS = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.product
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    ("indices", "options"),
    [
        (BAGS, {}),
        (BAGS, {"padding_idx": 4}),
        (ROW, {"offsets": OFFSETS}),
        (ROW, {"offsets": np.array([0, 3, 3, 8]), "include_last_offset": True}),
        (ROW, {"offsets": OFFSETS, "padding_idx": -3}),
        (np.array([4, 4, 1]), {"offsets": np.array([0, 2]), "padding_idx": 4}),
        (np.zeros((2, 0), np.int64), {}),
    ],
)
def test_embedding_bag(mode: str, indices: Any, options: dict[str, Any]) -> None:
    tensors = {k: torch.from_numpy(v) if k == "offsets" else v for k, v in options.items()}
    arrays = {k: meta.array(v) if k == "offsets" else v for k, v in options.items()}
    if 0 in indices.shape:  # which torch refuses
        found = meta.embedding_bag(meta.array(indices), meta.array(TABLE), mode=mode)
        check(found, np.zeros((2, 3)))
        return
    agree(
        lambda x: meta.embedding_bag(meta.array(indices), x, mode=mode, **arrays),
        lambda x: F.embedding_bag(torch.from_numpy(indices), x, mode=mode, **tensors),
        [TABLE],
    )


def test_embedding_bag_with_weights() -> None:
    agree(
        lambda x, w: meta.embedding_bag(
            meta.array(ROW), x, meta.array(OFFSETS), mode="sum", per_sample_weights=w
        ),
        lambda x, w: F.embedding_bag(
            torch.from_numpy(ROW),
            x,
            torch.from_numpy(OFFSETS),
            mode="sum",
            per_sample_weights=w,
        ),
        [TABLE, WEIGHTS],
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "mode": (lambda: meta.embedding_bag(BAGS, TABLE, mode="min"), "unknown mode"),
    "table": (lambda: meta.embedding_bag(BAGS, TABLE[0]), "weight must be a table"),
    "indices": (lambda: meta.embedding_bag(ROW, TABLE), "indices does not fit"),
    "offsets": (lambda: meta.embedding_bag(ROW, TABLE, BAGS), "offsets must be a vector"),
    "weights of a mean": (
        lambda: meta.embedding_bag(BAGS, TABLE, per_sample_weights=TABLE[:2]),
        "for the mode 'sum'",
    ),
    "weights": (
        lambda: meta.embedding_bag(BAGS, TABLE, mode="sum", per_sample_weights=WEIGHTS),
        "another shape",
    ),
    "the table first": (lambda: meta.embedding_bag(TABLE, BAGS), "indices must be integers"),
    "a table of integers": (lambda: meta.embedding_bag(BAGS, BAGS), "weight floating point"),
    "reduction": (
        lambda: meta.ctc_loss(TABLE, [1], 7, 1, reduction="all"),
        "there is no such reduction",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    call, match = REFUSED[name]
    with pytest.raises(TypeInferError, match=match):
        call()


def test_the_first_bag_begins_at_the_first_index() -> None:
    with pytest.raises(IndexOutOfRange):
        meta.embedding_bag(ROW, TABLE, np.array([1, 3]))


LOGITS = torch.randn(9, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
TARGETS = np.array([[1, 2, 2, 3], [4, 4, 1, -1], [2, 0, 0, 0]])
INPUTS, LENGTHS = np.array([9, 7, 3]), np.array([4, 3, 1])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss(reduction: str) -> None:
    padded = torch.from_numpy(TARGETS).clamp(min=0)
    row = torch.cat([t[:n] for t, n in zip(padded, LENGTHS.tolist(), strict=True)])
    for targets in (torch.from_numpy(TARGETS), row):
        agree(
            lambda x, t=targets: meta.ctc_loss(
                meta.log_softmax(x, -1),
                meta.array(t),
                meta.array(INPUTS),
                meta.array(LENGTHS),
                reduction=reduction,
            ),
            lambda x: F.ctc_loss(
                x.log_softmax(-1),
                padded,
                torch.from_numpy(INPUTS),
                torch.from_numpy(LENGTHS),
                reduction=reduction,
            ),
            [LOGITS],
        )


def test_ctc_loss_of_one_sequence() -> None:
    agree(
        lambda x: meta.ctc_loss(meta.log_softmax(x, -1), [1, 2], 9, 2, 3, "none"),
        lambda x: F.ctc_loss(
            x.log_softmax(-1), torch.tensor([1, 2]), torch.tensor(9), torch.tensor(2), 3, "none"
        ),
        [LOGITS[:, 0]],
    )


def test_ctc_loss_of_targets_that_do_not_fit() -> None:
    arguments = np.array([[1, 1]]), np.array([2]), np.array([2])
    x = meta.array(LOGITS[:2, :1].log_softmax(-1))
    x.requires_grad = True
    assert meta.ctc_loss(x, *arguments).item() == np.inf
    y = meta.ctc_loss(x, *arguments, zero_infinity=True)
    assert y.item() == 0
    assert not meta.grad.grad(y, x).numpy().any()
    assert np.isnan(meta.grad.grad(meta.ctc_loss(x, *arguments), x).numpy()).all()


@pytest.mark.parametrize("match", WRONG)
def test_lengths_and_targets_are_checked(match: str) -> None:
    arguments = [spec.make("float32", torch.Generator()) for spec in WRONG[match]]
    with pytest.raises(RAISES, match=match):
        meta.ctc_loss(*arguments)
