"""What a notebook shows of an array: its type, and its values or their corners.

Only what is shown is copied from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from meta.base.html import Html, bytes_text, details, fragment, join, table, tag

if TYPE_CHECKING:
    from meta.runtime.ndarray import ndarray

EDGE_ITEMS = 3
"""Rows and columns shown at each end of an axis that is not shown whole, as NumPy does."""
MAX_EXTENT = 4 * EDGE_ITEMS
"""Axes of a matrix up to this length are shown whole."""
EDGE_MATRICES = 2
"""Matrices of a stack shown at each end."""


def array_html(array: ndarray) -> Html:
    """Return a fragment of HTML: a title, and a table of each matrix that is shown."""
    kind = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    facts = [f"on {array.device}", bytes_text(array.nbytes)]
    facts += ["requires a gradient"] * array.requires_grad
    title = [tag("span", kind, class_="code title"), tag("span", ", ".join(facts), class_="dim")]
    head = tag("div", join([*([f"{array.name}:"] if array.name else []), *title], " "))
    tensor = array.tensor
    if tensor.numel() == 0:
        return fragment(head, tag("div", "no elements", class_="dim"))
    if tensor.ndim == 0:
        return fragment(head, tag("div", number_text(_to_lists(tensor)), class_="code"))
    if tensor.ndim == 1:
        return fragment(head, _matrix(tensor.reshape(1, -1), rows=False))
    shown, left_out = _edge_matrices(tensor.shape[:-2])
    parts = []
    for number, index in enumerate(shown):
        if left_out and number == EDGE_MATRICES:
            parts.append(tag("div", f"… {left_out:,} more matrices …", class_="dim"))
        matrix = _matrix(tensor[index])
        if index:
            place = f"[{', '.join(map(str, index))}]"
            matrix = details(tag("span", place, class_="code"), matrix, open_=number == 0)
        parts.append(matrix)
    return fragment(head, *parts)


def _edge_matrices(extents: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
    """Return the indices of the matrices that are shown, and how many are not."""
    count = prod(extents)
    if count <= 2 * EDGE_MATRICES + 1:
        return list(product(*map(range, extents))), 0
    numbers = [*range(EDGE_MATRICES), *range(count - EDGE_MATRICES, count)]
    return [_unravel_index(number, extents) for number in numbers], count - len(numbers)


def _unravel_index(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    index = []
    for extent in reversed(extents):
        number, one = divmod(number, extent)
        index.append(one)
    return tuple(reversed(index))


def _matrix(tensor: torch.Tensor, rows: bool = True) -> Html:
    """Return the table of a matrix, with the numbers of its rows and columns."""
    down, across = map(_edge_ranges, tensor.shape)
    lines: list[list[object]] = []
    for number, (top, bottom) in enumerate(down):
        parts = [_to_lists(tensor[top:bottom, left:right]) for left, right in across]
        if number:
            lines.append([_dimmed("⋮") if rows else "", *[""] * (len(lines[0]) - 1)])
        for i in range(bottom - top):
            values: list[object] = [number_text(v) for v in parts[0][i]]
            for part in parts[1:]:
                values += [_dimmed("…"), *map(number_text, part[i])]
            lines.append([*([_dimmed(top + i)] if rows else []), *values])
    columns: list[object] = [_dimmed(i) for i in range(*across[0])]
    for piece in across[1:]:
        columns += ["", *(_dimmed(i) for i in range(*piece))]
    head = [*([""] if rows else []), *columns]
    return table(head, lines, numbers=range(len(head)), most=None)


def _edge_ranges(extent: int) -> list[tuple[int, int]]:
    """Return the ranges of an axis that are shown."""
    if extent <= MAX_EXTENT:
        return [(0, extent)]
    return [(0, EDGE_ITEMS), (extent - EDGE_ITEMS, extent)]


def _to_lists(piece: torch.Tensor) -> Any:
    """Copy a piece of at most `MAX_EXTENT` by `MAX_EXTENT` elements, as nested lists of numbers."""
    return piece.detach().cpu().tolist()


def _dimmed(content: object) -> Html:
    return tag("span", content, class_="dim")


def number_text(value: Any) -> str:
    """Return a number as a table has it: of a floating point one four digits."""
    if isinstance(value, complex):
        return f"{value:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
