"""Layers of a few lines: linear, embedding, dropout, those that leave the values alone, layers in a
row; initial values of parameters; and the containers `ModuleList` and `ModuleDict`.

Containers have no forward: the model around them says how they are called. Models in Python's lists
and dicts are found, too, under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from meta import op, random
from meta.base.errors import ArgumentError
from meta.model import init
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.check import normalize_axis
from meta.runtime.ndarray import ndarray

__all__ = [
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "Linear",
    "ModuleDict",
    "ModuleList",
    "Sequential",
]


def fan_in_uniform(shape: tuple[int, ...], fan_in: int) -> ndarray:
    """Return a parameter uniform on +-1/sqrt(fan_in): what torch gives the weights and biases of
    Linear and Conv.
    """
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    return init.drawn(random.uniform, shape, low=-bound, high=bound)


class Linear(Model):
    """y = x w^T + b on the last axis.

    ``weight``: (out_features, in_features); ``bias``: (out_features,) or None.
    ``x``: (..., in_features).

    >>> layer = meta.model.Linear(3, 2)
    >>> layer(meta.ones((4, 3))).shape, sorted(layer.state())
    ((4, 2), ['bias', 'weight'])
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

    >>> meta.model.Embedding(10, 4)(meta.array([[1, 2, 9]])).shape
    (1, 3, 4)
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
        self.weight = init.drawn(random.normal, (num_embeddings, embedding_dim))
        if padding_idx is not None:
            init.change(self.weight, lambda weight: weight[padding_idx].zero_())

    @trace
    def forward(self, indices: Any) -> Any:
        """Look the indices up; the result has one axis more."""
        return op.embedding(indices, self.weight, self.padding_idx)


class Dropout(Model):
    """Zeroes each element with probability ``p`` and scales the others by 1 / (1 - p), in train
    mode only.

    >>> meta.model.Dropout(0.5).eval()(meta.ones(3)).tolist()
    [1.0, 1.0, 1.0]
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
    """Returns its input. Takes the place of a layer that is left out, whatever that is made of.

    >>> meta.model.Identity()(meta.ones(2)).tolist()
    [1.0, 1.0]
    """

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the arguments."""

    @trace
    def forward(self, x: Any) -> Any:
        """Return the input."""
        return x


class Flatten(Model):
    """Merges the axes from ``start_dim`` to ``end_dim``, both included: of (n, c, h, w) it makes
    (n, c*h*w).

    >>> meta.model.Flatten()(meta.ones((2, 3, 4))).shape
    (2, 12)
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

    >>> net = meta.model.Sequential(meta.model.Linear(3, 8), meta.model.ReLU())
    >>> net(meta.ones((4, 3))).shape, net.summary().parameters
    ((4, 8), 32)
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


class ModuleList(Model):
    """A list of models, whose arrays are named by position: "0.weight".

    >>> layers = meta.model.ModuleList(meta.model.Linear(3, 3) for _ in range(4))
    >>> len(layers), sorted(layers.state())[:2]
    (4, ['0.bias', '0.weight'])
    """

    def build(self, models: Iterable[Model] = ()) -> None:
        """Keep the models; ArgumentError for what is none."""
        self._models = [_model(m) for m in models]

    def members(self) -> dict[str, Any]:
        """Return the models by position, and the attributes of the list itself."""
        return {str(i): model for i, model in enumerate(self._models)} | super().members()

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models)

    def __getitem__(self, index: int | slice) -> Any:
        found = self._models[index]
        return ModuleList(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, model: Model) -> None:
        self._models[index] = _model(model)

    def __delitem__(self, index: int | slice) -> None:
        del self._models[index]

    def __add__(self, other: Iterable[Model]) -> ModuleList:
        return ModuleList([*self, *other])

    def append(self, model: Model) -> ModuleList:
        """Add a model at the end; returns the list."""
        self._models.append(_model(model))
        return self

    def extend(self, models: Iterable[Model]) -> ModuleList:
        """Add models at the end; returns the list."""
        self._models.extend([_model(m) for m in models])
        return self

    def insert(self, index: int, model: Model) -> None:
        """Add a model before the position ``index``."""
        self._models.insert(index, _model(model))

    def pop(self, index: int = -1) -> Model:
        """Remove a model and return it."""
        return self._models.pop(index)


class ModuleDict(Model):
    """A dict of models, whose arrays are named by key: "head.weight".

    >>> heads = meta.model.ModuleDict({"a": meta.model.Linear(3, 2)})
    >>> heads["a"](meta.ones((1, 3))).shape
    (1, 2)
    """

    def build(self, models: Mapping[str, Model] | None = None) -> None:
        """Keep the models; ArgumentError for what is none, and for keys that are no names."""
        self._models: dict[str, Model] = {}
        self.update(models or {})

    def members(self) -> dict[str, Any]:
        """Return the models by key, and the attributes of the dict itself. ArgumentError for a key
        that is also the name of an attribute.
        """
        own = super().members()
        if both := own.keys() & self._models.keys():
            raise ArgumentError(
                "a key is the name of an attribute of the ModuleDict, too", found=repr(min(both))
            )
        return self._models | own

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __contains__(self, key: str) -> bool:
        return key in self._models

    def __getitem__(self, key: str) -> Model:
        return self._models[key]

    def __setitem__(self, key: str, model: Model) -> None:
        if not isinstance(key, str) or not key or "." in key:
            raise ArgumentError(
                "this key cannot be part of the name of an array",
                expected="a string with at least one character and no dot",
                found=repr(key),
            )
        self._models[key] = _model(model)

    def __delitem__(self, key: str) -> None:
        del self._models[key]

    def keys(self) -> Iterable[str]:
        """Return the keys, in the order in which they were set."""
        return self._models.keys()

    def values(self) -> Iterable[Model]:
        """Return the models."""
        return self._models.values()

    def items(self) -> Iterable[tuple[str, Model]]:
        """Return pairs of key and model."""
        return self._models.items()

    def pop(self, key: str) -> Model:
        """Remove a model and return it."""
        return self._models.pop(key)

    def clear(self) -> None:
        """Remove all models."""
        self._models.clear()

    def update(self, models: Mapping[str, Model]) -> None:
        """Set several models."""
        for key, model in models.items():
            self[key] = model


def _model(value: Any) -> Model:
    if not isinstance(value, Model):
        raise ArgumentError("a container holds models", found=type(value).__name__)
    return value
