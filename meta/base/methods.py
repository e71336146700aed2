"""Methods of tensor-like values: `x.sum(axis=0)`, `x.reshape(2, 3)`, ... call the operators.

Arrays and traced symbols share them, so a method has the arguments, the errors and the gradient of
the operator of its name.
"""

from __future__ import annotations

from math import prod
from types import MethodType
from typing import Any, ClassVar

import numpy as np
import torch

from meta.base import array_aliases
from meta.base.dtype import COMPLEX
from meta.base.errors import ArgumentError, NoSuchAxes, UnknownName
from meta.base.overloads import Overloads
from meta.base.registry import FUNCTIONS, OPERATORS


def _is_method(name: str) -> bool:
    """Whether an operator or function of this name is a method, too: methods of torch's tensors or
    of NumPy's arrays are. What means something else there has an answer in ``ARRAY_ALIASES``.
    """
    theirs = (getattr(kind, name, None) for kind in (torch.Tensor, np.ndarray))
    own = name.startswith("_") or name in array_aliases.ARRAY_ALIASES or name in vars(Methods)
    return not own and any(map(callable, theirs))


class _Derived:
    """A method that is an operator, or a composed function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, array: Any, owner: Any) -> Any:
        return self.function if array is None else MethodType(self.function, array)


class _AsMethods(dict[str, Any]):
    """Keeps the entries of a registry among the attributes of `Methods`."""

    def setdefault(self, name: str, function: Any = None, /) -> Any:
        if name not in self and _is_method(name):
            self[name] = function
            setattr(Methods, name, _Derived(function))
        return self.get(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        delattr(Methods, name)


def _integers(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is given as ``(2, 3)`` or as ``2, 3``."""
    one = numbers[0] if len(numbers) == 1 else None
    return tuple(one) if isinstance(one, tuple | list) else numbers


class Methods(Overloads):
    """Mixin of the methods that call the operator of the same name, and of short spellings."""

    __slots__ = ()
    namespace: ClassVar[Any]
    """The functions of the Array API standard: `meta.array_api`, which sets it."""

    def reshape(self, *shape: Any) -> Any:
        """Return ``meta.reshape`` to a shape, given as a tuple or as numbers."""
        return OPERATORS["reshape"](self, _integers(shape))

    def permute(self, *axes: Any) -> Any:
        """Return the array with its axes in this order, given as a tuple or as numbers."""
        return OPERATORS["permute_dims"](self, _integers(axes))

    def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Return the array with the axes from ``start_dim`` to ``end_dim``, both included, merged;
        without arguments, the elements in row-major order, as a vector.
        """
        ndim = max(self.ndim, 1)
        if not (-ndim <= start_dim < ndim and -ndim <= end_dim < ndim):
            raise ArgumentError(
                "there is no such axis",
                expected=f"start_dim and end_dim from {-ndim} to {ndim - 1}",
                found=(start_dim, end_dim),
            )
        first, last = start_dim % ndim, end_dim % ndim
        if first > last:
            raise ArgumentError(
                "the first axis to merge is behind the last", found=(start_dim, end_dim)
            )
        shape = self.shape
        merged = shape[first : last + 1]
        # A shape with -1 beside a 0 would be ambiguous.
        extent = prod(merged) if all(isinstance(e, int) for e in shape) else -1
        return OPERATORS["reshape"](self, (*shape[:first], extent, *shape[last + 1 :]))

    def transpose(self, *axes: Any) -> Any:
        """Return ``meta.permute_dims`` to an order of axes, given as a tuple or as numbers.

        As NumPy's: without axes their order is reversed. ArgumentError for two numbers, which are
        an order in NumPy, and two axes to exchange in torch.
        """
        if len(axes) == 2:
            raise ArgumentError(
                "two axes are their order in NumPy and are exchanged in torch",
                found=f"x.transpose{axes}",
                hint=f"x.permute{axes} for an order, meta.swapaxes(x, {axes[0]}, {axes[1]}) to "
                "exchange them, x.mT for the last two",
            )
        order = _integers(axes) if axes and axes != (None,) else None
        return OPERATORS["permute_dims"](self, order)

    def clone(self) -> Any:
        """Return a copy. A gradient flows through it."""
        return OPERATORS["copy"](self)

    def __pos__(self) -> Any:
        return OPERATORS["copy"](self)

    def __round__(self: Any, ndigits: int | None = None) -> Any:
        """Return ``meta.round``: to whole numbers, or to ``ndigits`` decimal digits. Unlike those
        of Python's numbers, the result keeps the dtype.
        """
        return OPERATORS["round"](self, ndigits or 0)

    def __contains__(self, value: Any) -> bool:
        """Whether an element equals a value, which is broadcast as by ``==``."""
        equal: Any = self == value
        return False if isinstance(equal, bool) else bool(OPERATORS["any"](equal))

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """Return `meta.array_api`. ArgumentError for a version of the standard that it is not."""
        offered = Methods.namespace.__array_api_version__
        if api_version not in (None, offered):
            raise ArgumentError(
                "there is no namespace of this version of the Array API",
                expected=offered,
                found=api_version,
            )
        return Methods.namespace

    def expand_dims(self, *args: Any, **kwargs: Any) -> Any:
        """Return ``meta.expand_dims`` of the array."""
        return OPERATORS["expand_dims"](self, *args, **kwargs)

    def unsqueeze(self, axis: int) -> Any:
        """Return the array with an axis of extent 1 inserted, as ``meta.expand_dims``."""
        return OPERATORS["expand_dims"](self, axis)

    @property
    def real(self: Any) -> Any:
        """The real parts, as ``meta.real``; real numbers themselves."""
        return OPERATORS["real"](self) if self.dtype in COMPLEX else self

    @property
    def imag(self: Any) -> Any:
        """The imaginary parts, as ``meta.imag``; zeros of real numbers, as NumPy's."""
        return OPERATORS["imag" if self.dtype in COMPLEX else "zeros_like"](self)

    @property
    def T(self: Any) -> Any:
        """The transposed matrix. NoSuchAxes for other than 2 axes."""
        if self.ndim != 2:
            raise NoSuchAxes(
                "x.T is of a matrix",
                expected="2 axes",
                found=f"shape {self.shape}",
                hint="x.mT for a stack of matrices, or x.permute(*axes)",
            )
        return OPERATORS["permute_dims"](self, (1, 0))

    @property
    def mT(self: Any) -> Any:
        """Each matrix of a stack transposed. NoSuchAxes for less than 2 axes."""
        if self.ndim < 2:
            raise NoSuchAxes(
                "x.mT is of matrices", expected="2 axes or more", found=f"shape {self.shape}"
            )
        order = tuple(range(self.ndim))
        return OPERATORS["permute_dims"](self, (*order[:-2], order[-1], order[-2]))

    @property
    def mH(self: Any) -> Any:
        """Each matrix of a stack transposed and conjugated, as torch has it. NoSuchAxes for less
        than 2 axes.
        """
        transposed = self.mT
        complex = self.dtype in ("complex64", "complex128")
        return OPERATORS["conj"](transposed) if complex else transposed

    def __getattr__(self, name: str) -> Any:
        """Say what an attribute that there is not is called here; only missing ones come here."""
        own = getattr(type(self), name, None)
        if isinstance(own, property) and own.fget is not None:
            return own.fget(self)  # which has raised an AttributeError, and says why
        hint = None
        if name in array_aliases.ARRAY_ALIASES:
            hint = f"write {array_aliases.ARRAY_ALIASES[name]}"
        elif name.endswith("_") and not name.startswith("_"):
            hint = (
                f"write x = x.{name[:-1]}(...): methods return new arrays; x[...] = value and "
                "x.update(value) write to the memory of x"
            )
        elif name in OPERATORS or name in FUNCTIONS:
            hint = f"it is a function: meta.{name}"
        if hint is not None:
            raise UnknownName(f"an array has no {name!r}", hint=hint)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        # Else numpy's functions would call the methods above, with numpy's own arguments.
        return function(*_to_numpy(arguments), **_to_numpy(options))


OPERATORS.show_in(_AsMethods())
FUNCTIONS.show_in(_AsMethods())


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Methods):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(_to_numpy(v) for v in value)
    return {k: _to_numpy(v) for k, v in value.items()} if type(value) is dict else value
