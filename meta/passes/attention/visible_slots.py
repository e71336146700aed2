"""Attention to a cache whose mask says up to which slot a token sees: it reads these slots alone.

Decoders of other systems hold keys and values in arrays as long as the longest text, and compare
the numbers of all slots with the token's position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from meta import op
from meta.base.dtype import is_float
from meta.dialect.core.ir_calls import OpCall, op_call, tensor_of
from meta.ir import Binding, Constant, DefUse, Expr, Function, Module, TupleGetItem, Var
from meta.op.attention import HEADS_FIRST
from meta.op.core.tracing import Trace
from meta.passes.alias_analysis import AliasSets, Definitions, map_functions_with_aliases
from meta.passes.rewrite import rewrite_function


def read_visible_slots(module: Module) -> Module:
    """Call `cached_attention` where the mask of `fused_attention` is ``slots <= position``, or 0
    there and -inf elsewhere.

    The position may be a number for each text and token. The numbers of the slots have to be known,
    0 and up, and the logsumexp of the scores unused, as it is without a gradient.

    >>> from meta.ir import parse
    >>> print(meta.passes.read_visible_slots(parse('''
    ... func @main(%q: float32[1, 4, 1, 8], %k: float32[1, 2, 3, 8], %at: int64[1, 1, 1, 1])
    ...     -> float32[1, 4, 1, 8] {
    ...   %m: bool[1, 1, 1, 3] = less_equal(const int64[3] [0, 1, 2], %at)
    ...   %a: (float32[1, 4, 1, 8], float32[1, 4, 1]) = fused_attention(%q, %k, %k, %m)
    ...   %y: float32[1, 4, 1, 8] = %a.0
    ...   return %y
    ... }''')).main.body.bindings[-2].value)
    cached_attention(%0, %k, %k, %1)
    """
    return map_functions_with_aliases(module, _function)


def _function(function: Function, buffers: AliasSets) -> Function:
    rewriting = _Rewriting(DefUse(function), Definitions(function, buffers))
    return rewrite_function(function, rewriting.step)


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """A function on its way. results: by the tuple of a call, what its first field has become."""

    uses: DefUse
    known: Definitions
    results: dict[Expr, Expr] = field(default_factory=dict)

    def step(self, binding: Binding) -> list[Binding] | Expr | None:
        """Return what takes the place of a binding."""
        value, made = binding.value, [binding]
        if isinstance(value, TupleGetItem) and value.value in self.results:
            return None if value.index else self.results[value.value]
        call = op_call(value)
        position = None
        if call is not None and call.op is op.fused_attention:
            position = self._position(call, binding)
        if call is not None and position is not None:
            trace = Trace()
            trace.site = lambda: binding.span
            block = trace.finish(trace.run(_read, trace, call, position))
            self.results[binding.var] = block.result
            made = list(block.bindings)
        for one in made:
            self.known.add(one)
        return made

    def _position(self, call: OpCall, binding: Binding) -> Expr | None:
        """Return what the mask compares the numbers of slots with; None if a call is another one.

        It is integers, [batch or 1, 1, steps or 1, 1], less leading axes of 1.
        """
        given = dict(zip(call.op.schema.names, call.args, strict=True))
        query, keys, values, mask = (given.pop(n) for n in ("query", "key", "value", "mask"))
        plain = {"scale": given.pop("scale"), "layout": HEADS_FIRST}
        plain |= {"causal": False, "dropout_p": 0.0}
        if any(x != plain.get(n) for n, x in given.items()) or not isinstance(mask, Var):
            return None
        if not all(tensor_of(x).is_static for x in (query, keys, values)):
            return None
        if not all(map(self._needs_result, self.uses.users(binding.var))):
            return None
        compares = op_call(self.known.get(self._seen(mask)))
        sides = () if compares is None else compares.args
        if compares is None or compares.op not in (op.less_equal, op.greater_equal):
            return None
        numbers, position = sides if compares.op is op.less_equal else sides[::-1]
        if not (isinstance(numbers, Constant) and isinstance(position, Var)):
            return None
        slots, of, found = tensor_of(keys).static_shape[2], numbers.data, tensor_of(position)
        counts = not of.is_floating_point() and of.shape[-1:] == (slots,) == (of.numel(),)
        counts = counts and torch.equal(of.flatten().cpu().long(), torch.arange(slots))
        batch, _, steps, _ = tensor_of(query).static_shape
        fits = [
            d in e for d, e in zip(_four(found), ((1, batch), (1,), (1, steps), (1,)), strict=True)
        ]
        return position if counts and all(fits) and not is_float(found.dtype) else None

    def _seen(self, mask: Expr) -> Expr:
        """Return the truth values of which a mask may be made: 0 where they hold, else -inf."""
        chosen = op_call(self.known.get(mask))
        if chosen is None or chosen.op is not op.where:
            return mask
        seen, *numbers = chosen.args
        values = [x.data.item() if _is_number(x) else x for x in numbers]
        return seen if values == [0.0, float("-inf")] else mask

    def _needs_result(self, user: object) -> bool:
        """Whether who reads the results of a call needs the first one alone."""
        if not (isinstance(user, Binding) and isinstance(user.value, TupleGetItem)):
            return False
        return user.value.index == 0 or not self.uses.users(user.var)


def _four(x: Any) -> tuple[Any, ...]:
    """Return a shape of up to four axes as one of four."""
    return (1,) * (4 - len(x.shape)) + tuple(x.shape)


def _is_number(x: object) -> TypeGuard[Constant]:
    return isinstance(x, Constant) and x.data.numel() == 1


def _read(trace: Trace, call: OpCall, position: Expr) -> Any:
    """Return the result of the call that reads the slots up to a position alone."""
    given = dict(zip(call.op.schema.names, call.args, strict=True))
    named = (given[n] for n in ("query", "key", "value"))
    query, keys, values, last = map(trace.symbols, (*named, position))
    shape = _four(last)
    at = op.reshape(last, (shape[0], shape[2]))
    at = at if at.dtype == "int64" else op.astype(at, "int64")
    # Behind the last slot all are seen.
    at = op.minimum(at, keys.shape[2] - 1)
    tokens = query.shape[0], query.shape[2]
    at = at if at.shape == tokens else op.broadcast_to(at, tokens)
    query = _swapped(query)
    return _swapped(op.cached_attention(query, keys, values, at, scale=given["scale"]))


def _swapped(x: Any) -> Any:
    """Return x with its steps in the place of its heads: a view, where there is one step."""
    batch, first, second, width = x.shape
    if 1 in (first, second):
        return op.reshape(x, (batch, second, first, width))
    return op.permute_dims(x, (0, 2, 1, 3))
