"""Layers of a few lines: linear, embedding, dropout, those that leave the values alone, and layers
in a row; and initial values of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from meta import op, random
from meta.base.errors import ArgumentError, GradientError, TraceError
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.check import normalize_axis
from meta.op.core.tracing import Value
from meta.runtime.ndarray import array, ndarray
from meta.runtime.torch_leaf import refuse_detach

__all__ = ["Dropout", "Embedding", "Flatten", "Identity", "Linear", "Sequential"]


def parameter(x: object) -> ndarray:
    """Mark an array as trained and return it; of numbers, and of NumPy's or torch's arrays, a new
    one. GradientError for what was computed from an array that requires a gradient: a parameter is
    where gradients end.
    """
    if isinstance(x, Value):
        raise TraceError(
            "a parameter is made while a function is traced",
            hint="make layers and parameters in build, or outside of the traced function",
        )
    if isinstance(x, torch.Tensor):
        refuse_detach(x, "parameter()", "meta.model.parameter(t.detach())")
    made = x if isinstance(x, ndarray) else array(x)
    if made.requires_grad and made.node is not None:
        raise GradientError(
            "a parameter was computed from an array that requires a gradient",
            found=f"shape {made.shape}, dtype {made.dtype}",
            hint="x.detach()",
        )
    made.requires_grad = True
    return made


def fan_in_uniform(shape: tuple[int, ...], fan_in: int) -> ndarray:
    """Return a parameter uniform on +-1/sqrt(fan_in): what torch gives the weights and biases of
    Linear and Conv.
    """
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    return parameter(random.uniform(shape, low=-bound, high=bound))


class Linear(Model):
    """y = x w^T + b on the last axis.

    ``weight``: (out_features, in_features); ``bias``: (out_features,) or None.
    ``x``: (..., in_features).
    """

    feature_axes: ClassVar = {"weight": (0, 1), "bias": (0, None)}

    def build(self, in_features: int, out_features: int, bias: bool = True) -> None:
        """Make weight and bias, both uniform on +-1/sqrt(in_features)."""
        self.weight = fan_in_uniform((out_features, in_features), in_features)
        self.bias = fan_in_uniform((out_features,), in_features) if bias else None

    @property
    def in_features(self) -> int:
        """The extent of the last axis of ``x``."""
        return int(self.weight.shape[1])

    @property
    def out_features(self) -> int:
        """The extent of the last axis of the result."""
        return int(self.weight.shape[0])

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to an array with any number of leading axes."""
        return op.linear(x, self.weight, self.bias)


class Embedding(Model):
    """Rows of ``weight`` (num_embeddings, embedding_dim) chosen by integer indices of any shape.

    The row ``padding_idx``, if there is one, begins as zero and gets no gradient; a negative one
    counts from the last.
    """

    feature_axes: ClassVar = {"weight": (1, 0)}

    def build(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None
    ) -> None:
        """Make weight, standard normal."""
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                "there is no such row",
                expected=f"{-num_embeddings} to {num_embeddings - 1}",
                found=padding_idx,
            )
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = parameter(random.normal((num_embeddings, embedding_dim)))
        if padding_idx is not None:
            self.weight.tensor[padding_idx] = 0

    @trace
    def forward(self, indices: Any) -> Any:
        """Look the indices up; the result has one axis more."""
        return op.embedding(indices, self.weight, self.padding_idx)


class Dropout(Model):
    """Zeroes each element with probability ``p`` and scales the others by 1 / (1 - p), in train
    mode only.
    """

    def build(self, p: float = 0.5) -> None:
        """Set the probability; ArgumentError unless 0 <= p <= 1."""
        if not 0 <= p <= 1:
            raise ArgumentError("p is no probability of dropping", expected="0 <= p <= 1", found=p)
        self.p = p

    @trace
    def forward(self, x: Any) -> Any:
        """Apply dropout."""
        return op.dropout(x, self.p)

    @trace
    def forward_infer(self, x: Any) -> Any:
        """Return the input."""
        return x


class Identity(Model):
    """Returns its input. Takes the place of a layer that is left out, whatever that is made of."""

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the arguments."""

    @trace
    def forward(self, x: Any) -> Any:
        """Return the input."""
        return x


class Flatten(Model):
    """Merges the axes from ``start_dim`` to ``end_dim``, both included: of (n, c, h, w) it makes
    (n, c*h*w).
    """

    def build(self, start_dim: int = 1, end_dim: int = -1) -> None:
        """Set the axes; negative ones count from the last."""
        self.start_dim, self.end_dim = start_dim, end_dim

    @trace
    def forward(self, x: Any) -> Any:
        """Merge the axes."""
        first, last = (normalize_axis(d, x.ndim) for d in (self.start_dim, self.end_dim))
        if (first, last) == (1, x.ndim - 1):
            return op.batch_flatten(x)
        return op.reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))


class Sequential(Model):
    """Applies models one after the other. Their state is named by position: "0.weight".

    ``len``, iteration and an index give the models, as of a list; a slice is a `Sequential`.
    """

    def build(self, *models: Model) -> None:
        """Keep the models, under "0", "1", ... as torch names them."""
        for i, model in enumerate(models):
            if not isinstance(model, Model):
                raise ArgumentError(
                    "Sequential is made of models",
                    found=f"argument {i}: {type(model).__name__}",
                    hint="Sequential(*models) for a list of models; a layer, such as "
                    "meta.model.ReLU(), for a function",
                )
            setattr(self, str(i), model)
        self.length = len(models)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Model]:
        return (getattr(self, str(i)) for i in range(self.length))

    def __getitem__(self, index: int | slice) -> Model:
        found = list(self)[index]
        return Sequential(*found) if isinstance(found, list) else found

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the models in order."""
        for model in self:
            x = model(x)
        return x
