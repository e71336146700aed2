"""Gradients of attention in half precision read values and results as they are.

In float32, an offset that all values of a head have in common is taken off the values and the
result before the gradient: it cancels in exact arithmetic, and takes digits with it in that of a
computer (`meta.grad.attention`). In half precision the result itself is rounded to fewer digits
than are saved so, and what is left of it is two more passes over both, which this takes out.
"""

from __future__ import annotations

from dataclasses import replace

from meta.ir import Binding, Call, Function, Module
from meta.op.attention import HEADS_FIRST
from meta.passes.buffers import Buffers, Summaries
from meta.passes.definitions import Definitions
from meta.passes.rewrite import rewrite_function
from meta.passes.rules.table import OpCall, op_call, tensor_type

HALF = "float16", "bfloat16"
GRADIENTS = "scaled_dot_product_attention_dx", "scaled_dot_product_attention_dmask"


def without_offsets(module: Module) -> Module:
    """Give gradients of attention in half precision what offsets were subtracted from."""
    summaries = Summaries(module)
    return module.with_functions({n: _function(f, summaries) for n, f in module.functions.items()})


def _function(function: Function, summaries: Summaries) -> Function:
    known = Definitions(function, Buffers(function, summaries))

    def step(binding: Binding) -> Binding:
        made = op_call(binding.value)
        if made is not None and made.name in GRADIENTS:
            binding = replace(binding, value=_rewritten(binding.value, made, known))
        known.add(binding)
        return binding

    return rewrite_function(function, step)


def _rewritten(call: Call, made: OpCall, known: Definitions) -> Call:
    value, y, layout = made.args[2], made.args[4], made.args[9]
    type_ = tensor_type(value)
    from_value, from_y = (op_call(known.get(atom)) for atom in (value, y))
    if type_ is None or type_.dtype not in HALF or from_value is None or from_y is None:
        return call
    if from_value.name != "subtract" or from_y.name != "subtract":
        return call
    offset = tensor_type(from_value.args[1])
    if offset is None or offset.ndim != type_.ndim:
        return call
    steps = 2 if layout == HEADS_FIRST else 1
    if offset.shape[steps] != 1 or not _same(from_value.args[1], from_y.args[1], known):
        return call
    args = list(call.args)
    args[2], args[4] = from_value.args[0], from_y.args[0]
    return replace(call, args=tuple(args))


def _same(offset: object, other: object, known: Definitions) -> bool:
    """Whether ``other`` is an offset, or that of the heads that share it."""
    if other is offset:
        return True
    made = op_call(known.get(other))
    return made is not None and made.name == "repeat" and made.args[0] is offset
