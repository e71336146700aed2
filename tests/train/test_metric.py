"""Metrics agree with scikit-learn, however their data are cut into batches: alone, and in the
evaluations of a run, interpreted and compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as reference
import torch

import meta
from meta.base.errors import ArgumentError
from meta.model import Model
from meta.train import (
    AUC,
    F1,
    Accuracy,
    Batches,
    ConfusionMatrix,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    Perplexity,
    Precision,
    Recall,
    TopK,
    evaluate,
)
from tests.train.problem import train

Array = np.ndarray[Any, Any]
N, CLASSES = 61, 5
CUTS = [[N], [1, 20, 40], [0, 30, 31]]


def scores() -> tuple[Array, Array]:
    """Return scores, with ties, and labels; the last class never occurs among the labels."""
    generator = np.random.default_rng(0)
    x = generator.integers(-4, 5, (N, CLASSES)).astype("float32") / 2
    return x, generator.integers(0, CLASSES - 1, N)


def binary() -> tuple[Array, Array]:
    generator = np.random.default_rng(1)
    y = generator.integers(0, 2, N)
    return (generator.integers(0, 9, N) / 10 + 0.1 * y).astype("float32"), y


def numbers() -> tuple[Array, Array]:
    generator = np.random.default_rng(2)
    return generator.normal(size=(N, 3)).astype("float32"), generator.normal(size=(N, 3))


def best(x: Array) -> Array:
    return x.argmax(-1)


def ranked(x: Array, y: Array, k: int) -> float:
    """Among equal scores the class with the smaller number comes first."""
    order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    return float((order == y[:, None]).any(-1).mean())


def perplexity(x: Array, y: Array) -> float:
    wide = x.astype("float64")
    likely = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return math.exp(-likely[np.arange(len(y)), y].mean())


def one_against_all(x: Array, y: Array) -> Array:
    return np.array([reference.roc_auc_score(y == i, x[:, i]) for i in range(x.shape[1])])


PRF = {
    Precision: reference.precision_score,
    Recall: reference.recall_score,
    F1: reference.f1_score,
}
Case = tuple[Callable[[], Metric], Callable[[], tuple[Array, Array]], Callable[..., Any]]
CASES: dict[str, Case] = {
    "accuracy": (Accuracy, scores, lambda x, y: reference.accuracy_score(y, best(x))),
    "accuracy, threshold": (
        lambda: Accuracy(threshold=0.4),
        binary,
        lambda x, y: reference.accuracy_score(y, x > np.float32(0.4)),
    ),
    "confusion": (
        ConfusionMatrix,
        scores,
        lambda x, y: reference.confusion_matrix(y, best(x), labels=range(CLASSES)),
    ),
    **{
        f"top {k}": (lambda k=k: TopK(k), scores, lambda x, y, k=k: ranked(x, y, k))
        for k in (1, 2, 5)
    },
    "perplexity": (Perplexity, scores, perplexity),
    "area": (AUC, binary, lambda x, y: reference.roc_auc_score(y, x)),
    "absolute error": (
        MeanAbsoluteError,
        numbers,
        lambda x, y: reference.mean_absolute_error(y, x),
    ),
    "squared error": (
        MeanSquaredError,
        numbers,
        lambda x, y: reference.mean_squared_error(y, x),
    ),
}
for _kind, _oracle in PRF.items():
    for _average in ("macro", "micro", "weighted"):
        CASES[f"{_kind.__name__} {_average}"] = (
            lambda k=_kind, a=_average: k(a),
            scores,
            lambda x, y, f=_oracle, a=_average: f(y, best(x), average=a, zero_division=0),
        )
    CASES[f"{_kind.__name__} of each class"] = (
        lambda k=_kind: k(None),
        scores,
        lambda x, y, f=_oracle: f(y, best(x), average=None, labels=range(CLASSES), zero_division=0),
    )
    CASES[f"{_kind.__name__} binary"] = (
        lambda k=_kind: k("binary", threshold=0.4),
        binary,
        lambda x, y, f=_oracle: f(y, x > np.float32(0.4)),
    )
    CASES[f"{_kind.__name__} of class numbers"] = (
        lambda k=_kind: k(classes=CLASSES),
        lambda: (best(scores()[0]), scores()[1]),
        lambda x, y, f=_oracle: f(y, x, average="macro", zero_division=0),
    )


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_alone(name: str, cut: list[int]) -> None:
    make, data, oracle = CASES[name]
    x, y = data()
    metric = make()
    for _ in range(2):  # again, from the beginning
        metric.reset()
        for size, end in zip(cut, np.cumsum(cut), strict=True):
            metric.update(x[end - size : end], meta.array(y[end - size : end]))
        np.testing.assert_allclose(metric.compute(), oracle(x, y), rtol=2e-6)


class Same(Model):
    """Its result is its input."""

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return x."""
        return x * 1


def no_loss(result: Any, target: Any) -> Any:
    return meta.sum(meta.astype(result, "float32")) * 0.0


NUMBERS = [n for n, (make, *_) in CASES.items() if make().is_number]


@pytest.mark.product
@pytest.mark.parametrize("executor", ["interpreter", "vm"])
@pytest.mark.parametrize("name", NUMBERS)
def test_in_an_evaluation(name: str, executor: str) -> None:
    make, data, oracle = CASES[name]
    x, y = data()
    batches = Batches(x, y, 25, shuffle=False)
    found = evaluate(Same(), no_loss, batches, metrics={"it": make()}, executor=executor)
    assert list(found) == ["loss", "it"] and isinstance(found["it"], float)
    np.testing.assert_allclose(found["it"], oracle(x, y), rtol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("labels", ["int32", "int64", "uint8"])
def test_dtypes(dtype: str, labels: str) -> None:
    """Halves of small numbers are exact in every dtype."""
    x, y = scores()
    for name in ("accuracy", "F1 macro", "top 2", "perplexity"):
        make, _, oracle = CASES[name]
        metric = make()
        metric.update(meta.array(x, dtype), meta.array(y, labels))
        assert metric.compute() == pytest.approx(oracle(x, y), rel=1e-5)


def test_bools() -> None:
    x, y = binary()
    for labels in (y.astype(bool), torch.from_numpy(y)):
        metrics: list[Any] = [F1("binary", classes=2), Accuracy(), ConfusionMatrix(2)]
        for metric in metrics:
            metric.update(x > 0.4, labels)
        assert metrics[0].compute() == pytest.approx(reference.f1_score(y, x > 0.4))
        assert metrics[1].compute() == pytest.approx(reference.accuracy_score(y, x > 0.4))
        assert (metrics[2].compute() == reference.confusion_matrix(y, x > 0.4)).all()


@pytest.mark.parametrize("name", ["accuracy", "F1 macro", "top 2", "perplexity", "confusion"])
def test_axes_and_labels_that_do_not_count(name: str) -> None:
    make, _, oracle = CASES[name]
    x, y = scores()
    padded = y.copy()
    padded[::3] = -100
    metric = make()
    metric.update(x[:60].reshape(3, 20, CLASSES), padded[:60].reshape(3, 20))
    kept = padded[:60] >= 0
    np.testing.assert_allclose(metric.compute(), oracle(x[:60][kept], y[:60][kept]), rtol=2e-6)


def test_the_area_of_each_class() -> None:
    x, y = scores()
    y[:7] = CLASSES - 1
    wanted = one_against_all(x, y)
    each, mean = AUC(None), AUC()
    for metric in (each, mean):
        metric.update(x[:20], y[:20])
        metric.update(np.concatenate([x[20:], x[:1]]), np.concatenate([y[20:], [-100]]))
    np.testing.assert_allclose(each.compute(), wanted, rtol=1e-12)
    assert mean.compute() == pytest.approx(wanted.mean())


def test_what_is_not_defined_is_no_number() -> None:
    area = AUC()
    area.update(np.array([0.1, 0.2], "float32"), np.array([1, 1]))
    assert math.isnan(area.compute())
    area.update(np.array([math.nan], "float32"), np.array([0]))
    assert math.isnan(area.compute())
    for metric in (Accuracy(), F1(), F1("micro"), Recall("weighted"), TopK(1), Perplexity()):
        metric.update(np.zeros((2, 3), "float32"), np.array([-100, -100]))
        assert math.isnan(metric.compute())
    error = MeanSquaredError()
    error.update(np.zeros((0, 2)), np.zeros((0, 2)))
    assert math.isnan(error.compute())
    large = Perplexity()
    large.update(np.array([[0.0, 1e6]], "float32"), np.array([0]))
    assert large.compute() == math.inf


def test_counts_are_exact_beyond_float32() -> None:
    metric = Accuracy()
    part = {"hits": meta.array(2**24, "int64"), "all": meta.array(2**25, "int64")}
    metric.add({**part, "outside": meta.array(0, "int64")})
    metric.update(np.array([1, 0, 0]), np.array([1, 1, 1]))
    assert metric.compute() == (2**24 + 1) / (2**25 + 3)


def test_a_metric_says_what_it_is() -> None:
    assert repr(F1("micro", classes=3)) == (
        "F1(threshold=None, ignore_index=-100, average='micro', classes=3)"
    )


def test_a_run_counts_anew_in_each_evaluation() -> None:
    from tests.train.problem import held_out

    f1 = F1()
    record = train(epochs=2, eval_data=held_out(), metrics={"f1": f1}, amp="bfloat16")
    assert len(record.evaluations) == 2
    assert f1.compute() == record.metrics["f1"]
    assert f1.counted("labels").sum() == 40


def update(metric: Metric, x: Any, y: Any) -> Any:
    metric.update(np.asarray(x), np.asarray(y))
    return metric.compute()


HALF = np.zeros((2, 3), "float32")
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Accuracy().compute(), r"Accuracy has counted no batch[^$]*update\(\)"),
    (lambda: update(Accuracy(), HALF, [0, 3]), "1 labels or predictions are no class"),
    (lambda: update(Accuracy(ignore_index=None), HALF, [0, -100]), "1 labels or predictions"),
    (lambda: update(ConfusionMatrix(2), [0, 2], [0, 0]), "1 labels or predictions"),
    (lambda: update(Precision(classes=2), [0, -1], [0, 0]), "1 labels or predictions"),
    (lambda: update(AUC(), np.zeros(2, "float32"), [0, 2]), "1 labels or predictions"),
    (lambda: update(Accuracy(), HALF, [0.0, 1.0]), r"integers or bools[^$]*argmax"),
    (lambda: update(Accuracy(), HALF.T, [0, 1]), "classes are the last axis"),
    (lambda: update(Accuracy(), np.zeros(2, "float32"), [0, 1]), "threshold=0.5 says"),
    (lambda: update(Accuracy(), [0, 1, 2], [0, 1]), "have the labels' shape"),
    (lambda: update(F1(), [0, 1], [0, 1]), r"how many classes there are[^$]*F1\(classes=10\)"),
    (lambda: update(F1(classes=4), HALF, [0, 1]), "other classes than stated"),
    (lambda: update(F1("binary"), HALF, [0, 1]), "is for two classes"),
    (lambda: update(TopK(4), HALF, [0, 1]), "k is above the number of classes"),
    (lambda: update(AUC(), [0, 1], [0, 1]), "an area is of scores"),
    (lambda: update(MeanSquaredError(), HALF, HALF[0]), "nothing is broadcast here"),
    (lambda: update(MeanAbsoluteError(), HALF + 1j, HALF), "are real numbers"),
    (lambda: F1("samples"), "there is no such average"),
    (lambda: AUC("micro"), "there is no such average"),
    (lambda: F1(classes=1), "classes is the number of classes"),
    (lambda: TopK(0), "k is a number of classes"),
    (
        lambda: evaluate(Same(), no_loss, [], metrics={"all": ConfusionMatrix()}),
        r"the metric 'all' is no number[^$]*count it alone",
    ),
    (lambda: evaluate(Same(), no_loss, [], metrics={"each": F1(None)}), "is no number"),
    (lambda: train(steps=1, eval_data=[], metrics={"f1": F1}), r"given by name[^$]*Accuracy\(\)"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_errors(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
