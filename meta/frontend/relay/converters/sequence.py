"""Converters of operators on batches of sequences of different lengths."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core.arithmetic import number_in
from meta.frontend.relay.arguments import as_integers
from meta.frontend.relay.registry import relay


@relay("sequence_mask", op.sequence_mask)
def sequence_mask(data: Any, valid_length: Any, *, mask_value: float, axis: int) -> Any:
    """Positions are on axis 0 or 1, the batch on the other."""
    value = number_in(mask_value, data.dtype)
    return op.sequence_mask(data, as_integers(valid_length), value, axis)


@relay("reverse_sequence", op.reverse_sequence)
def reverse_sequence(
    data: Any, seq_lengths: Any, *, seq_axis: int | None, batch_axis: int | None
) -> Any:
    """Only as far as each sequence goes."""
    axis = 1 if seq_axis is None else seq_axis
    return op.reverse_sequence(data, as_integers(seq_lengths), axis, batch_axis or 0)
