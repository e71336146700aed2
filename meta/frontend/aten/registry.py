"""The registry of ATen's converters (`meta.frontend.core.converter`), which the families in
`converters/` fill.

An overload is named as torch prints it, without what goes without saying: "add.Tensor" is
``torch.ops.aten.add.Tensor``, "relu" is ``torch.ops.aten.relu.default``, "torchvision.nms" is of
another namespace. Operands, the positional parameters of a converter in the schema's order, are the
arguments of type ``Tensor``, ``Tensor?``, ``Tensor[]`` and ``Tensor?[]``, and every ``Scalar``
without a default. All others are keyword-only, by the schema's names. Dtypes are our names of them,
devices our `Device`; a ``SymInt`` is an int or a dimension of ours.

    @aten("add.Tensor", "add.Scalar", op.add, op.multiply)
    def add(x, y, *, alpha):
        ...
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from meta.base.device import Device
from meta.base.dtype import FROM_TORCH
from meta.base.errors import FormatError
from meta.dialect.torch import foreign
from meta.frontend.core import Converters, Unconvertible


class AtenError(FormatError):
    """A program of PyTorch's operators that cannot be converted."""


REQUIRED = inspect.Parameter.empty
"""The default of an argument that every call states."""
_LONG = 4
"""What a schema has for int64, the only dtype that is a default."""


def name_of(overload: torch._ops.OpOverload) -> str:
    """Return the name under which an overload's converter is registered."""
    return str(overload).removeprefix("aten.").removesuffix(".default")


@cache
def overload_of(name: str) -> torch._ops.OpOverload | None:
    """Return the overload of a converter's name, None if torch, or what is imported of it, has
    none. ATen's names lack their namespace.

    >>> str(overload_of("add.Tensor")), str(overload_of("relu")), overload_of("rellu")
    ('aten.add.Tensor', 'aten.relu.default', None)
    """
    return foreign.overload_of(f"aten.{name}") or foreign.overload_of(name)


def is_operand(argument: Any) -> bool:
    """Whether an argument of a schema is an operand of converters."""
    is_scalar = (
        isinstance(argument.real_type, torch.NumberType) and not argument.has_default_value()
    )
    return is_scalar or "Tensor" in str(argument.type)


@cache
def defaults_of(name: str) -> Mapping[str, Any] | None:
    """Return the arguments of an overload that are no operands, with their defaults."""
    overload = overload_of(name)
    if overload is None:
        return None
    arguments = [a for a in overload._schema.arguments if not is_operand(a)]
    return MappingProxyType({a.name: _default(a) for a in arguments})


def _default(argument: Any) -> Any:
    if not argument.has_default_value():
        return REQUIRED
    if argument.name == "dtype" and argument.default_value == _LONG:
        return torch.int64
    return argument.default_value


def bind_arguments(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the operands of a call in the schema's order, and its other arguments by name."""
    operands, others = [], {}
    for i, argument in enumerate(overload._schema.arguments):
        given = i < len(args) and not argument.kwarg_only
        stated = given or argument.name in kwargs
        value = args[i] if given else kwargs.get(argument.name, None)
        if is_operand(argument):
            operands.append(tuple(value) if isinstance(value, list) else value)
        elif stated:
            others[argument.name] = value
    return tuple(operands), others


def _to_meta_value(_operator: str, _attribute: str, value: Any) -> Any:
    """Return a value of torch's as ours: names of dtypes, devices, tuples."""
    if isinstance(value, torch.dtype):
        if value not in FROM_TORCH:
            raise Unconvertible(f"{value} is no dtype here")
        return FROM_TORCH[value]
    if isinstance(value, torch.device):
        return Device(str(value))
    if isinstance(value, list):
        return tuple(value)
    return value


aten = Converters("aten", defaults_of, _to_meta_value)
