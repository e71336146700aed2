"""The angles of rotary position embeddings, and how models stretch them to longer texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from meta import op
from meta.base.errors import ArgumentError
from meta.model.zoo.transformer import device_of
from meta.runtime.ndarray import ndarray

Parameters = Mapping[str, Any]


def _default(frequencies: torch.Tensor, _: Parameters) -> torch.Tensor:
    return frequencies


def _linear(frequencies: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Positions are divided by the factor (Chen et al., arXiv:2306.15595)."""
    return frequencies / parameters["factor"]


def _llama3(frequencies: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Low frequencies are divided, high ones are kept, those between are blended, by how often the
    wave length fits into the original context (Grattafiori et al., arXiv:2407.21783).
    """
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * frequencies / parameters["factor"] + share * frequencies


_TYPES: dict[str, tuple[Callable[[torch.Tensor, Parameters], torch.Tensor], tuple[str, ...]]] = {
    "default": (_default, ()),
    "linear": (_linear, ("factor",)),
    "llama3": (
        _llama3,
        (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
    ),
}


def check_rope(parameters: Parameters) -> None:
    """Raise ArgumentError for a type of scaling that is not known, or without its numbers."""
    kind = parameters.get("rope_type", "default")
    if kind not in _TYPES:
        raise ArgumentError(
            f"there is no rope_type {kind!r}", expected=", ".join(_TYPES), found=dict(parameters)
        )
    missing = [n for n in ("rope_theta", *_TYPES[kind][1]) if n not in parameters]
    if missing:
        raise ArgumentError(
            f"rope_parameters of type {kind!r} lack {', '.join(missing)}", found=dict(parameters)
        )


def rotary_tables(
    parameters: Parameters, width: int, like: Any, steps: int, position_ids: Any = None
) -> tuple[Any, Any]:
    """Return cos and sin of ``position * frequency``, float32.

    parameters: ``rope_type``, ``rope_theta`` and what the type needs. width: of a head. like: an
    array on the device of the result. position_ids: integers [n, steps]; 0 .. steps - 1 unless
    given. Results: [n, steps, 1, width / 2], or [steps, 1, width / 2] without positions.
    """
    check_rope(parameters)
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    scale, _ = _TYPES[parameters.get("rope_type", "default")]
    frequencies = scale(1.0 / parameters["rope_theta"] ** exponents, parameters)
    where = device_of(like)
    if position_ids is None:
        positions = op.reshape(op.arange(0, steps, 1, "float32", where), (steps, 1, 1))
    else:
        shape = (*position_ids.shape, 1, 1)
        positions = op.reshape(op.cast(position_ids, "float32"), shape)
    angles = op.multiply(positions, ndarray(frequencies.to(where)))
    return op.cos(angles), op.sin(angles)
