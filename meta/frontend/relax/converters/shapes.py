"""Converters of operators on shapes, which are numbers while converting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import CallSite, Unconvertible, known
from meta.frontend.relax.extents import RuntimeShape, Shape
from meta.frontend.relax.registry import relax
from meta.runtime.ndarray import array


def numbers(value: Any, what: str) -> list[Any]:
    """Return the numbers in a shape, a tuple of numbers or a known vector; Unconvertible for a
    vector that is not known.
    """
    if isinstance(value, tuple | list):
        return list(value)
    now = known(value)
    if now is None:
        raise Unconvertible(
            f"{what} depends on the values of inputs", hint="give such inputs as constants"
        )
    return [int(v) for v in now.numpy().reshape(-1)]


@relax("shape_of")
def shape_of(x: Any) -> Shape:
    return Shape(x.shape)


@relax("shape_to_tensor", op.cast)
def shape_to_tensor(shape: Any, *, call: CallSite) -> Any:
    if isinstance(shape, RuntimeShape):
        return op.cast(shape.vector, "int64")
    if not all(isinstance(e, int) for e in shape):
        raise Unconvertible("an extent that is known by name only is computed with as an array")
    return array(np.array(shape, dtype=np.int64), device=call.device)


@relax("tensor_to_shape")
def tensor_to_shape(x: Any) -> Shape | RuntimeShape:
    if known(x) is None and isinstance(x.shape[0], int):
        return RuntimeShape(x)
    return Shape(numbers(x, "a shape"))


@relax("size")
def size(x: Any, *, call: CallSite) -> Any:
    if not all(isinstance(e, int) for e in x.shape):
        raise Unconvertible("an extent that is known by name only is computed with as an array")
    return array(np.array(math.prod(x.shape), dtype=np.int64), device=call.device)
