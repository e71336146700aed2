"""Which layers of a decoder are quantised while it is loaded, and how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.base.errors import ArgumentError, FormatError, MetaError
from meta.base.registry import nearest
from meta.language.decoder import Decoder, Mixture
from meta.language.layouts import PackedWeight
from meta.model.layers.basic import Linear
from meta.model.layers.quantized import QuantizedLinear
from meta.op.quantized import KINDS
from meta.runtime.ndarray import ndarray


@dataclass(frozen=True)
class Quantization:
    """How `load` rounds the weights of linear layers: see `quantize_weight`.

    Attributes
    ----------
    kind: "int8", "int4" or "float8". group: columns that share a scale; all of a row if None.
    symmetric: whether there are no zeros. head: whether the head is rounded, too; embeddings, norms
    and routers never are.

    >>> meta.language.Quantization("int4", group=32, symmetric=False).head
    False
    """

    kind: str = "int8"
    group: int | None = None
    symmetric: bool = True
    head: bool = False


SHORT = {kind: Quantization(kind, group=64 if kind == "int4" else None) for kind in KINDS}
"""What the name of a kind stands for."""


def quantization_of(said: str | Quantization) -> Quantization:
    """Return what ``load(quantize=)`` says; ArgumentError for a name that is none."""
    if isinstance(said, Quantization):
        return said
    if said not in SHORT:
        raise ArgumentError(
            "there are no such quantised weights",
            expected=f"{', '.join(SHORT)} or a Quantization",
            found=said,
            hint=nearest(str(said), SHORT),
        )
    return SHORT[said]


def quantizable(model: Decoder) -> Iterator[tuple[str, Linear]]:
    """Yield the linear layers of a decoder by path, but those that choose experts."""
    choosing = {id(v) for m in model.models() if isinstance(m, Mixture) for v in vars(m).values()}
    for path, layer in model.paths():
        if isinstance(layer, Linear) and id(layer) not in choosing:
            yield path, layer


def rounded(path: str, weight: ndarray, bias: ndarray | None, how: Quantization) -> Any:
    """Return a layer of a rounded weight."""
    options: dict[str, Any] = {"group": how.group, "symmetric": how.symmetric}
    if how.group is not None and weight.device.kind != "cpu":
        # Where reading them takes time; the CPU would convert one by one.
        options["scale_dtype"] = "float16"
    try:
        stored, scales, zeros = op.quantize_weight(weight, how.kind, **options)
    except MetaError as error:
        error.note(f"layer: {path}")
        raise
    return QuantizedLinear.made_of(stored, scales, zeros, bias)


def layer_of_packed(
    path: str, parts: PackedWeight, bias: ndarray | None, layer: Linear, device: Device
) -> QuantizedLinear:
    """Return a layer of a weight that was quantised before; FormatError for another shape."""
    columns = parts.weight.shape[1] * (2 if parts.weight.dtype is torch.uint8 else 1)
    found = [parts.weight.shape[0], columns]
    if found != list(layer.weight.shape):
        raise FormatError(
            f"{path} has another shape than config.json says",
            expected=list(layer.weight.shape),
            found=found,
        )
    # The CPU would convert scales one by one at each call.
    wide = device.kind == "cpu"
    weight, *others = parts
    scales, zeros = (None if t is None else t.float() if wide else t for t in others)
    arrays = (None if t is None else ndarray(t.to(device)) for t in (weight, scales, zeros))
    stored, scale, zero = arrays
    assert stored is not None
    assert scale is not None
    return QuantizedLinear.made_of(stored, scale, zero, bias)
