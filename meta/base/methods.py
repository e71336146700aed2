"""Methods of tensor-like values: `x.sum(axis=0)`, `x.reshape(2, 3)`, ... call the operators.

Arrays and traced symbols share them, so a method has the arguments, the errors and the gradient of
the operator of its name.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from meta.base import habits
from meta.base.errors import ArgumentError, UnknownName
from meta.base.overloads import Overloads
from meta.base.registry import OPERATORS


def _method(name: str) -> Any:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return OPERATORS[name](self, *arguments, **options)

    method.__name__ = name
    method.__doc__ = f"Return ``meta.{name}`` of this array and the arguments."
    return method


def _integers(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is given as ``(2, 3)`` or as ``2, 3``."""
    one = numbers[0] if len(numbers) == 1 else None
    return tuple(one) if isinstance(one, tuple | list) else numbers


class Methods(Overloads):
    """Mixin of the methods that call the operator of the same name, and of short spellings."""

    __slots__ = ()
    namespace: ClassVar[Any]
    """The functions of the Array API standard: `meta.array_api`, which sets it."""

    sum, mean, prod = _method("sum"), _method("mean"), _method("prod")
    max, min = _method("max"), _method("min")
    argmax, argmin = _method("argmax"), _method("argmin")
    std, var = _method("std"), _method("var")
    any, all = _method("any"), _method("all")
    logsumexp, cumsum, cumprod = _method("logsumexp"), _method("cumsum"), _method("cumprod")
    sort, argsort = _method("sort"), _method("argsort")
    squeeze, expand_dims = _method("squeeze"), _method("expand_dims")
    clip, abs, sign, square = _method("clip"), _method("abs"), _method("sign"), _method("square")
    sqrt, rsqrt, exp, log = _method("sqrt"), _method("rsqrt"), _method("exp"), _method("log")
    sin, cos, tanh, sigmoid = _method("sin"), _method("cos"), _method("tanh"), _method("sigmoid")
    softmax, log_softmax, relu = _method("softmax"), _method("log_softmax"), _method("relu")
    floor, ceil, trunc, round = (
        _method("floor"),
        _method("ceil"),
        _method("trunc"),
        _method("round"),
    )
    isnan, isinf, isfinite = _method("isnan"), _method("isinf"), _method("isfinite")

    def astype(self, dtype: object) -> Any:
        """Return ``meta.cast`` to a dtype. A gradient flows through it."""
        return OPERATORS["cast"](self, dtype)

    def reshape(self, *shape: Any) -> Any:
        """Return ``meta.reshape`` to a shape, given as a tuple or as numbers."""
        return OPERATORS["reshape"](self, _integers(shape))

    def permute(self, *axes: Any) -> Any:
        """Return the array with its axes in this order, given as a tuple or as numbers."""
        return OPERATORS["permute_dims"](self, _integers(axes))

    def flatten(self) -> Any:
        """Return the elements in row-major order, as a vector."""
        return OPERATORS["reshape"](self, (-1,))

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
        if not ndigits:
            return OPERATORS["round"](self)
        if "int" in self.dtype or self.dtype == "bool":
            if ndigits > 0:
                return OPERATORS["copy"](self)
            raise ArgumentError(
                "integers are rounded to whole numbers only",
                expected="ndigits >= 0",
                found=ndigits,
                hint='x.astype("float64"), which then can be rounded so',
            )
        scale = 10.0 ** abs(ndigits)
        if ndigits > 0:
            return OPERATORS["round"](self * scale) / scale
        return OPERATORS["round"](self / scale) * scale

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

    def unsqueeze(self, axis: int) -> Any:
        """Return the array with an axis of extent 1 inserted, as ``meta.expand_dims``."""
        return OPERATORS["expand_dims"](self, axis)

    @property
    def T(self: Any) -> Any:
        """The transposed matrix. ArgumentError for other than 2 axes."""
        if self.ndim != 2:
            raise ArgumentError(
                "x.T is of a matrix",
                expected="2 axes",
                found=f"shape {self.shape}",
                hint="x.mT for a stack of matrices, or x.permute(*axes)",
            )
        return OPERATORS["permute_dims"](self, (1, 0))

    @property
    def mT(self: Any) -> Any:
        """Each matrix of a stack transposed. ArgumentError for less than 2 axes."""
        if self.ndim < 2:
            raise ArgumentError(
                "x.mT is of matrices", expected="2 axes or more", found=f"shape {self.shape}"
            )
        order = tuple(range(self.ndim))
        return OPERATORS["permute_dims"](self, (*order[:-2], order[-1], order[-2]))

    @property
    def mH(self: Any) -> Any:
        """Each matrix of a stack transposed and conjugated, as torch has it. ArgumentError for less
        than 2 axes.
        """
        transposed = self.mT
        complex = self.dtype in ("complex64", "complex128")
        return OPERATORS["conj"](transposed) if complex else transposed

    def __getattr__(self, name: str) -> Any:
        """Say what an attribute that there is not is called here; only missing ones come here."""
        if name in habits.ARRAY:
            raise UnknownName(f"an array has no {name!r}", hint=f"write {habits.ARRAY[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        # Else numpy's functions would call the methods above, with numpy's own arguments.
        return function(*_to_numpy(arguments), **_to_numpy(options))


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Methods):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(_to_numpy(v) for v in value)
    return {k: _to_numpy(v) for k, v in value.items()} if type(value) is dict else value
