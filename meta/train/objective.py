"""What a run computes: `Objective` for training (the loss), `Evaluation` for evaluating (the loss
and metrics). Both take a batch, and are traced as one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meta import op
from meta.base.dtype import is_float, promote
from meta.base.errors import ArgumentError
from meta.base.source import definition_span
from meta.ir import TensorType
from meta.model.gradient import full_shapes
from meta.model.model import Model
from meta.model.trace import trace
from meta.model.wrapper import Wrapper
from meta.runtime.ndarray import ndarray
from meta.train.batch import Batch
from meta.train.metric import Metric
from meta.vm.compiler.calling_convention import bind

Loss = Callable[..., Any]
"""A function ``(model_result, *targets) -> scalar`` written with operators, or a `Model`."""


class Objective(Wrapper):
    """The loss of a model, called as ``(inputs, targets)``; both as in `Batch`.

    Its arrays have the names that they have in the model; those of the loss begin with "loss.".
    """

    def build(self, model: Model, loss: Loss) -> None:
        """Wrap a model; ``loss`` may be a model with parameters of its own."""
        self.model, self.loss = model, loss
        if "loss" in model.members():
            raise ArgumentError(
                "a model that is trained has no attribute 'loss'",
                hint="call it something else: the loss's own arrays are kept under this name",
            )

    def members(self) -> dict[str, Any]:
        """Return what the model holds, under its own names, and the loss."""
        return {**super().members(), "loss": self.loss}

    def models(self) -> list[Model]:
        """Return this model, those of the model, and those of the loss, each once."""
        found = super().models() + (self.loss.models() if isinstance(self.loss, Model) else [])
        return list({id(m): m for m in found}.values())

    def paths(self) -> Iterator[tuple[str, ndarray | Model]]:
        """Iterate over what is inside of the model and of the loss, themselves included."""
        yield from super().paths()
        if isinstance(self.loss, Model):
            for path, value in self.loss.paths():
                yield (f"loss.{path}" if path else "loss"), value

    @trace
    def forward(self, inputs: Any, targets: Any) -> Any:
        """Return the loss, shape ()."""
        return scalar(_call(self.loss, targets, _call(self.model, inputs)), "the loss")


class Evaluation(Model):
    """Loss and metrics of a model, called as ``(inputs, targets)``."""

    def build(self, model: Model, loss: Loss, metrics: Mapping[str, Any]) -> None:
        """Wrap a model; a metric that is a function is called as the loss is."""
        self.model, self.loss, self.metrics = model, loss, dict(metrics)

    @trace
    def forward(self, inputs: Any, targets: Any) -> Any:
        """Return scalars by name, the loss as "loss"; of a `Metric` what it counts."""
        result = _call(self.model, inputs)
        values = {"loss": scalar(_call(self.loss, targets, result), "the loss")}
        for name, metric in self.metrics.items():
            if isinstance(metric, Metric):
                values[name] = _call(metric.statistics, targets, result)
            else:
                values[name] = scalar(_call(metric, targets, result), f"the metric {name!r}")
        return values


class MeanOverRanks(Wrapper):
    """A training step whose result, the loss, is the mean of the ranks' along an axis."""

    def build(self, model: Model, over: str, size: int) -> None:
        """Wrap a training step."""
        self.model, self.over, self.size = model, over, size

    @trace
    def forward(self, dy: Any, inputs: Any, targets: Any) -> Any:
        """Return the mean loss, at least in float32."""
        loss = self.model(dy, inputs, targets)
        wide = op.astype(loss, promote(loss.dtype, "float32"))
        return op.all_reduce(wide, self.over, self.size, "mean")


def loss_dtype(objective: Model, batch: Batch) -> str:
    """Return the dtype of an objective's result, by tracing it."""
    with full_shapes(objective):
        type_ = objective.program(batch.inputs, batch.targets).module.main.result_type
    assert isinstance(type_, TensorType)
    return type_.dtype


def scalar(value: Any, what: str) -> Any:
    """Return a value that is one floating point number, as shape (); ArgumentError for others."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", "")
    if shape is None or shape not in ((), (1,)) or not is_float(dtype):
        raise ArgumentError(
            f"{what} is one number for the batch",
            expected="a floating point array of shape ()",
            found=type(value).__name__ if shape is None else f"{dtype}{list(shape)}",
            hint="reduce it, for example with meta.mean",
        )
    return value if shape == () else op.reshape(value, ())


def _call(function: Loss, arguments: Any, *first: Any) -> Any:
    args, named = (first, arguments) if isinstance(arguments, dict) else ((*first, *arguments), {})
    if isinstance(function, Model):  # whose arguments are those of the data: say what it takes
        entry = function.traced_entry()
        bind(type(function).__name__, entry.given, args, named, definition_span(entry.function))
    return function(*args, **named)
