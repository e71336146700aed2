"""`Metric`: what is counted over all batches of an evaluation, and a number made of the counts.

A mean of the values of batches is no precision, no area under a curve and no perplexity of the
whole. A metric says what is counted of a batch (`Metric.statistics`, written with operators, so
that it is part of the evaluation's program), and what the counts of all batches together give
(`Metric.compute`). See `classification.py` and `regression.py`; add one there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

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
