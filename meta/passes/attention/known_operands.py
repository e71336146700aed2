"""Operands of attention that kernels can do without: masks whose numbers are known, and heads of
key and value that a program repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from meta import op
from meta.base.errors import MetaError
from meta.dialect.core.ir_calls import OpCall, is_pure, new_call, op_call, tensor_of, tensor_type
from meta.ir import Binding, Call, Constant, Expr, Function, Module, Tuple, Var
from meta.op.attention import HEADS_FIRST
from meta.passes.alias_analysis import AliasSets, Definitions, map_functions_with_aliases
from meta.passes.attention.masks import own_masks_of
from meta.passes.fold_constant import compute
from meta.passes.rewrite import rewrite_function
from meta.runtime.ndarray import ndarray

LARGEST = 1 << 22
"""The most elements of a tensor that is computed to look at a mask."""
_KEY, _VALUE, _MASK, _CAUSAL, _LAYOUT, _WINDOW = (
    op.fused_attention.schema.index[n]
    for n in ("key", "value", "mask", "causal", "layout", "window")
)


def simplify_attention(module: Module, *, trained: Iterable[int] | None = None) -> Module:
    """Let `fused_attention` read less: a mask that follows from no input and hides nothing is left
    out, one that hides the keys behind a query's place becomes ``causal``, or a ``window`` of those
    that are near; and heads of key and value that are repeated one by one are read once
    (grouped-query attention, arXiv:2305.13245).

    ``trained``: that gradients will be wanted; the pass has to run before `autodiff`, so that the
    gradient reads less, too.

    >>> from meta.ir import parse
    >>> print(meta.passes.simplify_attention(parse('''
    ... func @main(%q: float32[2, 4, 8, 16], %k: float32[2, 2, 8, 16]) -> float32[2, 4, 8, 16] {
    ...   %0: float32[2, 2, 1, 8, 16] = expand_dims(%k, axis=2)
    ...   %1: float32[2, 2, 2, 8, 16] = broadcast_to(%0, shape=(2, 2, 2, 8, 16))
    ...   %2: float32[2, 4, 8, 16] = reshape(%1, shape=(2, 4, 8, 16))
    ...   %3: bool[8, 8] = full(shape=(8, 8), fill_value=True, dtype="bool")
    ...   %4: bool[8, 8] = tril(%3)
    ...   %5: (float32[2, 4, 8, 16], float32[2, 4, 8]) = fused_attention(%q, %2, %2, %4)
    ...   %6: float32[2, 4, 8, 16] = %5.0
    ...   return %6
    ... }''')).main.body.bindings[-2].value.args[3:5])
    (None, True)
    """
    return map_functions_with_aliases(module, _simplified)


def _simplified(function: Function, buffers: AliasSets) -> Function:
    search = _Search(function, buffers)
    return rewrite_function(function, search.step)


class _Search:
    """The walk through a function."""

    def __init__(self, function: Function, buffers: AliasSets) -> None:
        self._known = Definitions(function, buffers)
        self._values: dict[Var, ndarray | None] = {}

    def step(self, binding: Binding) -> list[Binding]:
        """Return what takes the place of a binding."""
        call = op_call(binding.value)
        made = [binding]
        if call is not None and call.op is op.fused_attention:
            args = list(call.args)
            added = self._share_heads(args, binding)
            self._drop_mask(args)
            if args != list(call.args):
                made = [*added, Binding(binding.var, Call(call.op, tuple(args)), binding.span)]
        for one in made:
            self._known.add(one)
        return made

    def _drop_mask(self, args: list[object]) -> None:
        mask = args[_MASK]
        seen = self._seen(mask) if isinstance(mask, Expr) else None
        if seen is None:
            return
        hides = ~seen if seen.dtype == torch.bool else seen != 0
        if not bool(hides.any()):
            args[_MASK] = None
            return
        axis = 2 if args[_LAYOUT] == HEADS_FIRST else 1
        lengths = tuple(tensor_of(args[i]).shape[axis] for i in (0, _KEY))
        if args[_CAUSAL] or args[_WINDOW] is not None or lengths != tuple(seen.shape[-2:]):
            return
        found = own_masks_of(seen)
        if found is not None:
            args[_MASK], (args[_CAUSAL], args[_WINDOW]) = None, found

    def _seen(self, mask: Expr) -> torch.Tensor | None:
        """Return the numbers of a mask; along axes of any extent that it repeats, once."""
        value = self._value(mask)
        if value is not None:
            return value.tensor
        made = self._known.get(mask) if isinstance(mask, Var) else None
        call = None if made is None else op_call(made)
        if call is None or call.op is not op.broadcast_to:
            return None
        source, shape = self._value(call.args[0]), tensor_of(mask).shape
        extents = [d if isinstance(d, int) else -1 for d in shape]
        if source is None or math.prod(e for e in extents if e > 0) > LARGEST:
            return None
        ones = (1,) * (len(shape) - source.tensor.ndim)
        return source.tensor.reshape(*ones, *source.tensor.shape).expand(*extents)

    def _value(self, atom: Expr) -> ndarray | None:
        """Return the value of an atom that depends on no input, on the CPU; None of others."""
        if isinstance(atom, Constant):
            return ndarray(atom.data.cpu()) if atom.data.numel() <= LARGEST else None
        if not isinstance(atom, Var):
            return None
        if atom not in self._values:
            self._values[atom] = self._computed(atom)
        return self._values[atom]

    def _computed(self, var: Var) -> ndarray | None:
        value, type_ = self._known.get(var), tensor_type(var)
        call = None if value is None else op_call(value)
        if call is None or value is None or type_ is None or not type_.is_static:
            return None
        if type_.size > LARGEST or not is_pure(Binding(var, value)):
            return None
        args = []
        for argument in call.args:
            fields = argument.fields if isinstance(argument, Tuple) else (argument,)
            values = [self._value(f) if isinstance(f, Expr) else f for f in fields]
            if any(v is None and f is not None for v, f in zip(values, fields, strict=True)):
                return None
            args.append(tuple(values) if isinstance(argument, Tuple) else values[0])
        try:
            return compute(call, args)
        except MetaError:  # no kernel runs it, or it would fail: that is for the run to say
            return None

    def _share_heads(self, args: list[object], binding: Binding) -> list[Binding]:
        """Let key and value be what their heads repeat, if both do; return what makes them."""
        found = [self._repeated(args[i]) for i in (_KEY, _VALUE)]
        key, value = found
        if args[_LAYOUT] != HEADS_FIRST or key is None or value is None or key[1] != value[1]:
            return []
        made: dict[object, list[Binding]] = {}
        for place, (source, _, casts) in ((_KEY, key), (_VALUE, value)):
            given = args[place]
            if given not in made:
                made[given] = _heads(source, casts, binding)
            args[place] = made[given][-1].var
        return [b for bindings in made.values() for b in bindings]

    def _repeated(self, atom: object) -> tuple[Expr, int, list[str]] | None:
        """Return what an operand repeats each head of, how often, and what that is cast to."""
        casts: list[str] = []
        call = self._call(atom)
        while call is not None and call.op is op.astype:
            casts.insert(0, call.args[1])
            call = self._call(call.args[0])
        if call is None or call.op is not op.reshape:
            return None
        repeated = call.args[0]
        spread = self._call(repeated)
        while spread is not None and spread.op is op.copy:
            repeated = spread.args[0]
            spread = self._call(repeated)
        if spread is None or spread.op is not op.broadcast_to:
            return None
        source: Expr = spread.args[0]
        own, wide = tensor_of(source).shape, tensor_of(repeated).shape
        shape = tensor_of(atom).shape
        if len(own) != 5 or own != (*wide[:2], 1, *wide[3:]) or not isinstance(wide[2], int):
            return None
        if not isinstance(wide[1], int) or shape != (wide[0], wide[1] * wide[2], *wide[3:]):
            return None
        return source, wide[2], casts

    def _call(self, atom: object) -> OpCall | None:
        value = self._known.get(atom)
        return None if value is None else op_call(value)


def _heads(source: Expr, casts: list[str], at: Binding) -> list[Binding]:
    """Return bindings of heads [b, g, 1, s, d] as [b, g, s, d], and then in other dtypes."""
    shape = tensor_of(source).shape
    shape = (*shape[:2], *shape[3:])
    type_ = tensor_of(source).with_shape(shape)
    made = [Binding(Var("heads", type_), new_call(op.reshape, source, shape), at.span)]
    for dtype in casts:
        last = made[-1].var
        type_ = type_.with_dtype(dtype)
        made.append(Binding(Var("heads", type_), new_call(op.astype, last, dtype), at.span))
    return made
