"""What converters do to their arguments: numbers out of constants, constants out of numbers,
shapes, and layouts, "NCHW16c": reading them, and changing a tensor from one to another.

In a layout an upper case letter is a whole (primal) axis, its outer part where the layout splits
it; a number with a lower case letter is an inner part of that many elements. Several parts of one
axis nest in the order in which they stand, outermost first.

Converters of windows (convolution, pooling) give a layout that only orders the axes to the base
operator as it is; one that splits an axis is changed to such a one before, and back behind.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import CallSite, Unconvertible, known
from meta.frontend.relay import ast
from meta.ir.dims import Dim, SymbolicDim, UnknownDim
from meta.op.core.check import normalize_axis
from meta.runtime.ndarray import array, ndarray

WHOLE = sys.maxsize
"""An end that no axis reaches: the slice keeps the rest."""


def known_ints(value: Any) -> tuple[int, ...] | None:
    """Return the integers of a vector or scalar that is known while converting, otherwise None."""
    values = known(value)
    return None if values is None else tuple(int(v) for v in values.numpy().reshape(-1))


def known_number(value: Any) -> int | float | bool | None:
    """Return the number of a scalar that is known while converting, otherwise None."""
    values = known(value)
    if values is None:
        return None
    if values.size != 1:
        raise Unconvertible(f"a scalar is needed, not shape {list(values.shape)}")
    return values.item() if values.ndim == 0 else values.numpy().reshape(-1)[0].item()


def constant(values: Any, dtype: str, call: CallSite) -> ndarray:
    """Return an array of the converter's own making, on the device of the program."""
    return array(np.asarray(values), dtype=dtype, device=call.device)


def result_dtype(call: CallSite, default: str, index: int | None = None) -> str:
    """Return the dtype that the file states for the result, or for one field of a tuple; the
    default where it states none.
    """
    stated = call.result_type
    if isinstance(stated, ast.TupleType) and index is not None and index < len(stated.fields):
        stated = stated.fields[index]
    return stated.dtype if isinstance(stated, ast.TensorType) else default


def along(vector: Any, ndim: int, axis: int) -> Any:
    """Return a vector with axes of extent 1, so that it lies along one axis of a tensor."""
    at = normalize_axis(axis, ndim)
    return op.reshape(vector, tuple(vector.shape[0] if i == at else 1 for i in range(ndim)))


def as_integers(x: Any) -> Any:
    """Return indices or lengths, which may be stated in floats, as integers."""
    return x if "int" in x.dtype else op.cast(x, "int64")


def ints(value: Any) -> tuple[int, ...]:
    """Return an attribute that is a list of integers, a number or unset as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def extent_of(data: Any, axis: int) -> Any:
    """Return an extent as an int, or as an int64 scalar where only the run time knows it."""
    extent = data.shape[axis]
    if isinstance(extent, int):
        return extent
    return op.reshape(op.strided_slice(op.shape_as_tensor(data), (axis,), (axis + 1,)), ())


def vector(numbers: Sequence[Any], call: CallSite) -> Any:
    """Return ints and scalars of integers as one vector of int64."""
    parts = [
        constant([n], "int64", call)
        if isinstance(n, int)
        else op.cast(op.reshape(n, (1,)), "int64")
        for n in numbers
    ]
    return op.concatenate(tuple(parts), 0) if parts else constant([], "int64", call)


def is_static(shape: Sequence[Dim]) -> bool:
    """Whether all extents are numbers."""
    return all(isinstance(d, int) for d in shape)


def static_extent(extent: Dim, what: str) -> int:
    """Return an extent that has to be a number; Unconvertible if it is none."""
    if isinstance(extent, SymbolicDim | UnknownDim):
        raise Unconvertible(f"{what} has the extent {extent}, which has to be a number")
    return extent


_AXIS = re.compile(r"([A-Z])|([0-9]{1,9})([a-z])")


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout as it is read.

    Attributes
    ----------
    axes: for every axis of a tensor its letter (upper case), and the extent that it has as an
        inner part, None for the primal axis.
    """

    axes: tuple[tuple[str, int | None], ...]

    @property
    def primal(self) -> str:
        """The letters of the primal axes in order: the layout without its inner parts."""
        return "".join(letter for letter, factor in self.axes if factor is None)

    @property
    def is_plain(self) -> bool:
        """Whether no axis is split."""
        return all(factor is None for _, factor in self.axes)

    def parts(self, letter: str) -> tuple[int, ...]:
        """Return the extents of the inner parts of a primal axis, outermost first."""
        return tuple(f for a, f in self.axes if a == letter and f is not None)

    def places(self, letter: str) -> tuple[int, ...]:
        """Return where the parts of a primal axis stand: the outer part, then the inner ones."""
        outer = [i for i, (a, f) in enumerate(self.axes) if a == letter and f is None]
        return (*outer, *(i for i, (a, f) in enumerate(self.axes) if a == letter and f))


@cache
def read_layout(text: str) -> Layout:
    """Read "NCHW", "NCHW16c", "OIHW4i16o4i".

    Raises Unconvertible for what is no layout: other characters, an axis named twice, a part of an
    axis that is not there, a part without elements.
    """
    found = list(_AXIS.finditer(text))
    axes = tuple((m[1], None) if m[1] else (m[3].upper(), int(m[2])) for m in found)
    letters = [a for a, factor in axes if factor is None]
    whole = "".join(m[0] for m in found) == text
    sane = len(set(letters)) == len(letters) and all(
        a in letters and (factor is None or factor > 0) for a, factor in axes
    )
    if not (text and whole and sane):
        raise Unconvertible(f"{text!r} is no layout", hint='such as "NHWC" or "NCHW16c"')
    return Layout(axes)


def change_layout(x: Any, source: str, target: str) -> Any:
    """Return a tensor in another layout, as views and transpositions.

    An axis that the target splits is filled up with zeros to a multiple of the inner parts; one
    that the source splits keeps what it was filled up with. The layouts name the same axes.
    """
    old, new = read_layout(source), read_layout(target)
    if old == new:
        return x
    if len(old.axes) != len(x.shape):
        raise Unconvertible(f"a tensor with {len(x.shape)} axes has no layout {source!r}")
    if sorted(old.primal) != sorted(new.primal):
        raise Unconvertible(f"the layouts {source!r} and {target!r} name different axes")
    return _split(_merged(x, old, new.primal), new)


def to_plain(x: Any, layout: str) -> Any:
    """Return a tensor with its split axes merged, the axes in the order of the primal letters:
    "NCHW16c" becomes "NCHW".
    """
    return change_layout(x, layout, read_layout(layout).primal)


def _transposed(x: Any, axes: tuple[int, ...]) -> Any:
    return x if axes == tuple(range(len(axes))) else op.transpose(x, axes)


def _merged(x: Any, layout: Layout, order: str) -> Any:
    """Return a tensor without inner parts, its axes in the given order of letters."""
    groups = [layout.places(letter) for letter in order]
    x = _transposed(x, tuple(i for group in groups for i in group))
    if layout.is_plain:
        return x
    extents, at = [], 0
    for group in groups:
        extents.append(prod(x.shape[at : at + len(group)]))
        at += len(group)
    return op.reshape(x, tuple(extents))


def _split(x: Any, layout: Layout) -> Any:
    """Return a tensor whose axes are the primal letters in order with the layout's inner parts."""
    if layout.is_plain:
        return x
    extents: list[Any] = []
    pad_width: list[int] = []
    order = []
    for letter, extent in zip(layout.primal, x.shape, strict=True):
        parts = layout.parts(letter)
        size = prod(parts)
        missing = -extent % size if parts else 0
        pad_width += [0, missing]
        extents += [(extent + missing) // size if parts else extent, *parts]
        order += layout.places(letter)
    if any(p != 0 for p in pad_width):
        x = op.pad(x, tuple(pad_width))
    x = op.reshape(x, tuple(extents))
    return _transposed(x, tuple(order.index(i) for i in range(len(order))))


def per_axis(values: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """Return a list of numbers as base operators take them: a single one holds for all axes."""
    return values[0] if isinstance(values, tuple) and len(values) == 1 else values


def extents(x: Any, layout: str, letters: str) -> tuple[Any, ...]:
    """Return x's extents along the axes that ``letters`` name in a plain layout."""
    return tuple(x.shape[layout.index(letter)] for letter in letters)


def plain(layout: str) -> str:
    """Return a layout without its inner parts, "NCHW" of "NCHW16c"."""
    return read_layout(layout).primal
