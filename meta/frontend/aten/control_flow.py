"""Converters of torch's operators that take functions, ``torch.ops.higher_order``: branches and
loops, and wrappers around a part of a program.

A function comes as what calls its graph with arrays or symbols and returns its outputs, a tuple.
Add a converter with `higher_order`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from meta.frontend.core import Unconvertible
from meta.model.control_flow import cond, scan, while_loop
from meta.op.core import tree

Converter = Callable[..., Any]
_CONVERTERS: dict[str, Converter] = {}


def higher_order(*names: str) -> Callable[[Converter], Converter]:
    """Register a function for operators, which takes their arguments: a decorator."""

    def register(function: Converter) -> Converter:
        _CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


def converter_of(operator: torch._ops.HigherOrderOperator) -> Converter:
    """Return the converter of an operator; Unconvertible if it has none."""
    found = _CONVERTERS.get(str(operator))
    if found is None:
        raise Unconvertible("there is no converter of this operator, which takes functions")
    return found


def _require_tensors(values: Any, what: str) -> None:
    """Raise Unconvertible for numbers: a loop would make arrays of them."""
    if not all(tree.is_array(v) for v in values):
        raise Unconvertible(
            f"{what} has a number", hint="make it a tensor: torch.tensor(n), x.shape[0] included"
        )


@higher_order("cond")
def _cond(condition: Any, then: Converter, other: Converter, operands: Any) -> Any:
    # A predicate that is known is a Python bool, or an array of one element.
    if tree.is_array(condition) and condition.ndim:
        condition = condition.reshape(())
    return cond(condition, lambda: then(*operands), lambda: other(*operands))


@higher_order("while_loop")
def _while_loop(
    condition: Converter, body: Converter, carried: Any, additional: Any
) -> tuple[Any, ...]:
    _require_tensors(carried, "what a loop carries")

    def goes_on(state: Any) -> Any:
        (result,) = condition(*state, *additional)
        return result.reshape(())

    found: tuple[Any, ...] = while_loop(
        goes_on, lambda state: body(*state, *additional), tuple(carried)
    )
    return found


@higher_order("scan")
def _scan(combine: Converter, init: Any, xs: Any, additional: Any) -> tuple[Any, ...]:
    _require_tensors((*init, *xs), "what a scan carries or runs along")

    def step(state: Any, rows: Any) -> tuple[Any, Any]:
        found = combine(*state, *rows, *additional)
        return found[: len(init)], found[len(init) :]

    state, ys = scan(step, tuple(init), tuple(xs))
    return (*state, *ys)


@higher_order("map_impl")
def _map(function: Converter, xs: Any, additional: Any) -> tuple[Any, ...]:
    _require_tensors(xs, "what a map runs along")
    _, ys = scan(lambda _, rows: ((), function(*rows, *additional)), (), tuple(xs))
    return tuple(ys)


@higher_order("wrap", "tag_activation_checkpoint")
def _wrap(function: Converter, *operands: Any, **_options: Any) -> Any:
    return function(*operands)


@higher_order("invoke_subgraph")
def _invoke_subgraph(function: Converter, _identifier: str, *operands: Any) -> Any:
    return function(*operands)


@higher_order("strict_mode", "hints_wrapper")
def _hints_wrapper(function: Converter, operands: Any, *_options: Any, **_hints: Any) -> Any:
    return function(*operands)
