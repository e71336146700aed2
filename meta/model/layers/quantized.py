"""Linear layers whose weights are stored in 8 or 4 bits, and models made of such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.model.init import parameter
from meta.model.layers.basic import Linear
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import tree
from meta.runtime.ndarray import ndarray

__all__ = ["QuantizedLinear"]


class QuantizedLinear(Model):
    """`Linear` with a frozen weight of 8 or 4 bits: ``quantized_matmul(x, weight, ...) + bias``.

    ``weight``: int8 or float8_e4m3fn (out_features, in_features), or uint8 with half as many
    columns; ``scales`` and ``zeros``: (out_features, groups), zeros maybe None; ``bias``:
    (out_features,) or None. See `quantized_matmul`. Gradients flow through to ``x`` and ``bias``.

    >>> layer = meta.model.QuantizedLinear.of(meta.model.Linear(64, 3), "int4", group=32)
    >>> layer(meta.ones((2, 64))).shape, layer.weight.shape, sorted(layer.state())
    ((2, 3), (3, 32), ['bias', 'scales', 'weight'])
    """

    def build(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        kind: str = "int8",
        group: int | None = None,
        symmetric: bool = True,
        scale_dtype: str | None = None,
    ) -> None:
        """Make a layer to load weights into: all 0, with scales 1. Arguments as of
        `quantize_weight`; TypeInferError for those that it refuses.
        """
        blank = op.zeros((1, in_features))  # which says what the arrays are like
        how: dict[str, Any] = {"group": group, "symmetric": symmetric, "scale_dtype": scale_dtype}
        like = op.quantize_weight(blank, kind, **how)

        def rows(array: ndarray) -> ndarray:
            return ndarray(array.tensor.repeat(out_features, 1))

        self.weight, self.scales, zeros = rows(like[0]), rows(like[1]), like[2]
        self.zeros = None if zeros is None else rows(zeros)
        self.bias = parameter(op.zeros((out_features,))) if bias else None

    @classmethod
    def made_of(
        cls, weight: ndarray, scales: ndarray, zeros: ndarray | None, bias: ndarray | None
    ) -> QuantizedLinear:
        """Return a layer that has these arrays; TypeInferError unless they fit together."""
        op.dequantize_weight(*(None if a is None else a[:1] for a in (weight, scales, zeros)))
        made = cls.__new__(cls)
        made.weight, made.scales, made.zeros, made.bias = weight, scales, zeros, bias
        return made

    @classmethod
    def of(cls, linear: Linear, kind: str = "int8", **options: Any) -> QuantizedLinear:
        """Return a layer like ``linear``, whose weight is rounded; ``bias`` is shared.

        kind, options: as of `quantize_weight`, which says what it refuses. scale_dtype: float32
        unless given.
        """
        if not isinstance(linear, Linear):
            raise ArgumentError(
                "only linear layers have quantised forms", found=type(linear).__name__
            )
        weight, scales, zeros = op.quantize_weight(linear.weight.detach(), kind, **options)
        return cls.made_of(weight, scales, zeros, linear.bias)

    @property
    def feature_axes(self) -> Mapping[str, tuple[int | None, int | None]]:  # type: ignore[override]
        """The axes of output and of input features; one scale for a row is needed whole."""
        grouped = 1 if self.scales.shape[1] > 1 else None
        return {"weight": (0, 1), "scales": (0, grouped), "zeros": (0, grouped), "bias": (0, None)}

    @property
    def in_features(self) -> int:
        """The extent of the last axis of ``x``."""
        return int(self.weight.shape[1]) * (2 if self.weight.dtype == "uint8" else 1)

    @property
    def out_features(self) -> int:
        """The extent of the last axis of the result."""
        return int(self.weight.shape[0])

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to an array with any number of leading axes."""
        y = op.quantized_matmul(x, self.weight, self.scales, self.zeros)
        return y if self.bias is None else op.add(y, self.bias)


def quantize(
    model: Model,
    kind: str = "int8",
    *,
    where: Callable[[str, Linear], bool] = lambda path, layer: True,
    **options: Any,
) -> Model:
    """Put a `QuantizedLinear` in the place of each `Linear` inside a model; returns the model.

    kind, options: as of `quantize_weight`. where: says of a path and a layer whether it is meant;
    all are unless given. A layer whose weight is another's, too, such as of tied embeddings, stays.
    ArgumentError if no layer is meant, TypeInferError for a layer whose columns groups do not
    divide. What was compiled before, and optimizers, still refer to the old arrays.

    >>> net = meta.model.Sequential(meta.model.Linear(64, 8), meta.model.Linear(8, 2))
    >>> _ = meta.model.quantize(net, "int4", where=lambda path, layer: layer.in_features % 32 == 0)
    >>> [type(layer).__name__ for layer in net]
    ['QuantizedLinear', 'Linear']
    """
    shared = _shared_arrays(model)
    found = {
        path: layer
        for path, layer in model.paths()
        if path and isinstance(layer, Linear) and id(layer.weight) not in shared
        if where(path, layer)
    }
    if not found:
        raise ArgumentError("no layer is to be quantised", found=type(model).__name__)
    made = {id(layer): QuantizedLinear.of(layer, kind, **options) for layer in found.values()}
    return replace_models(model, made)


def _shared_arrays(model: Model) -> set[int]:
    """Return the arrays that several models hold."""
    holders: dict[int, set[int]] = {}
    for one in model.models():
        for value in one.members().values():
            if isinstance(value, ndarray):
                holders.setdefault(id(value), set()).add(id(one))
    return {array for array, models in holders.items() if len(models) > 1}


def replace_models(model: Model, others: Mapping[int, Model]) -> Model:
    """Put others in the place of models inside a model, by their ``id``; returns the model."""
    for holder in model.models():
        for name, value in list(holder.members().items()):
            inner, structure = tree.flatten(value, lambda v: isinstance(v, Model))
            if any(id(one) in others for one in inner):
                new = [others.get(id(one), one) for one in inner]
                setattr(holder, name, tree.unflatten(structure, new))
    return model
