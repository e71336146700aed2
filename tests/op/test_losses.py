"""Losses in all forms beside torch's in float64: values and gradients, eager and compiled."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.errors import ArgumentError, IndexOutOfRange, TypeInferError
from meta.model import trace
from meta.runtime.ndarray import ndarray
from meta.testing import check
from meta.testing.case import ErrorSample
from tests.op.loss import FORMS, MORE_FORMS
from tests.op.test_embedding_bags import agree, agree_eagerly

SHAPES = [(5,), (6, 5), (3, 5, 4), (2, 5, 3, 2), (2, 5, 0), (0, 5)]
TARGETS = ["labels", "some ignored", "all ignored", "probabilities"]
REDUCTIONS = ["mean", "sum", "none"]


def rand(*shape: int, seed: int = 0, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(shape, dtype=torch.float64)
    return values.uniform_(low, high, generator=generator)


def target(shape: tuple[int, ...], kind: str, ignored: int) -> torch.Tensor:
    """Return a target for scores of a shape, whose classes are on axis 1, or 0 of one row."""
    if kind == "probabilities":
        return rand(*shape, seed=1)
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 5, rows, generator=generator)
    if kind == "some ignored":
        return torch.where(torch.rand(rows, generator=generator) < 0.4, ignored, labels)
    return torch.full(rows, ignored) if kind == "all ignored" else labels


def options(kind: str) -> Iterator[dict[str, Any]]:
    """Yield arguments of `cross_entropy`."""
    ignored = [-100] if kind == "probabilities" else [-100, 2, -1]
    weights = [None, rand(5, seed=3)]
    for weight, index, smoothing in itertools.product(weights, ignored, [0.0, 0.3]):
        yield {"weight": weight, "ignore_index": index, "label_smoothing": smoothing}


@pytest.mark.product
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(shape: tuple[int, ...], kind: str) -> None:
    x = rand(*shape, low=-3.0, high=3.0)
    for reduction, given in itertools.product(REDUCTIONS, options(kind)):
        t, weight = target(shape, kind, given["ignore_index"]), given["weight"]
        more = {**given, "reduction": reduction}
        own = {**more, "weight": None if weight is None else ndarray(weight)}
        agree_eagerly(
            lambda x, t=t, own=own: meta.cross_entropy(x, ndarray(t), **own),
            lambda x, t=t, more=more: F.cross_entropy(x, t, **more),
            [x],
        )
        if kind == "probabilities" or given["label_smoothing"]:
            continue
        del more["label_smoothing"], own["label_smoothing"]
        agree_eagerly(
            lambda x, t=t, own=own: meta.nll_loss(x, ndarray(t), **own),
            lambda x, t=t, more=more: F.nll_loss(x, t, **more),
            [x],
        )


COMPILED = [
    ((5,), "labels", {}),
    ((2, 5, 3), "some ignored", {}),
    ((6, 5), "some ignored", {"ignore_index": 2}),
    ((2, 5, 3), "some ignored", {"ignore_index": 2, "reduction": "none"}),
    ((6, 5), "all ignored", {"reduction": "sum", "label_smoothing": 0.2}),
    ((2, 5, 3), "some ignored", {"weight": rand(5), "label_smoothing": 0.2}),
    ((2, 5, 3), "probabilities", {"weight": rand(5), "label_smoothing": 0.2}),
    ((6, 5), "probabilities", {"reduction": "none"}),
]


@pytest.mark.parametrize("row", COMPILED, ids=str)
def test_compiled_cross_entropy(row: tuple[tuple[int, ...], str, dict[str, Any]]) -> None:
    shape, kind, given = row
    t = target(shape, kind, given.get("ignore_index", -100))
    own = {k: ndarray(v) if k == "weight" else v for k, v in given.items()}
    agree(
        lambda x: meta.cross_entropy(x, ndarray(t), **own),
        lambda x: F.cross_entropy(x, t, **given),
        [rand(*shape, low=-3.0, high=3.0)],
    )


def calls(*given: Any, **more: Any) -> list[str]:
    """Return the operators of a traced call of `cross_entropy`."""
    program = trace(lambda *xs: meta.cross_entropy(*xs, **more)).program(*given).module
    return [b.value.callee.name for b in program.main.body.bindings]


def test_the_usual_forms_are_calls_of_the_fused_operator() -> None:
    x, rows = ndarray(rand(4, 5)), ndarray(torch.tensor([0, 4, 2, 2]))
    assert calls(x, rows) == ["cross_entropy"]
    images, places = ndarray(rand(2, 5, 3, 2)), ndarray(torch.ones(2, 3, 2).long())
    assert calls(images, places) == ["permute_dims", "reshape", "reshape", "cross_entropy"]
    assert calls(x, rows, ignore_index=0)[-1] == "cross_entropy"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_half_precision_is_computed_in_float32(dtype: str, reduction: str) -> None:
    """Many rows: their sum is no number of float16."""
    half = getattr(torch, dtype)
    x = rand(70_000, 5, low=-3.0, high=3.0).to(half)
    t, weight = target((70_000, 5), "some ignored", 2), rand(5).to(half)
    for given in ({}, {"weight": weight}, {"label_smoothing": 0.1}, {"ignore_index": 2}):
        wide = {k: v.double() if k == "weight" else v for k, v in given.items()}
        expected = F.cross_entropy(x.double(), t, reduction=reduction, **wide)
        own = {k: ndarray(v) if k == "weight" else v for k, v in given.items()}
        found = meta.cross_entropy(ndarray(x), ndarray(t), reduction=reduction, **own)
        assert found.dtype == dtype
        bound = 1e-3 if dtype == "float16" else 8e-3
        wanted = expected.to(half).double()
        torch.testing.assert_close(found.torch().double(), wanted, rtol=bound, atol=bound)


def signs(*shape: int) -> torch.Tensor:
    return torch.where(rand(*shape, seed=5) < 0.5, -1.0, 1.0).double()


X, Y, Z, W = (rand(4, 5, seed=s, low=-1.0, high=1.0) for s in range(4))
P, Q, V = rand(4, 5, seed=7), rand(4, 5, seed=8), rand(4, 5, seed=9) + 0.1
LABELS = torch.tensor([0, 4, 2, 2])
MANY = torch.tensor([[3, 0, -1, 1, 2], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4], [2, 2, -1, 0, 0]])

Row = tuple[str, tuple[torch.Tensor, ...], dict[str, Any]]
ROWS: list[Row] = [
    ("mse_loss", (X, Y), {"weight": P}),
    ("l1_loss", (X, Y), {"weight": P}),
    ("huber_loss", (X, Y), {"weight": P, "delta": 0.5}),
    ("smooth_l1_loss", (X, Y), {}),
    ("smooth_l1_loss", (X, Y), {"beta": 0.4}),
    ("smooth_l1_loss", (X, Y), {"beta": 0.0}),
    ("binary_cross_entropy", (P, Q), {"weight": V}),
    ("binary_cross_entropy", (P, Q), {"weight": rand(5)}),
    ("binary_cross_entropy_with_logits", (X, Q), {"weight": V}),
    ("binary_cross_entropy_with_logits", (X * 30, Q), {"pos_weight": rand(5)}),
    ("binary_cross_entropy_with_logits", (X, Q), {"weight": rand(4, 1), "pos_weight": V}),
    ("hinge_embedding_loss", (X, signs(4, 5)), {"margin": 0.3}),
    ("margin_ranking_loss", (X, Y, signs(4, 5)), {"margin": 0.3}),
    ("margin_ranking_loss", (X, X.clone(), signs(4, 5)), {}),
    ("cosine_embedding_loss", (X, Y, signs(4)), {"margin": 0.1}),
    ("cosine_embedding_loss", (X[0], Y[0], signs()), {}),
    ("triplet_margin_loss", (X, Y, Z), {}),
    ("triplet_margin_loss", (X, Y, Z), {"p": 3.0, "margin": 0.5, "swap": True}),
    ("triplet_margin_loss", (X, Y, Z), {"p": 1.0}),
    ("triplet_margin_loss", (X, Y, Z), {"p": float("inf")}),
    ("triplet_margin_with_distance_loss", (X, Y, Z), {"swap": True}),
    ("multi_margin_loss", (X, LABELS), {}),
    ("multi_margin_loss", (X, LABELS), {"p": 2, "margin": 0.5, "weight": rand(5)}),
    ("multi_margin_loss", (X[0], LABELS[0]), {}),
    ("multi_margin_loss", (X[0], LABELS[:1]), {}),
    ("multilabel_margin_loss", (X, MANY), {}),
    ("multilabel_margin_loss", (X[0], MANY[0]), {}),
    ("multilabel_soft_margin_loss", (X, Q), {}),
    ("multilabel_soft_margin_loss", (X, Q), {"weight": rand(5)}),
    ("soft_margin_loss", (X, signs(4, 5)), {}),
    ("gaussian_nll_loss", (X, Y, V), {}),
    ("gaussian_nll_loss", (X, Y, V[:, 0]), {"full": True}),
    ("gaussian_nll_loss", (X, Y, V[:, :1]), {"eps": 0.5}),
    ("gaussian_nll_loss", (X, Y), {"var": 0.3}),
    ("poisson_nll_loss", (X, P * 5), {}),
    ("poisson_nll_loss", (P, P * 5), {"log_input": False, "full": True}),
]  # fmt: skip
CONSTANT = {"hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss"}
CONSTANT |= {"soft_margin_loss"}
"""Losses whose last tensor is no argument to differentiate by."""


def sides(row: Row, reduction: str) -> tuple[Callable, Callable, list[torch.Tensor]]:
    """Return ours and torch's loss of the leaves, and the leaves."""
    name, tensors, given = row
    count = sum(t.is_floating_point() for t in tensors) - (name in CONSTANT)
    own = {k: ndarray(v) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    ours, theirs = getattr(meta, name), getattr(F, name)
    rest = tensors[count:]
    return (
        lambda *xs: ours(*xs, *map(ndarray, rest), **own, reduction=reduction),
        lambda *xs: theirs(*xs, *rest, **given, reduction=reduction),
        list(tensors[:count]),
    )


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.product
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{[*row[2]]}-{row[1][0].ndim}")
def test_losses(row: Row, reduction: str) -> None:
    check_by = agree if reduction == "mean" else agree_eagerly
    check_by(*sides(row, reduction))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{[*row[2]]}-{row[1][0].ndim}")
def test_losses_keep_the_dtype(row: Row, dtype: str) -> None:
    name, tensors, given = row

    def rounded(t: Any) -> Any:
        floats = isinstance(t, torch.Tensor) and t.is_floating_point()
        return t.to(getattr(torch, dtype)) if floats else t

    narrow = [rounded(t) for t in tensors]
    known = tuple(t.double() if t.is_floating_point() else t for t in narrow)
    _, theirs, leaves = sides((name, known, given), "sum")
    wanted = rounded(theirs(*leaves)).double()
    own = {k: ndarray(rounded(v)) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    found = getattr(meta, name)(*map(ndarray, narrow), **own, reduction="sum")
    assert found.dtype == dtype
    bound = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}[dtype]
    torch.testing.assert_close(found.torch().double(), wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{[*row[2]]}-{row[1][0].ndim}")
def test_a_block_of_mixed_precision_gives_float32(row: Row) -> None:
    name, tensors, given = row
    halves = [ndarray(t.half() if t.is_floating_point() else t) for t in tensors]
    own = {k: ndarray(v.half()) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    x, labels = ndarray(X.half()), ndarray(LABELS)

    def run() -> list[str]:
        with meta.amp.autocast_scope("float16"):
            found = getattr(meta, name)(*halves, **own)
            others = [meta.cross_entropy(x, labels), meta.nll_loss(x, labels, reduction="sum")]
            return [y.dtype for y in (found, *others)]

    assert run() == ["float32"] * 3
    dtypes: list[str] = []
    trace(lambda x: dtypes.extend(run()) or x).program(x)
    assert dtypes == ["float32"] * 3


def test_a_distance_of_ones_own() -> None:
    found = meta.triplet_margin_with_distance_loss(
        *map(ndarray, (X, Y, Z)), distance_function=lambda a, b: meta.sum(meta.abs(a - b), -1)
    )
    check(found, F.triplet_margin_loss(X, Y, Z, p=1.0, eps=0.0), 1e-10, 1e-10)


def test_dtypes_are_promoted_as_torchs() -> None:
    narrow = X.float()
    for name in ("mse_loss", "smooth_l1_loss", "cross_entropy", "kl_div"):
        found = getattr(meta, name)(ndarray(narrow), ndarray(P), reduction="sum")
        assert found.dtype == "float64"
        check(found, getattr(F, name)(narrow.double(), P, reduction="sum"), 1e-5, 1e-6)
        with meta.strict_dtypes(), pytest.raises(TypeInferError, match="differ in dtype"):
            getattr(meta, name)(ndarray(narrow), ndarray(P), reduction="sum")


OUTSIDE: dict[str, tuple[Callable[[], Any], int]] = {
    "a class too many": (lambda: meta.cross_entropy(X, [0, 1, 2, 5]), 5),
    "of places": (lambda: meta.cross_entropy(X[None], torch.full((1, 5), 4)), 4),
    "with weights": (lambda: meta.cross_entropy(X, [0, 1, 2, 5], rand(5)), 5),
    "smoothed": (lambda: meta.cross_entropy(X, [0, 1, -1, 2], label_smoothing=0.1), -1),
    "no reduction": (lambda: meta.nll_loss(X, [0, 1, -1, 2], reduction="none"), -1),
    "-100, not ignored": (lambda: meta.nll_loss(X, [0, -100, 1, 2], ignore_index=1), -100),
    "a margin": (lambda: meta.multi_margin_loss(X, [0, 1, 2, 5]), 5),
    "a negative margin": (lambda: meta.multi_margin_loss(X, [0, 1, 2, -1]), -1),
    "weights and a negative": (lambda: meta.cross_entropy(X, [0, 1, -5, 2], rand(5)), -5),
    "several margins": (lambda: meta.multilabel_margin_loss(X, torch.full((4, 5), 5)), 5),
    "several negative margins": (
        lambda: meta.multilabel_margin_loss(X, torch.full((4, 5), -2)), -2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_labels_that_are_no_classes_are_found(name: str) -> None:
    call, label = OUTSIDE[name]
    with pytest.raises(IndexOutOfRange, match=f"index {label} at"):
        call()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "reduction": (lambda: meta.soft_margin_loss(X, Y, "batchmean"), "no such reduction"),
    "shapes": (lambda: meta.hinge_embedding_loss(X, Y[0]), "prediction and target differ"),
    "integers": (lambda: meta.margin_ranking_loss([1, 2], [1, 2], [1, 1]), "must be floating"),
    "bools": (lambda: meta.margin_ranking_loss(X, Y, X > 0), "1 or -1"),
    "cosine": (lambda: meta.cosine_embedding_loss(X, Y, 1.0), "the target does not fit"),
    "norm": (lambda: meta.triplet_margin_loss(X, Y, Z, p=0.0), "p is that of a norm"),
    "no vectors": (lambda: meta.triplet_margin_loss(1.0, 1.0, 1.0), "must be vectors"),
    "exponent": (lambda: meta.multi_margin_loss(X, LABELS, p=3), "p is an exponent"),
    "no labels": (lambda: meta.multi_margin_loss(X, X), "labels must be integers"),
    "images": (lambda: meta.multi_margin_loss(X[None], LABELS), "prediction must be rows"),
    "rows": (lambda: meta.multi_margin_loss(X, LABELS[:2]), "labels and rows differ"),
    "factors": (lambda: meta.multi_margin_loss(X, LABELS, weight=X), "weight does not fit"),
    "many": (lambda: meta.multilabel_margin_loss(X, MANY[:, :2]), "labels and rows differ"),
    "no classes": (lambda: meta.multilabel_soft_margin_loss(1.0, 1.0), "no axis of classes"),
    "a factor": (
        lambda: meta.multilabel_soft_margin_loss(X, Y, rand(3)), "weight does not fit",
    ),
    "variance": (lambda: meta.gaussian_nll_loss(X, Y, rand(3, 5)), "prediction and var differ"),
    "negative": (lambda: meta.gaussian_nll_loss(X, Y, -1.0), "the variance is negative"),
    "eps": (lambda: meta.gaussian_nll_loss(X, Y, V, eps=0.0), "eps must be positive"),
    "rate": (lambda: meta.poisson_nll_loss(X, Y[:2]), "prediction and target differ"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    call, match = REFUSED[name]
    with pytest.raises(TypeInferError, match=match):
        call()


@pytest.mark.parametrize("one", [*FORMS, *MORE_FORMS], ids=str)
def test_forms_of_cross_entropy_that_make_no_sense(one: ErrorSample) -> None:
    args, kwargs = one.make("float32")
    with pytest.raises(TypeInferError, match=one.match):
        meta.cross_entropy(*map(ndarray, args), **kwargs)


MISUSED = [
    (lambda: meta.cross_entropy(X, y_true=LABELS), "(?s)no argument 'y_true'.*'target'"),
    (lambda: meta.mse_loss(input=X, target=Y), "(?s)no argument 'input'.*'prediction'"),
    (lambda: meta.l1_loss(X, Y, size_average=True), "(?s)'size_average'.*'reduction'"),
    (
        lambda: meta.cross_entropy(X, LABELS, None, -100),
        "(?s)too many positional .*cross_entropy.prediction, target, weight=None, .,",
    ),
    (lambda: meta.nll_loss(X), "(?s)missing .*'target'.*nll_loss.prediction, target, weight=None"),
    (lambda: meta.clip(X, dim=1), "no argument 'dim'"),
]


@pytest.mark.parametrize(("call", "match"), MISUSED, ids=[match for _, match in MISUSED])
def test_other_arguments_are_told(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call()


def gradient_by_target(name: str, prediction: list[float], target: list[float]) -> np.ndarray:
    t = meta.array(target, "float64")
    t.requires_grad = True
    y = getattr(meta, name)(meta.array(prediction, "float64"), t, reduction="sum")
    return meta.grad.grad(y, t).numpy()


def test_gradients_by_targets_at_the_ends() -> None:
    """The logarithms of a binary cross entropy have bounds; that of t * log(t) at 0 has none."""
    found = gradient_by_target("binary_cross_entropy", [0.0, 1.0, 0.3, 1e-60], [0.0, 1.0, 0.2, 0.4])
    expected = [100.0, -100.0, np.log(0.7) - np.log(0.3), 100.0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    found = gradient_by_target("kl_div", [-1.0, -1.0], [0.0, 0.5])
    np.testing.assert_allclose(found, [-np.inf, np.log(0.5) + 2])


def test_a_negative_variance_is_not_hidden() -> None:
    assert np.isnan(meta.gaussian_nll_loss(X, Y, -V).item())


def test_the_documented_signature_is_that_of_a_call() -> None:
    names = [*inspect.signature(op.cross_entropy).parameters]
    assert names[:3] == ["prediction", "target", "weight"]
    assert names[3:] == ["ignore_index", "reduction", "label_smoothing"]
