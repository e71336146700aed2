"""Functions that join arrays by rows and columns, cut them into uneven parts and turn them, by the
names and with the meaning that NumPy and torch share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta import op
from meta.base.errors import TypeInferError
from meta.op.core.check import normalize_axis
from meta.op.core.function import as_operand, function, make_writable


def _of_rank(x: Any, ndim: int) -> Any:
    """Return an array with axes of extent 1 added: (n,) is (1, n), and (m, n) is (m, n, 1)."""
    x = as_operand(x)
    if x.ndim >= ndim:
        return x
    shape = {0: (1, 1, 1), 1: (1, *x.shape, 1)}.get(x.ndim, (*x.shape, 1))
    return op.reshape(x, shape[:ndim] if ndim > 1 else shape[:1])


def _require_sequence(name: str, arrays: Any) -> Sequence[Any]:
    if isinstance(arrays, tuple | list) and arrays:
        return arrays
    raise TypeInferError(
        "arrays are given as a sequence",
        op=name,
        expected="a tuple or list of at least one array",
        found=type(arrays).__name__,
        hint=f"meta.{name}((a, b))",
    )


@function
def hstack(arrays: Sequence[Any]) -> Any:
    """Return arrays joined along their second axis, vectors along their only one.

    >>> meta.hstack((meta.array([1]), meta.array([2, 3]))).tolist()
    [1, 2, 3]
    """
    given = [_of_rank(a, 1) for a in _require_sequence("hstack", arrays)]
    return op.concat(tuple(given), 0 if given[0].ndim == 1 else 1)


@function
def vstack(arrays: Sequence[Any]) -> Any:
    """Return arrays joined along their first axis; a vector is a row.

    >>> meta.vstack((meta.array([1, 2]), meta.array([3, 4]))).tolist()
    [[1, 2], [3, 4]]
    """
    return op.concat(tuple(_of_rank(a, 2) for a in _require_sequence("vstack", arrays)), 0)


@function
def dstack(arrays: Sequence[Any]) -> Any:
    """Return arrays joined along their third axis: (n,) is (1, n, 1), (m, n) is (m, n, 1).

    >>> meta.dstack((meta.ones(3), meta.zeros(3))).shape
    (1, 3, 2)
    """
    return op.concat(tuple(_of_rank(a, 3) for a in _require_sequence("dstack", arrays)), 2)


@function
def array_split(x: Any, sections: int, axis: int = 0) -> tuple[Any, ...]:
    """Return ``sections`` parts along ``axis``, of which the first may be longer by 1.

    Unlike `split` it does not ask for equal parts. As NumPy's `array_split`, torch's
    `tensor_split`. Raises TypeInferError for an unknown extent, and for less than one part.

    >>> [x.shape for x in meta.array_split(meta.ones(5), 2)]
    [(3,), (2,)]
    """
    x = as_operand(x)
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    if not isinstance(extent, int) or not isinstance(sections, int) or sections < 1:
        expected = "at least 1 section of a known extent"
        found = f"sections={sections} of extent {extent}"
        raise TypeInferError(
            "the axis cannot be split", op="array_split", expected=expected, found=found
        )
    size, longer = divmod(extent, sections)
    ends = [size * i + min(i, longer) for i in range(1, sections)]
    parts: tuple[Any, ...] = op.split(x, tuple(ends) or 1, at)
    return parts


@function
def rot90(x: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """Return ``x`` turned ``k`` times by 90 degrees in the plane of two axes, from the first
    towards the second. Raises TypeInferError for one axis named twice.

    >>> meta.rot90(meta.array([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    x = as_operand(x)
    first, second = (normalize_axis(a, x.ndim) for a in axes)
    if first == second:
        raise TypeInferError("a plane has two axes", op="rot90", found=f"axes={axes}")
    turns = k % 4
    if turns == 2:
        return _flipped(_flipped(x, first), second)
    if turns == 1:
        return make_writable(_exchanged(_flipped(x, second), first, second))
    return _flipped(_exchanged(x, first, second), second) if turns else op.copy(x)


def _flipped(x: Any, axis: int) -> Any:
    return op.flip(x, axis)


def _exchanged(x: Any, first: int, second: int) -> Any:
    return op.swapaxes(x, first, second)


@function
def diag(x: Any, k: int = 0) -> Any:
    """Return diagonal ``k`` of a matrix, or the matrix with a vector on this diagonal, else 0.

    A positive k lies above the main diagonal. Raises TypeInferError for other than 1 or 2 axes.

    >>> meta.diag(meta.array([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x = as_operand(x)
    if x.ndim == 2:
        return op.diagonal(x, k)
    if x.ndim != 1:
        raise TypeInferError(
            "x is no vector and no matrix",
            op="diag",
            expected="1 or 2 axes",
            found=f"{x.ndim} axes",
            hint="meta.diagonal(x, offset, axis1, axis2) of more axes",
        )
    size = x.shape[0] + abs(k)
    return op.diagonal_dx(x, (size, size), k)
