"""Metrics of numbers: mean absolute and mean squared error, over all elements of all batches."""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.train.metric import Metric, quotient


class MeanError(Metric):
    """Base class of means over elements. Prediction and target are real numbers of one shape; the
    error of each is computed in float32, or in float64 if either is. NaN of nothing.
    """

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return the sum of the errors, and how many there are."""
        if prediction.shape != target.shape:
            raise ArgumentError(
                "prediction and target have one shape",
                expected=list(target.shape),
                found=list(prediction.shape),
                hint="reshape one of them: nothing is broadcast here",
            )
        for x in (prediction, target):
            if x.dtype.startswith("complex"):
                raise ArgumentError("prediction and target are real numbers", found=x.dtype)
        wide = "float64" if "float64" in (prediction.dtype, target.dtype) else "float32"
        size = prod(target.shape)
        a, b = (op.reshape(op.astype(x, wide), (size,)) for x in (prediction, target))
        return {"error": op.sum(self.error(op.subtract(a, b)), axis=0), "count": size}

    def error(self, difference: Any) -> Any:
        """Return the error of each element, from prediction - target."""
        raise NotImplementedError

    def compute(self) -> float:
        """Return the mean."""
        return quotient(self.counted("error"), self.counted("count"))


class MeanAbsoluteError(MeanError):
    """The mean of |prediction - target|. See `MeanError` for the arguments."""

    def error(self, difference: Any) -> Any:
        """Return the absolute values."""
        return op.abs(difference)


class MeanSquaredError(MeanError):
    """The mean of (prediction - target)**2. See `MeanError` for the arguments."""

    def error(self, difference: Any) -> Any:
        """Return the squares."""
        return op.multiply(difference, difference)
