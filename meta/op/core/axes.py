"""Permutations of axes, for type functions and kernels."""

from __future__ import annotations

from meta.base.bounds import MAX_AXES
from meta.op.core.check import normalize_axis, require


def permutation(axes: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the axis of the argument for every axis of a transposed result; None reverses all."""
    if axes is None:
        return tuple(reversed(range(ndim)))
    given = (axes,) if isinstance(axes, int) else axes
    result = tuple(normalize_axis(a, ndim) for a in given)
    fits = sorted(result) == list(range(ndim))
    expected = f"a permutation of 0 .. {ndim - 1}"
    require(fits, "axes must name every axis once", expected=expected, found=axes)
    return result


def require_new_axes(count: int) -> None:
    """Raise TypeInferError for a number of axes to be inserted that no array can have."""
    fits = 0 <= count <= MAX_AXES
    require(fits, "num_newaxis is no number of axes", expected=f"0 to {MAX_AXES}", found=count)


def inverse_permutation(axes: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the permutation that undoes another."""
    order = permutation(axes, ndim)
    return tuple(order.index(i) for i in range(ndim))


def swapped(axis1: int, axis2: int, ndim: int) -> tuple[int, ...]:
    """Return the permutation that exchanges two axes."""
    a, b = normalize_axis(axis1, ndim), normalize_axis(axis2, ndim)
    return tuple(b if i == a else a if i == b else i for i in range(ndim))
