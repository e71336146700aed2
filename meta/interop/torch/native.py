"""`Native`: the kernel of PyTorch's that an enabled overload has below ours.

A number in the place of a tensor, as in ``x * 2``, comes to a kernel of Python as the number, and
PyTorch's own kernel does not take one. It is given a tensor without axes in such a dtype that it
counts as the number does: where it does not raise the kind of the result, the widest of its kind,
else PyTorch's default. Among tensors without axes, which would count as much as it does, these are
seen with one axis meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meta.base.bounded_cache import bounded_insert
from meta.interop.torch.overloads import Overload

_NUMBERS = (bool, int, float, complex)
_MAX_NUMBERS = 1024
"""Numbers whose tensors are kept."""


class Native:
    """Calls PyTorch's kernel of an overload for one dispatch key, as it was when this was made."""

    __slots__ = ("call", "kernel", "places")

    def __init__(self, overload: Overload, key: str) -> None:
        self.kernel = torch.library.get_kernel(overload, key)
        # PyTorch gives the keys that are left to a kernel: below autograd these are of the device.
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        self.call: Callable[..., Any] = partial(self.kernel.call_boxed, keys)
        arguments = overload._schema.arguments
        # Where a number may stand for a tensor.
        self.places = tuple(
            i for i, a in enumerate(arguments) if str(a.type) == "Tensor" and not a.kwarg_only
        )

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what PyTorch returns."""
        change = self.arguments(args)
        if change is None:
            return self.call(*args, **kwargs)
        if not self.are_weak(args):
            return self.call(*change(args), **kwargs)
        tensors = (a.reshape(1) if isinstance(a, Tensor) else a for a in args)
        return self.call(*change(tuple(tensors)), **kwargs).reshape(())

    def arguments(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        """Return what makes the arguments of PyTorch's kernel of arguments of this kind, with the
        same numbers; None where they need no change.
        """
        numbers = [p for p in self.places if p < len(args) and args[p].__class__ in _NUMBERS]
        if not numbers:
            return None
        kind = max((_kind(a.dtype) for a in args if isinstance(a, Tensor)), default=-1)
        given = {place: _tensor_of(args[place], kind) for place in numbers}
        if len(args) == 2 and numbers == [1]:  # the most frequent, as `x * 2`
            second = given[1]
            return lambda args: (args[0], second)
        return lambda args: [given.get(place, a) for place, a in enumerate(args)]

    def are_weak(self, args: Sequence[Any]) -> bool:
        """Whether no tensor has an axis, and would count more than a number in its place."""
        return not any(a.ndim for a in args if isinstance(a, Tensor))


def _kind(dtype: torch.dtype) -> int:
    """Return whether a dtype is bool (0), integer (1), floating point (2) or complex (3)."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


_WIDEST = (torch.bool, torch.int64, torch.float64, torch.complex128)
_tensors: dict[Any, Tensor] = {}


def _tensor_of(value: Any, kind: int) -> Tensor:
    """Return a number as a tensor without axes, beside tensors of a kind at most."""
    own = _NUMBERS.index(type(value))
    dtype = _WIDEST[own]
    if own >= 2 and kind < 2:
        default = torch.get_default_dtype()
        dtype = default if own == 2 else default.to_complex()
    key = (type(value), repr(value), dtype)
    found = _tensors.get(key)
    if found is None:
        found = bounded_insert(_tensors, key, torch.tensor(value, dtype=dtype), _MAX_NUMBERS)
    return found
