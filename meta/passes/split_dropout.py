"""Dropout by a known key: a mask, and what it leaves, which fuse with their neighbours.

Attention with dropout stays written out. With this pass, and `narrow_before_views`, it has between
its products on CUDA one kernel of scale, mask and softmax, and one that draws, drops out and
rounds; in the gradient one kernel of all that.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from meta import op
from meta.ir import Binding, Call, Constant, Module, Tuple, Var
from meta.passes.calls import base_op, new_call, tensor_type
from meta.passes.rewrite import rewrite


def split_dropout(module: Module) -> Module:
    """Compute the mask of a dropout that is given its key by itself, and then what is kept.

    Both go element by element: they run in the kernels of what is dropped out, or of what reads the
    rest. A dropout without a key draws it at its launch, and stays one kernel.

    >>> from meta.ir import parse
    >>> print(split_dropout(parse('''
    ... func @main(%x: float32[8], %key: int64[1]) -> float32[8] {
    ...   %d: (float32[8], bool[8], uint8[0]) = _contrib_dropout(%x, p=0.1, in_states=%key)
    ...   %y: float32[8] = %d.0
    ...   return %y
    ... }''')))
    func @main(%x: float32[8], %key: int64[1]) -> float32[8] {
      %mask: bool[8] = dropout_mask(%key, shape=(8,), p=0.1)
      %kept: float32[8] = _contrib_dropout_dx(%x, %mask, const uint8[0] [], p=0.1)
      %d: (float32[8], bool[8], uint8[0]) = (%kept, %mask, const uint8[0] [])
      %y: float32[8] = %d.0
      return %y
    }
    """
    return rewrite(module, _parts)


def _parts(binding: Binding) -> Iterator[Binding]:
    """Yield a binding, or what it becomes."""
    call = binding.value
    if not isinstance(call, Call) or base_op(call.callee) is not op._contrib_dropout:
        yield binding
        return
    x, p, key = call.args
    type_ = tensor_type(x)
    if key is None or type_ is None or not type_.is_static:
        yield binding
        return
    mask = Var("mask", type_.with_dtype("bool"))
    yield Binding(mask, new_call(op.dropout_mask, key, type_.static_shape, p), binding.span)
    kept, nothing = Var("kept", type_), Constant(torch.zeros(0, dtype=torch.uint8))
    rest = new_call(op._contrib_dropout_dx, x, mask, nothing, p)
    yield Binding(kept, rest, binding.span)
    yield Binding(binding.var, Tuple((kept, mask, nothing)), binding.span)
