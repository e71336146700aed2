"""Numbers added to the scores that grow evenly from key to key, with a slope for each head, as in
ALiBi (Press et al., arXiv:2108.12409): the operator's ``slopes``, which it multiplies by the
distance of query and key, so that no kernel reads the numbers.

Programs write such numbers of the distance, or of the key's place alone (Bloom, MPT). Both differ
by one number for each query, of which softmax does not depend, where queries look to one side
only. They are the operator's where that is exact: in half precision the places themselves are
rounded from 256 on, and such numbers stay a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

ROUNDING = 2.0**-22
"""By how much the numbers may be off, of the largest of a head: a few roundings of float32."""


def slopes_of(numbers: torch.Tensor, seen: torch.Tensor) -> torch.Tensor | None:
    """Return the slopes of numbers that are added to scores, None where they have none.

    numbers: float64 [..., rows or 1, keys]. seen: bool [rows, keys], which keys a query may see; it
    sees at least one. Result: float64 [...]: ``numbers + slopes * abs(i - j)`` is the same for all
    keys j that query i may see.
    """
    rows, keys = seen.shape
    lead = numbers.shape[:-2]
    if keys == 1 or numbers.shape[-1] == 1 or not numbers.isfinite().all():
        return None
    distance = torch.arange(keys) - torch.arange(rows).unsqueeze(-1)
    if numbers.shape[-2] == 1 and rows > 1:
        before, after = (not bool(seen[distance * side > 0].any()) for side in (1, -1))
        if not (before or after):
            return None
        slopes = _by_position(numbers.squeeze(-2))
        return None if slopes is None else slopes if before else -slopes
    found = [_of_distances(numbers[at], seen, distance.abs()) for at in _indices(lead)]
    if any(slope is None for slope in found) or not any(found):
        return None
    return torch.tensor(found, dtype=torch.float64).reshape(lead)


def _indices(shape: torch.Size) -> Iterator[tuple[int, ...]]:
    return product(*map(range, shape))


def _by_position(numbers: torch.Tensor) -> torch.Tensor | None:
    """Return by how much numbers grow from one key to the next, None if that differs, or is 0."""
    places = torch.arange(numbers.shape[-1], dtype=torch.float64)
    first = numbers[..., :1]
    slopes = (numbers[..., -1:] - first) / places[-1]
    off = (first + slopes * places - numbers).abs().amax(-1)
    even = bool((off <= ROUNDING * numbers.abs().amax(-1)).all())
    return slopes.squeeze(-1) if even and bool(slopes.any()) else None


def _of_distances(
    numbers: torch.Tensor, seen: torch.Tensor, distance: torch.Tensor
) -> float | None:
    """Return by how much the numbers of a head, [rows or 1, keys], fall with the distance; None if
    that differs from key to key.
    """
    numbers = numbers.expand(seen.shape)
    near = distance.masked_fill(~seen, distance.numel()).min(-1)
    far = distance.masked_fill(~seen, -1).max(-1)
    spread = far.values - near.values
    row = int(spread.argmax())
    if spread[row] <= 0:
        return 0.0
    fall = numbers[row, near.indices[row]] - numbers[row, far.indices[row]]
    slope = fall / spread[row]
    level = numbers + slope * distance
    off = (level - level.gather(-1, near.indices.unsqueeze(-1)))[seen].abs().max()
    return float(slope) if off <= ROUNDING * numbers[seen].abs().max() else None
