"""`Metric`: what is counted over all batches of an evaluation, and a number made of the counts; and
metrics of numbers: mean absolute and mean squared error, over all elements of all batches.

A mean of the values of batches is no precision, no area under a curve and no perplexity of the
whole. A metric says what is counted of a batch (`Metric.statistics`, written with operators, so
that it is part of the evaluation's program), and what the counts of all batches together give
(`Metric.compute`). Those of classes are in `classification.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, ClassVar

import torch

from meta import op
from meta.base.errors import ArgumentError
from meta.grad.core import no_grad
from meta.runtime.ndarray import as_array, ndarray

Shape = tuple[int, ...]


class Metric:
    """Base class of metrics, for ``fit(metrics=)``, `evaluate`, or alone::

        f1 = meta.train.F1()
        for x, labels in batches:
            f1.update(model(x), labels)
        print(f1.compute())

    Attributes
    ----------
    joined: whether what batches give is put one behind the other; else it is added up.

    >>> class Share(meta.train.Metric):
    ...     def statistics(self, prediction, target):
    ...         return {"positive": meta.sum(prediction > 0), "count": meta.array(prediction.size)}
    ...     def compute(self):
    ...         return (self.counted("positive") / self.counted("count")).item()
    >>> share = Share()
    >>> share.update(meta.array([1.0, -1.0, 2.0, 3.0]), meta.zeros(4))
    >>> share.compute()
    0.75
    """

    joined: ClassVar[bool] = False

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    @property
    def is_number(self) -> bool:
        """Whether `compute` returns one number; `fit` takes no others."""
        return True

    def statistics(self, prediction: Any, target: Any) -> dict[str, Any]:
        """Return what is counted of a batch, by name: arrays, and Python ints for what shapes say.

        prediction: the model's result. Code of operators, which is traced with the model.
        """
        raise NotImplementedError

    def compute(self) -> Any:
        """Return the value of all batches since the last `reset`."""
        raise NotImplementedError

    def update(self, prediction: Any, target: Any) -> None:
        """Count a batch, of arrays of meta, numpy or torch."""
        with no_grad():
            self.add(self.statistics(as_array(prediction), as_array(target)))

    def add(self, found: Mapping[str, Any]) -> None:
        """Count what `statistics` returned; nothing waits for the device."""
        for name, value in found.items():
            new = value.tensor.detach() if isinstance(value, ndarray) else torch.tensor(value)
            if self.joined:
                self._kept.setdefault(name, []).append(new)
                continue
            new = new.to(torch.float64 if new.is_floating_point() else torch.int64)
            old = self._kept.get(name)
            self._kept[name] = new if old is None else old + new

    def kept(self) -> dict[str, torch.Tensor]:
        """Return what was counted so far, on the CPU; this waits for the device."""
        joined = ((n, torch.cat([t.cpu() for t in k])) for n, k in self._kept.items())
        return dict(joined) if self.joined else {n: k.cpu() for n, k in self._kept.items()}

    def join(self, others: Iterable[Mapping[str, torch.Tensor]]) -> None:
        """Count what others have `kept`, in their order, in place of what was counted."""
        self.reset()
        for other in others:
            for name, value in other.items():
                before = self._kept.get(name)
                if self.joined:
                    self._kept.setdefault(name, []).append(value)
                else:
                    self._kept[name] = value if before is None else before + value

    def reset(self) -> None:
        """Forget what was counted."""
        self._kept = {}

    def counted(self, name: str) -> torch.Tensor:
        """Return what was counted under a name, in float64 on the CPU; this waits for the device.

        ArgumentError before the first batch.
        """
        if name not in self._kept:
            raise ArgumentError(
                f"{type(self).__name__} has counted no batch", hint="call update() first"
            )
        return self.kept()[name].double()

    def __repr__(self) -> str:
        options = {n: v for n, v in vars(self).items() if not n.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in options.items())})"


def quotient(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return a / b of two numbers; NaN of nothing."""
    return float(a / b) if b else float("nan")


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
    """The mean of |prediction - target|. See `MeanError` for the arguments.

    >>> metric = meta.train.MeanAbsoluteError()
    >>> metric.update(meta.array([1.0, 2.0]), meta.array([2.0, 4.0]))
    >>> metric.compute()
    1.5
    """

    def error(self, difference: Any) -> Any:
        """Return the absolute values."""
        return op.abs(difference)


class MeanSquaredError(MeanError):
    """The mean of (prediction - target)**2. See `MeanError` for the arguments.

    >>> metric = meta.train.MeanSquaredError()
    >>> metric.update(meta.array([1.0, 2.0]), meta.array([2.0, 4.0]))
    >>> metric.compute()
    2.5
    """

    def error(self, difference: Any) -> Any:
        """Return the squares."""
        return op.multiply(difference, difference)
