"""Python operators on tensor-like values: `x + y`, `x @ y`, `x[1:]`, ... become operator calls.

Arrays (floor 1) and traced symbols (floor 2) share these methods. They name the operator, and the
registry supplies it, so that no lower floor imports a higher one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from meta.base.registry import OPERATORS


def _binary(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return OPERATORS[name](self, other)

    return method


def _reflected(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return OPERATORS[name](other, self)

    return method


def _unary(name: str) -> Any:
    def method(self: Any) -> Any:
        return OPERATORS[name](self)

    return method


def _comparison(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        # An array is not equal to what can be no operand; Python then compares identities.
        if other is None or isinstance(other, str):
            return NotImplemented
        return OPERATORS[name](self, other)

    return method


def _bits(bitwise: str, logical: str) -> Any:
    """Return a method that is the logical operator for arrays of bools, else the bitwise one."""

    def method(self: Any, *other: Any) -> Any:
        # A Python number takes the array's dtype; an array of integers beside bools is refused.
        logic = all(str(getattr(x, "dtype", "bool")).endswith("bool") for x in (self, *other))
        return OPERATORS[logical if logic else bitwise](self, *other)

    return method


def _in_place(method: Any) -> Any:
    """Return the method of ``x += y``, given that of ``x + y``: the name is bound to a new array.

    The dtype and the shape of x stay, or it is an error. The memory of x is not written, so other
    names of the same array keep its value, eager as traced; but see `of_same_type` for parameters.
    """

    def assign(self: Any, other: Any) -> Any:
        result = method(self, other)
        return result if result is NotImplemented else Overloads.of_same_type(self, result)

    return assign


class Overloads:
    """Mixin that turns Python's operators into calls of base operators of the given names."""

    __slots__ = ()
    # Composed operations, set once by files of `meta.op`; they are no operators of their own.
    getitem: ClassVar[Callable[[Any, Any], Any]]
    setitem: ClassVar[Callable[[Any, Any, Any], None]]
    at_parts: ClassVar[Callable[[Any], Any]]
    of_same_type: ClassVar[Callable[[Any, Any], Any]]

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __and__ = __rand__ = _bits("bitwise_and", "logical_and")
    __or__ = __ror__ = _bits("bitwise_or", "logical_or")
    __xor__ = __rxor__ = _bits("bitwise_xor", "logical_xor")
    __invert__ = _bits("bitwise_invert", "logical_not")
    __lshift__, __rlshift__ = _binary("bitwise_left_shift"), _reflected("bitwise_left_shift")
    __rshift__, __rrshift__ = _binary("bitwise_right_shift"), _reflected("bitwise_right_shift")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __eq__, __ne__ = _comparison("equal"), _comparison("not_equal")
    __hash__ = object.__hash__
    __iadd__, __isub__, __imul__ = _in_place(__add__), _in_place(__sub__), _in_place(__mul__)
    __itruediv__, __ifloordiv__ = _in_place(__truediv__), _in_place(__floordiv__)
    __imod__, __ipow__ = _in_place(__mod__), _in_place(__pow__)
    __iand__, __ior__, __ixor__ = _in_place(__and__), _in_place(__or__), _in_place(__xor__)
    __ilshift__, __irshift__ = _in_place(__lshift__), _in_place(__rshift__)
    __neg__, __abs__ = _unary("negative"), _unary("abs")

    __imatmul__ = _in_place(__matmul__)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __getitem__(self, index: Any) -> Any:
        return Overloads.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        Overloads.setitem(self, index, value)

    @property
    def at(self) -> Any:
        """Parts to change in a new array: ``x.at[index].set(value)``, ``.get()``, and ``.add``,
        ``.subtract``, ``.multiply``, ``.divide``, ``.power``, ``.min``, ``.max``.
        """
        return Overloads.at_parts(self)
