"""Sizes that torch does not know when it traces (`torch.SymInt`), as dimensions of ours or as the
numbers of one call.

A program for all sizes has a symbolic dimension for each symbol of torch's. Where that cannot be
made, a program is made for the sizes of each call; then every symbol has a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import Max, Min

from meta.base.dtype import FROM_TORCH
from meta.base.errors import TypeInferError
from meta.ir import TensorType
from meta.ir.dims import SymbolicDim

Dim = int | SymbolicDim


class NotForAllSizes(Exception):
    """A program that cannot be the same for all sizes; one for each can be."""


class Extents:
    """The values of torch's symbols: dimensions, or the numbers of one call."""

    def __init__(self, values: Mapping[sympy.Symbol, Dim]) -> None:
        self.values = dict(values)
        self.symbolic = any(isinstance(v, SymbolicDim) for v in self.values.values())

    @classmethod
    def of_all_sizes(cls, inputs: Sequence[Any]) -> Extents:
        """Return symbolic dimensions, named as torch names its symbols, for all symbols in what
        torch says of inputs. Raises NotForAllSizes for a number that is 0 or less in every call: a
        dimension is at least 1.
        """
        for size in (value for value in inputs if isinstance(value, torch.SymInt)):
            if any(largest is not None and largest < 1 for _, largest in _ranges(size).values()):
                raise NotForAllSizes(f"{size} is less than 1")
        names = sorted(symbols_of(inputs), key=str)
        return cls({symbol: SymbolicDim(str(symbol)) for symbol in names})

    @classmethod
    def of_call(cls, inputs: Sequence[Any], args: Sequence[Any]) -> Extents:
        """Return the numbers that symbols are in a call, of what torch says of its inputs: None
        stands for one that the graph does not read.
        """
        found: dict[sympy.Symbol, int] = {}
        for said, arg in zip(inputs, args, strict=True):
            if isinstance(said, torch.SymInt):
                _bind(said, int(arg), found)
            elif isinstance(said, torch.Tensor) and arg is not None:
                for dim, extent in zip(said.shape, arg.shape, strict=True):
                    _bind(dim, extent, found)
        return cls(found)

    def of(self, size: Any) -> Any:
        """Return the value of a size, or of another number that follows from sizes.

        Raises NotForAllSizes where it is no dimension of ours, KeyError for a symbol without value:
        one that depends on data.
        """
        if isinstance(size, bool | int | float):
            return size
        expression = size.node.expr
        if not self.symbolic:
            return _number(expression.subs(self.values))
        return self._dimension(_decided(expression, size.node.shape_env))

    def shape_of(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return the shape of a tensor of torch's trace."""
        return tuple(map(self.of, tensor.shape))

    def type_of(self, said: Any) -> TensorType | None:
        """Return the type of a tensor of torch's trace; None of one that programs do not have, and
        for what is no tensor.
        """
        if not isinstance(said, torch.Tensor) or said.dtype not in FROM_TORCH:
            return None
        try:
            return TensorType(self.shape_of(said), FROM_TORCH[said.dtype])
        except (NotForAllSizes, KeyError):
            return None

    def _dimension(self, expression: sympy.Expr) -> Any:
        if not expression.free_symbols:
            return _number(expression)
        if isinstance(expression, sympy.Symbol):
            return self.values[expression]
        parts = [self._dimension(part) for part in expression.args]
        try:
            if expression.is_Add:
                return sum(parts)
            if expression.is_Mul and all(isinstance(p, Dim) for p in parts):
                product: Dim = 1
                for part in parts:
                    product = part * product
                return product
            if expression.is_Pow and isinstance(parts[1], int) and parts[1] > 0:
                return self._dimension(sympy.Mul(*[expression.args[0]] * parts[1], evaluate=False))
            if type(expression).__name__ in ("FloorDiv", "CleanDiv"):
                return parts[0] // parts[1]
            if type(expression).__name__ in ("Mod", "PythonMod"):
                return parts[0] % parts[1]
        except (TypeInferError, TypeError) as error:  # of Python: a number by a dimension
            raise NotForAllSizes(str(expression)) from error
        raise NotForAllSizes(str(expression))


def _decided(expression: sympy.Expr, guarded: Any) -> sympy.Expr:
    """Return an expression in which maxima and minima are what the ranges of symbols make them."""

    def choose(node: sympy.Expr) -> sympy.Expr:
        sign = 1 if isinstance(node, Max) else -1
        for one in node.args:
            others = (guarded.bound_sympy(sign * (one - other)) for other in node.args)
            if all(range_.lower >= 0 for range_ in others):
                return one
        return node

    return expression.replace(lambda node: isinstance(node, Max | Min), choose)


def _bind(size: Any, extent: int, found: dict[sympy.Symbol, int]) -> None:
    expression = size.node.expr if isinstance(size, torch.SymInt) else None
    if isinstance(expression, sympy.Symbol):
        found[expression] = extent


def _number(expression: sympy.Expr) -> Any:
    """Return a Python number; KeyError for an expression that has symbols left."""
    left = expression.free_symbols
    if left:
        raise KeyError(min(map(str, left)))
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    return int(expression) if expression.is_integer else float(expression)


def _sizes_in(values: Iterable[Any]) -> Iterator[torch.SymInt]:
    """Iterate over the symbolic sizes in what torch says of values: tensors and sizes."""
    for value in values:
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        yield from (size for size in sizes if isinstance(size, torch.SymInt))


def symbols_of(values: Iterable[Any]) -> set[sympy.Symbol]:
    """Return the symbols in what torch says of values: tensors and sizes."""
    return {symbol for size in _sizes_in(values) for symbol in size.node.expr.free_symbols}


def unguarded_extents(values: Sequence[Any]) -> list[int]:
    """Return the places of integer arguments that torch has not guarded to be at least 1, which
    every symbolic dimension is: a program for all sizes is not for a call where one is less.
    """
    return [
        i
        for i, value in enumerate(values)
        if isinstance(value, torch.SymInt)
        and any((least or 0) < 1 for least, _ in _ranges(value).values())
    ]


def ranges_of(values: Iterable[Any]) -> dict[str, tuple[int, int | None]]:
    """Return the least and the largest extent of the symbols in what torch says of values, by name,
    as torch has guarded them.
    """
    found = [item for size in _sizes_in(values) for item in _ranges(size).items()]
    return {name: (max(least or 1, 1), largest) for name, (least, largest) in found}


def _ranges(size: torch.SymInt) -> dict[str, tuple[int | None, int | None]]:
    """Return the ranges that torch has guarded the symbols of a size to be in, by name; None where
    one has no bound, or one that no extent can be.
    """

    def known(bound: sympy.Expr) -> int | None:
        return int(bound) if isinstance(bound, sympy.Integer) and abs(bound) < 2**62 else None

    guarded: Any = size.node.shape_env.var_to_range
    symbols = size.node.expr.free_symbols & guarded.keys()
    return {str(s): (known(guarded[s].lower), known(guarded[s].upper)) for s in symbols}
