"""Rotary positions (Su et al., arXiv:2104.09864): the angles of each position, and how models
stretch them to longer texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from meta import op
from meta.base.errors import ArgumentError
from meta.op.core.function import device_of
from meta.runtime.ndarray import ndarray

Parameters = Mapping[str, Any]
"""``rope_type``, ``rope_theta`` and the numbers of the type, by transformers' names."""
Frequencies = Callable[[torch.Tensor, Parameters, Any], Any]
"""Returns the frequencies, for those of the type "default", parameters, and the length that texts
have now, int64 of shape (1,), [n, 1, 1, 1] or [n, steps, 1, 1].
"""


def _default(frequencies: torch.Tensor, parameters: Parameters, length: Any) -> Any:
    return frequencies


def _linear(frequencies: torch.Tensor, parameters: Parameters, length: Any) -> Any:
    """Positions are divided by the factor (Chen et al., arXiv:2306.15595)."""
    return torch.div(frequencies, parameters["factor"])


def _llama3(frequencies: torch.Tensor, parameters: Parameters, length: Any) -> Any:
    """Divide low frequencies, keep high ones, blend those between (arXiv:2407.21783)."""
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    scaled = torch.div((1 - share) * frequencies, parameters["factor"])
    return torch.add(scaled, share * frequencies)


def _yarn(frequencies: torch.Tensor, parameters: Parameters, length: Any) -> Any:
    """Divide the frequencies that turn less than ``beta_slow`` times within the original length,
    keep those that turn more than ``beta_fast`` times (Peng et al., arXiv:2309.00071).
    """
    count, theta = len(frequencies), parameters["rope_theta"]
    original = parameters["original_max_position_embeddings"]
    ends = []
    for name, default in (("beta_fast", 32), ("beta_slow", 1)):
        turns = parameters.get(name) or default
        ends.append(count * math.log(original / (turns * 2 * math.pi)) / math.log(theta))
    if parameters.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], 2 * count - 1)
    step = max(last - first, 1e-3)
    kept = 1 - ((torch.arange(count, dtype=torch.float32) - first) / step).clamp(0, 1)
    scaled = torch.div(frequencies, parameters["factor"])
    return torch.add(scaled * (1 - kept), frequencies * kept)


def _dynamic(frequencies: torch.Tensor, parameters: Parameters, length: Any) -> Any:
    """The base grows with the text, once that is longer than the model's: "NTK-aware" scaling."""
    known, factor = parameters["max_position_embeddings"], parameters["factor"]
    count = len(frequencies)
    longer = op.astype(op.maximum(length, known), "float32")
    stretch = op.subtract(op.multiply(longer, factor / known), factor - 1.0)
    exponents = torch.arange(count, dtype=torch.float32) / max(count - 1, 1)
    powers = op.pow(stretch, ndarray(exponents.to(device_of(length))))
    return op.divide(ndarray(frequencies.to(device_of(length))), powers)


def _longrope(frequencies: torch.Tensor, parameters: Parameters, length: Any) -> Any:
    """Each frequency has a divisor for short texts and one for long ones (arXiv:2402.13753)."""
    short, long = (
        ndarray((frequencies / torch.tensor(parameters[name])).to(device_of(length)))
        for name in ("short_factor", "long_factor")
    )
    is_long = op.greater(length, parameters["original_max_position_embeddings"])
    return op.where(is_long, long, short)


_ORIGINAL = "original_max_position_embeddings"
_TYPES: dict[str, tuple[Frequencies, tuple[str, ...], str | None]] = {
    "default": (_default, (), None),
    "linear": (_linear, ("factor",), None),
    "dynamic": (_dynamic, ("factor", "max_position_embeddings"), "max_position_embeddings"),
    "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL), None),
    "longrope": (_longrope, ("short_factor", "long_factor", _ORIGINAL), _ORIGINAL),
    "yarn": (_yarn, ("factor", _ORIGINAL), None),
}
"""Frequencies, the parameters that they need, and which of these is the length of the longest text
whose length they do not depend on; None where they never do.
"""


def check_rope(parameters: Parameters) -> None:
    """Raise ArgumentError for a type of scaling that is not known, or without its numbers."""
    kind = parameters.get("rope_type", "default")
    if kind not in _TYPES:
        raise ArgumentError(
            f"there is no rope_type {kind!r}", expected=", ".join(_TYPES), found=dict(parameters)
        )
    missing = [n for n in ("rope_theta", *_TYPES[kind][1]) if parameters.get(n) is None]
    if missing:
        raise ArgumentError(
            f"rope_parameters of type {kind!r} lack {', '.join(missing)}", found=dict(parameters)
        )


def steady_length(parameters: Parameters) -> int | None:
    """Return the length of the longest text whose angles do not depend on its length; None where
    they never do.
    """
    name = _TYPES[parameters.get("rope_type", "default")][2]
    return None if name is None else int(parameters[name])


def rope_of(values: Mapping[str, Any], theta: float = 10000.0) -> dict[str, Any]:
    """Return the parameters in a ``config.json``, of transformers 4 too, whose files have
    ``rope_theta`` and ``rope_scaling``, with the lengths that stand beside them.
    """
    found = values.get("rope_parameters")
    if found is None:
        found = dict(values.get("rope_scaling") or {})
        kind = found.pop("type", None) or found.get("rope_type", "default")
        base = values.get("rope_theta", theta)
        found = {"rope_theta": base, **found, "rope_type": kind}
    return _with_lengths(found, values)


def _with_lengths(parameters: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the numbers that their type needs and the configuration has."""
    found = dict(parameters)
    for name in _TYPES.get(found.get("rope_type", "default"), (None, (), None))[1]:
        if found.get(name) is None and values.get(name) is not None:
            found[name] = values[name]
    original, longest = found.get(_ORIGINAL), values.get("max_position_embeddings")
    if found.get("rope_type") in ("longrope", "yarn") and found.get("factor") is None:
        found["factor"] = longest / original if longest and original else None
    return found


def _attention_factor(parameters: Parameters) -> float:
    """Return what cos and sin are multiplied by, so that scores keep their spread."""
    kind, factor = parameters.get("rope_type", "default"), parameters.get("factor")
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)
    if kind == "longrope" and factor is not None and factor > 1:
        return math.sqrt(1 + math.log(factor) / math.log(parameters[_ORIGINAL]))
    if kind != "yarn" or factor is None:
        return 1.0

    def spread(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    over, under = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return spread(over) / spread(under) if over and under else spread(1.0)


def rotary_tables(
    parameters: Parameters,
    width: int,
    like: Any,
    steps: int,
    position_ids: Any = None,
    lengths: Any = None,
) -> tuple[Any, Any]:
    """Return cos and sin of ``position * frequency``, float32.

    width: of what is rotated of a head. like: an array on the device of the result. position_ids:
    integers [n, steps]; 0 .. steps - 1 unless given. lengths: int64, of the texts [n], or [n,
    steps], as each token has it; up to the last position of all unless given. Results: [n, steps,
    1, width / 2], or [steps, 1, width / 2] without positions.
    """
    check_rope(parameters)
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    where = device_of(like)
    if position_ids is None:
        length = op.full((1,), steps, "int64", where)
        positions = op.reshape(op.arange(0, steps, 1, "float32", where), (steps, 1, 1))
    else:
        if lengths is None:
            length = op.reshape(op.astype(op.add(op.max(position_ids), 1), "int64"), (1,))
        else:
            length = op.reshape(lengths, (lengths.shape[0], -1, 1, 1))
        shape = (*position_ids.shape, 1, 1)
        positions = op.reshape(op.astype(position_ids, "float32"), shape)
    scale = _TYPES[parameters.get("rope_type", "default")][0]
    frequencies = scale(1.0 / parameters["rope_theta"] ** exponents, parameters, length)
    if isinstance(frequencies, torch.Tensor):
        frequencies = ndarray(frequencies.to(where))
    angles = op.multiply(positions, frequencies)
    factor = _attention_factor(parameters)
    cos, sin = op.cos(angles), op.sin(angles)
    return (cos, sin) if factor == 1 else (op.multiply(cos, factor), op.multiply(sin, factor))
