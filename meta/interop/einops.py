"""einops on arrays, and on values of a program that is traced.

einops looks for its backends among the subclasses of its base class. This one is imported behind
that (`meta.base.after_import`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einops._backends import AbstractBackend

from meta import op
from meta.base.dtype import FLOATS
from meta.op.core.tracing import Symbol
from meta.runtime.ndarray import ndarray


class Backend(AbstractBackend):  # type: ignore[misc]
    """What einops asks of a library of arrays, by our operators."""

    framework_name = "meta"

    def is_appropriate_type(self, tensor: object) -> bool:
        """Whether this is the backend of a value."""
        return isinstance(tensor, ndarray | Symbol)

    def to_numpy(self, x: ndarray) -> Any:
        """Return the values of an array."""
        return x.detach().numpy()

    def reshape(self, x: Any, shape: Sequence[Any]) -> Any:
        """Return the elements in another shape."""
        return op.reshape(x, tuple(shape))

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        """Return the array with its axes in this order."""
        return op.permute_dims(x, tuple(axes))

    def reduce(self, x: Any, operation: str, axes: Sequence[int]) -> Any:
        """Return the operator of this name over axes."""
        return getattr(op, operation)(x, tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: Sequence[Any]) -> Any:
        """Return arrays of one shape as one, along a new first axis."""
        return op.stack(tuple(tensors))

    def add_axis(self, x: Any, new_position: int) -> Any:
        """Return the array with another axis of extent 1."""
        return op.expand_dims(x, new_position)

    def add_axes(self, x: Any, n_axes: int, pos2len: Mapping[int, Any]) -> Any:
        """Return the array repeated along new axes."""
        for axis in pos2len:
            x = op.expand_dims(x, axis)
        return op.broadcast_to(x, tuple(pos2len.get(i, d) for i, d in enumerate(x.shape)))

    def concat(self, tensors: Sequence[Any], axis: int) -> Any:
        """Return arrays joined along an axis."""
        return op.concat(tuple(tensors), axis)

    def is_float_type(self, x: Any) -> bool:
        """Whether there is a mean."""
        return x.dtype in FLOATS

    def einsum(self, pattern: str, *x: Any) -> Any:
        """Return a sum of products."""
        return op.einsum(pattern, *x)
