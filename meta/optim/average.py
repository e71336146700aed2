"""A running average of the parameters, which often generalizes better than the last of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from meta import op
from meta.base.dtype import promote
from meta.model.model import Model
from meta.runtime.ndarray import array, ndarray


class Average(Model):
    """``average = decay * average + (1 - decay) * parameter`` after every update; the first takes
    the parameters as they are, as torch.optim.swa_utils.AveragedModel.

    Attributes
    ----------
    decay: a number in [0, 1). count: float32[], the updates so far. parameter: the averages by the
    parameter's name, at least in float32; ``model.load_state(average.parameter, strict=False)``
    puts them into a model, and `TrainingStep.averaged` for a block.
    """

    def build(self, params: Mapping[str, ndarray], decay: float) -> None:
        """Start with copies of the parameters."""
        device = next(iter(params.values())).device if params else "cpu"
        self.decay = decay
        self.count = array(0.0, "float32", device=device)
        self.parameter = {n: array(a, promote(a.dtype, "float32")) for n, a in params.items()}

    def add(self, params: Mapping[str, Any], skip: Any) -> None:
        """Take parameters into the average, unless ``skip`` is true."""
        stays = op.cast(op.greater(self.count, 0.0), "float32") * self.decay
        by_dtype: dict[str, list[str]] = {}
        for name in params:
            by_dtype.setdefault(self.parameter[name].dtype, []).append(name)
        for names in by_dtype.values():
            own = [self.parameter[n] for n in names]
            op.multi_tensor_axpby([params[n] for n in names], own, 1.0 - stays, stays, skip)
        op.multi_tensor_axpby([op.ones_like(self.count)], [self.count], 1.0, 1.0, skip)

    @contextmanager
    def within(self, params: Mapping[str, ndarray]) -> Iterator[None]:
        """Put the averages into the parameters for a block; then these are what they were."""
        before = {n: ndarray(params[n].torch().clone()) for n in self.parameter}
        try:
            for name, average in self.parameter.items():
                params[name].update(average)
            yield
        finally:
            for name, value in before.items():
                params[name].update(value)
