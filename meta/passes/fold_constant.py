"""Constant folding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from meta.base.call_context import Default, use
from meta.base.errors import DispatchError, MetaError
from meta.dialect.core import only
from meta.dialect.core.ir_calls import OpCall, flat_atoms, is_pure, op_call, tensor_type
from meta.ir import Binding, Constant, Expr, Module, Tuple
from meta.ir.dims import is_symbolic
from meta.op.core.op import by_schema
from meta.passes.alias_analysis import AliasSets, map_functions_with_aliases
from meta.passes.rewrite import rewrite_function
from meta.runtime.ndarray import ndarray

MAX_GROWTH_BYTES = 1 << 16
"""What is computed and kept may take at most this much memory more than what it is made of."""


def fold_constant(module: Module) -> Module:
    """Compute calls whose arguments are all constants, now.

    Random operators, those that write and what they write stay, and so does a call whose result
    would be much larger than its arguments. What is folded is computed by the reference dialect,
    `torch`, so that folding compiles no kernel; what that has no kernel for stays, too.

    >>> from meta.ir import parse
    >>> print(meta.passes.fold_constant(parse('''
    ... func @main(%x: float32[]) -> float32[] {
    ...   %a: float32[] = negative(const float32[] 2.0)
    ...   %b: float32[] = add(%x, %a)
    ...   return %b
    ... }''')))
    func @main(%x: float32[]) -> float32[] {
      %b: float32[] = add(%x, const float32[] -2.0)
      return %b
    }
    """
    return map_functions_with_aliases(
        module, lambda f, buffers: rewrite_function(f, partial(_fold, buffers))
    )


def _fold(buffers: AliasSets, binding: Binding) -> Binding | Expr:
    call, type_ = op_call(binding.value), tensor_type(binding.var)
    if call is None or type_ is None or not type_.is_static or not is_pure(binding):
        return binding
    atoms = [a for argument in call.args for a in flat_atoms(argument)]
    written = buffers.of(binding.var) in buffers.written
    if written or not all(isinstance(a, Constant) for a in atoms):
        return binding
    if any(map(is_symbolic, call.args)):
        return binding
    sources = sum(a.data.numel() * a.data.element_size() for a in atoms)
    # A created constant (zeros, full, arange) is cheaper to compute than to keep, unless it is
    # small.
    if type_.size * 8 > sources + MAX_GROWTH_BYTES:
        return binding
    try:
        result = compute(call, [_value(a) for a in call.args])
    except DispatchError:  # products of integers on CUDA, for one: another dialect runs them
        return binding
    except MetaError as error:  # of what the arguments hold: an index out of range
        error.span = binding.span or error.span
        raise
    return Constant(result.tensor)


def compute(call: OpCall, arguments: Sequence[Any]) -> ndarray:
    """Return the result of a call, computed now by the dialect `torch`, with arrays for atoms."""
    with use(Default.handler), only("torch"):
        found: ndarray = by_schema(call.op)(*arguments)
    return found


def _value(argument: Any) -> Any:
    if isinstance(argument, Tuple):
        return tuple(_value(f) for f in argument.fields)
    return ndarray(argument.data) if isinstance(argument, Constant) else argument
