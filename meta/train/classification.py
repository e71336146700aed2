"""Metrics of classifications: accuracy, precision, recall, F1, the confusion matrix, top-k, the
area under the ROC curve, perplexity.

Predictions come in one of three forms: scores (..., classes) in floating point, of which the
largest counts; integers or bools of the labels' shape; or, with a ``threshold``, scores of the
labels' shape, of which those above it are class 1. Labels are integers or bools in [0, classes);
``ignore_index`` marks those that do not count, as in `meta.cross_entropy`. Another label outside of
the classes is an ArgumentError of `compute`.
"""

from __future__ import annotations

from math import exp, prod
from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError
from meta.op.sets import bincount
from meta.train.metric import Metric, quotient

IGNORE_INDEX = -100
AVERAGES = ("macro", "micro", "weighted", "binary", None)


class Classification(Metric):
    """Base class: from predictions and labels to class numbers."""

    def __init__(self, threshold: float | None, ignore_index: int | None) -> None:
        super().__init__()
        self.threshold, self.ignore_index = threshold, ignore_index

    def flat(self, prediction: Any, labels: Any) -> tuple[Any, Any, int | None]:
        """Return predicted classes and labels as vectors of int64, and the number of classes, if
        the prediction tells it.
        """
        classes: int | None = None
        _require_labels(labels)
        if not is_float(prediction.dtype):
            _require_same_shape(prediction, labels, "integers")
            found = prediction
        elif prediction.shape == labels.shape and self.threshold is not None:
            found, classes = op.greater(prediction, float(self.threshold)), 2
        else:
            _require_scores(prediction, labels)
            found, classes = op.argmax(prediction, axis=-1), prediction.shape[-1]
        return _vector(found), _vector(labels), classes

    def sort_out(self, labels: Any, classes: int | None, *others: Any) -> tuple[Any, Any]:
        """Return which labels count, and how many of them are outside of the classes."""
        inside = op.greater_equal(labels, 0)
        for x in (labels, *others):
            inside = op.logical_and(inside, op.greater_equal(x, 0))
            if classes is not None:
                inside = op.logical_and(inside, op.less(x, classes))
        outside = op.logical_not(inside)
        if self.ignore_index is not None:
            wanted = op.not_equal(labels, self.ignore_index)
            inside, outside = op.logical_and(inside, wanted), op.logical_and(outside, wanted)
        return inside, _count(outside)

    def require_inside(self) -> None:
        """Raise ArgumentError if labels or predictions were outside of the classes."""
        if outside := int(self.counted("outside")):
            raise ArgumentError(
                f"{outside} labels or predictions are no class",
                expected=f"integers from 0 to the number of classes - 1, or {self.ignore_index}",
                hint="ignore_index= marks labels that do not count",
            )


class Accuracy(Classification):
    """The share of labels that are predicted. See `meta.train.classification` for the forms of
    predictions. NaN of no labels.

    >>> accuracy = meta.train.Accuracy()
    >>> accuracy.update(meta.array([[0.1, 0.9], [0.8, 0.2]]), meta.array([1, 1]))
    >>> accuracy.compute()
    0.5
    """

    def __init__(
        self, threshold: float | None = None, ignore_index: int | None = IGNORE_INDEX
    ) -> None:
        super().__init__(threshold, ignore_index)

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return the number of right predictions, and of all."""
        found, labels, classes = self.flat(prediction, target)
        inside, outside = self.sort_out(labels, classes)
        hits = op.logical_and(inside, op.equal(found, labels))
        return {"hits": _count(hits), "all": _count(inside), "outside": outside}

    def compute(self) -> float:
        """Return the share, from 0 to 1."""
        self.require_inside()
        return quotient(self.counted("hits"), self.counted("all"))


class PerClass(Classification):
    """Base class of metrics of the hits, labels and predictions of each class.

    Parameters
    ----------
    average: "macro", the mean of the classes that occur among labels or predictions; "micro", of
    all counts together; "weighted", the mean weighted by the number of labels; "binary", the value
    of class 1 of two; None, an array with a value for each class.
    classes: their number, needed where predictions are integers.
    threshold, ignore_index: see `meta.train.classification`.

    A quotient 0 / 0 is 0, as in scikit-learn; an average of nothing is NaN.
    """

    def __init__(
        self,
        average: str | None = "macro",
        classes: int | None = None,
        threshold: float | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> None:
        super().__init__(threshold, ignore_index)
        if average not in AVERAGES:
            raise ArgumentError(
                "there is no such average",
                expected=" or ".join(map(repr, AVERAGES)),
                found=repr(average),
            )
        _require_classes(classes)
        self.average, self.classes = average, classes

    @property
    def is_number(self) -> bool:
        """Whether there is an average."""
        return self.average is not None

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return of each class the hits, the labels and the predictions."""
        found, labels, told = self.flat(prediction, target)
        classes = _number_of_classes(self, told)
        inside, outside = self.sort_out(labels, classes, found)
        hits = op.logical_and(inside, op.equal(found, labels))
        return {
            "hits": _bins(labels, hits, classes),
            "labels": _bins(labels, inside, classes),
            "predictions": _bins(found, inside, classes),
            "outside": outside,
        }

    def compute(self) -> Any:
        """Return the average, a float; without one float64 of shape (classes,)."""
        self.require_inside()
        hits, labels, found = (self.counted(n) for n in ("hits", "labels", "predictions"))
        if self.average == "binary" and len(hits) != 2:
            raise ArgumentError(
                'average="binary" is for two classes', found=f"{len(hits)} classes",
                hint='average="macro", or another one',
            )  # fmt: skip
        if self.average == "micro":
            total = (t.sum().reshape(1) for t in (hits, labels, found))
            return float(self.of(*total)) if labels.sum() else float("nan")
        values = self.of(hits, labels, found)
        if self.average is None:
            return values.numpy()
        if self.average == "binary":
            return float(values[1])
        occurs = ((labels + found) > 0).double()
        weights = labels if self.average == "weighted" else occurs
        return quotient((values * weights).sum(), weights.sum())

    def of(self, hits: torch.Tensor, labels: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return the values of classes from their counts."""
        raise NotImplementedError


class Precision(PerClass):
    """The share of predictions of a class that are right: hits / predictions. See `PerClass` for
    the arguments.

    >>> metric = meta.train.Precision()
    >>> metric.update(meta.array([[0.1, 0.9], [0.8, 0.2]]), meta.array([1, 0]))
    >>> metric.compute()
    1.0
    """

    def of(self, hits: torch.Tensor, labels: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return the precision of each class."""
        return _share(hits, found)


class Recall(PerClass):
    """The share of labels of a class that are predicted: hits / labels. See `PerClass` for the
    arguments.

    >>> metric = meta.train.Recall()
    >>> metric.update(meta.array([[0.1, 0.9], [0.8, 0.2]]), meta.array([1, 0]))
    >>> metric.compute()
    1.0
    """

    def of(self, hits: torch.Tensor, labels: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return the recall of each class."""
        return _share(hits, labels)


class F1(PerClass):
    """The harmonic mean of precision and recall: 2 * hits / (predictions + labels). See `PerClass`
    for the arguments.

    >>> metric = meta.train.F1()
    >>> metric.update(meta.array([[0.1, 0.9], [0.8, 0.2]]), meta.array([1, 0]))
    >>> metric.compute()
    1.0
    """

    def of(self, hits: torch.Tensor, labels: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return the F1 of each class."""
        return _share(2 * hits, found + labels)


class ConfusionMatrix(Classification):
    """How often each class is predicted where each label stands: int64 of shape (classes, classes),
    rows are labels. Not for `fit`, whose metrics are numbers.

    classes, threshold, ignore_index: as in `PerClass`.

    >>> metric = meta.train.ConfusionMatrix()
    >>> metric.update(meta.array([[0.1, 0.9], [0.8, 0.2]]), meta.array([1, 1]))
    >>> metric.compute().tolist()
    [[0, 0], [1, 1]]
    """

    def __init__(
        self,
        classes: int | None = None,
        threshold: float | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> None:
        super().__init__(threshold, ignore_index)
        _require_classes(classes)
        self.classes = classes

    @property
    def is_number(self) -> bool:
        """It is a matrix."""
        return False

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return the matrix of a batch."""
        found, labels, told = self.flat(prediction, target)
        classes = _number_of_classes(self, told)
        inside, outside = self.sort_out(labels, classes, found)
        cells = _bins(op.add(op.multiply(labels, classes), found), inside, classes * classes)
        return {"cells": op.reshape(cells, (classes, classes)), "outside": outside}

    def compute(self) -> np.ndarray[Any, Any]:
        """Return the matrix of all batches."""
        self.require_inside()
        return self.counted("cells").long().numpy()


class TopK(Classification):
    """The share of labels that are among the ``k`` classes with the largest scores; among equal
    scores the class with the smaller number comes first. Predictions are scores (..., classes) with
    at least k classes. NaN of no labels.

    >>> metric = meta.train.TopK(2)
    >>> metric.update(meta.array([[0.1, 0.5, 0.4]]), meta.array([2]))
    >>> metric.compute()
    1.0
    """

    def __init__(self, k: int, ignore_index: int | None = IGNORE_INDEX) -> None:
        super().__init__(None, ignore_index)
        if type(k) is not int or k < 1:
            raise ArgumentError("k is a number of classes", expected="an int >= 1", found=repr(k))
        self.k = k

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return the number of right predictions, and of all."""
        _require_labels(target)
        _require_scores(prediction, target)
        classes = prediction.shape[-1]
        if self.k > classes:
            raise ArgumentError(
                "k is above the number of classes", expected=f"k <= {classes}", found=self.k
            )
        labels = _vector(target)
        inside, outside = self.sort_out(labels, classes)
        scores = op.reshape(prediction, (labels.shape[0], classes))
        best = op.topk(scores, self.k)[1]
        among = op.any(op.equal(best, op.reshape(labels, (labels.shape[0], 1))), axis=-1)
        hits = op.logical_and(inside, among)
        return {"hits": _count(hits), "all": _count(inside), "outside": outside}

    def compute(self) -> float:
        """Return the share, from 0 to 1."""
        self.require_inside()
        return quotient(self.counted("hits"), self.counted("all"))


class AUC(Classification):
    """The area under the ROC curve, exact, by ranks: the probability that a label 1 has a larger
    score than a label 0, equal scores counting one half (Mann and Whitney, 1947).

    Scores of the labels' shape are those of class 1 of two. Of scores (..., classes) it is the area
    of each class against all others, and their mean; with ``average=None`` an array of them. An
    area for which there are no labels on one side, or with a NaN among its scores, is NaN. All
    scores are kept until `reset`.

    >>> metric = meta.train.AUC()
    >>> metric.update(meta.array([0.1, 0.9, 0.8]), meta.array([0, 1, 1]))
    >>> metric.compute()
    1.0
    """

    joined = True

    def __init__(
        self, average: str | None = "macro", ignore_index: int | None = IGNORE_INDEX
    ) -> None:
        super().__init__(None, ignore_index)
        if average not in ("macro", None):
            raise ArgumentError(
                "there is no such average", expected="'macro' or None", found=repr(average)
            )
        self.average = average

    @property
    def is_number(self) -> bool:
        """Whether there is an average."""
        return self.average is not None

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return scores and labels, and how many of these are outside of the classes."""
        _require_labels(target)
        if not is_float(prediction.dtype):
            raise ArgumentError("an area is of scores", found=f"predictions of {prediction.dtype}")
        labels, classes = _vector(target), 1
        if prediction.shape != target.shape:
            _require_scores(prediction, target)
            classes = prediction.shape[-1]
        _, outside = self.sort_out(labels, max(classes, 2))
        scores = op.reshape(prediction, (labels.shape[0], classes))
        return {"scores": scores, "labels": labels, "outside": op.reshape(outside, (1,))}

    def require_inside(self) -> None:
        """Raise ArgumentError if labels were outside of the classes."""
        self._kept["outside"] = [self.counted("outside").sum().reshape(1)]
        super().require_inside()

    def compute(self) -> Any:
        """Return the area, a float; without an average float64 of shape (classes,)."""
        self.require_inside()
        scores, labels = self.counted("scores"), self.counted("labels")
        if self.ignore_index is not None:
            wanted = labels != self.ignore_index
            scores, labels = scores[wanted], labels[wanted]
        if scores.shape[1] == 1:
            areas = [_area(scores[:, 0], labels == 1)]
        else:
            areas = [_area(scores[:, i], labels == i) for i in range(scores.shape[1])]
        return float(np.mean(areas)) if self.average else np.array(areas)


class Perplexity(Classification):
    """exp of the mean negative log-likelihood of the labels under softmax(scores), scores
    (..., classes): of all labels together, not a mean over batches. inf where it is above the
    largest float64, NaN of no labels.

    >>> metric = meta.train.Perplexity()
    >>> metric.update(meta.zeros((2, 4)), meta.array([1, 3]))
    >>> round(metric.compute(), 3)
    4.0
    """

    def __init__(self, ignore_index: int | None = IGNORE_INDEX) -> None:
        super().__init__(None, ignore_index)

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return the sum of the negative log-likelihoods, and how many there are."""
        _require_labels(target)
        _require_scores(prediction, target)
        labels = _vector(target)
        rows, classes = labels.shape[0], prediction.shape[-1]
        inside, outside = self.sort_out(labels, classes)
        wide = "float64" if prediction.dtype == "float64" else "float32"
        scores = op.reshape(op.astype(prediction, wide), (rows, classes))
        at = op.where(inside, labels, op.zeros_like(labels))
        own = op.take_along_axis(op.log_softmax(scores, axis=-1), op.reshape(at, (rows, 1)), 1)
        own = op.reshape(own, (rows,))
        lost = op.sum(op.where(inside, own, op.zeros_like(own)), axis=0)
        return {"lost": op.negative(lost), "all": _count(inside), "outside": outside}

    def compute(self) -> float:
        """Return the perplexity, at least 1."""
        self.require_inside()
        mean = quotient(self.counted("lost"), self.counted("all"))
        return float("inf") if mean > 709 else exp(mean)


def _share(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a / b, 0 where b is 0."""
    return torch.where(b > 0, a / b.clamp_min(1), torch.zeros_like(b))


def _area(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """Return the area under the ROC curve of a vector of scores."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros or bool(scores.isnan().any()):
        return float("nan")
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).double() - (counts.double() - 1) / 2
    above = float(ranks[place][positive].sum()) - ones * (ones + 1) / 2
    return above / ones / zeros


def _vector(x: Any) -> Any:
    return op.reshape(op.astype(x, "int64"), (prod(x.shape),))


def _count(x: Any) -> Any:
    return op.sum(op.astype(x, "int64"), axis=0)


def _bins(x: Any, counts: Any, bins: int) -> Any:
    """Return how often each of 0, ..., bins - 1 occurs in ``x`` where ``counts`` is true."""
    at = op.where(counts, x, op.zeros_like(x))
    return bincount(at, op.astype(counts, "int64"), length=bins)


def _require_labels(labels: Any) -> None:
    if is_float(labels.dtype):
        raise ArgumentError(
            "labels are class numbers, integers or bools",
            found=f"{labels.dtype}{list(labels.shape)}",
            hint="meta.argmax(labels, axis=-1) of one-hot ones",
        )


def _require_scores(prediction: Any, labels: Any) -> None:
    if not is_float(prediction.dtype) or prediction.shape[:-1] != labels.shape:
        same = prediction.shape == labels.shape
        raise ArgumentError(
            "predictions do not fit the labels",
            expected=f"floating point scores {[*labels.shape, 'classes']}",
            found=f"{prediction.dtype}{list(prediction.shape)}, labels {list(labels.shape)}",
            hint="threshold=0.5 says which probabilities of two classes count as class 1"
            if same
            else "the classes are the last axis",
        )


def _require_same_shape(prediction: Any, labels: Any, what: str) -> None:
    if prediction.shape != labels.shape:
        raise ArgumentError(
            f"predictions that are {what} have the labels' shape",
            expected=list(labels.shape),
            found=list(prediction.shape),
        )


def _require_classes(classes: object) -> None:
    if classes is not None and (type(classes) is not int or classes < 2):
        raise ArgumentError(
            "classes is the number of classes", expected="an int >= 2", found=repr(classes)
        )


def _number_of_classes(metric: Any, told: int | None) -> int:
    """Return the number of classes, stated or told by the scores."""
    stated: int | None = metric.classes
    if stated is None and told is None:
        raise ArgumentError(
            "predictions that are class numbers do not say how many classes there are",
            hint=f"{type(metric).__name__}(classes=10)",
        )
    if stated is not None and told is not None and stated != told:
        raise ArgumentError(
            "there are other classes than stated", expected=stated, found=f"{told} in the scores"
        )
    number = stated if told is None else told
    assert number is not None
    return number
