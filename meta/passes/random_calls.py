"""Random calls: their keys as arguments (`explicit_keys`), and dropout by a known key as a mask and
what it leaves (`split_dropout`).

A kernel that is given its key draws nothing on the host. Then the program says where keys come
from, one operator does, and what is left of a random call is a function of its arguments, which may
be fused, moved and recorded. Where attention with dropout is written out and stays so, as where its
weights are read elsewhere, it has with `split_dropout` and `narrow_before_views` between its
products on CUDA one kernel of scale, mask and softmax, and one that draws, drops out and rounds.
"""

from __future__ import annotations

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core.ir_calls import base_op, called_op, new_call, tensor_type
from meta.ir import Binding, Call, Constant, Expr, Module, TensorType, Tuple, Var
from meta.passes.rewrite import rewrite, with_value
from meta.runtime.random import KEY_SLOT


def explicit_keys(module: Module, *, device: Device) -> Module:
    """Give every random call on CUDA that has no key one that is drawn just before it.

    On other devices a number that is drawn when the kernel is launched costs less, and the module
    is returned as it is. The order of draws, and so what is drawn, stays the same.

    >>> from meta.base.device import Device
    >>> from meta.ir import parse
    >>> print(meta.passes.explicit_keys(parse('''
    ... func @main(%x: float32[8]) -> float32[8] {
    ...   %d: (float32[8], bool[8], uint8[0]) = dropout_train(%x, p=0.1)
    ...   %y: float32[8] = %d.0
    ...   return %y
    ... }'''), device=Device("cuda:0")))
    func @main(%x: float32[8]) -> float32[8] {
      %key: int64[1] = random_key(device="cuda:0")
      %d: (float32[8], bool[8], uint8[0]) = dropout_train(%x, p=0.1, in_states=%key)
      %y: float32[8] = %d.0
      return %y
    }
    """
    if device.kind != "cuda":
        return module

    def rule(binding: Binding) -> list[Binding]:
        call, slot = binding.value, _missing_key_slot(binding.value)
        if slot is None:
            return [binding]
        assert isinstance(call, Call)
        key = Var("key", TensorType((1,), "int64"))
        given = Call(call.callee, (*call.args[:slot], key, *call.args[slot + 1 :]))
        drawn = new_call(op.random_key, str(device))
        return [Binding(key, drawn, binding.span), with_value(binding, given)]

    return rewrite(module, rule)


def _missing_key_slot(value: Expr) -> int | None:
    """Return the number of the argument in which a random call lacks its key; None if it has it."""
    called = called_op(value)
    if called is None or not called.random:
        return None
    assert isinstance(value, Call)
    slot = called.schema.index.get(KEY_SLOT)
    return slot if slot is not None and value.args[slot] is None else None


def split_dropout(module: Module) -> Module:
    """Compute the mask of a dropout that is given its key by itself, and then what is kept.

    Both go element by element: they run in the kernels of what is dropped out, or of what reads the
    rest. A dropout without a key draws it at its launch, and stays one kernel.

    >>> from meta.ir import parse
    >>> print(meta.passes.split_dropout(parse('''
    ... func @main(%x: float32[8], %key: int64[1]) -> float32[8] {
    ...   %d: (float32[8], bool[8], uint8[0]) = dropout_train(%x, p=0.1, in_states=%key)
    ...   %y: float32[8] = %d.0
    ...   return %y
    ... }''')))
    func @main(%x: float32[8], %key: int64[1]) -> float32[8] {
      %mask: bool[8] = dropout_mask(%key, shape=(8,), p=0.1)
      %kept: float32[8] = dropout_dx(%x, %mask, const uint8[0] [], p=0.1)
      %d: (float32[8], bool[8], uint8[0]) = (%kept, %mask, const uint8[0] [])
      %y: float32[8] = %d.0
      return %y
    }
    """
    return rewrite(module, _split_binding)


def _split_binding(binding: Binding) -> list[Binding]:
    """Return a binding, or what it becomes."""
    call = binding.value
    if not isinstance(call, Call) or base_op(call.callee) is not op.dropout_train:
        return [binding]
    x, p, key = call.args
    type_ = tensor_type(x)
    if key is None or type_ is None or not type_.is_static:
        return [binding]
    mask, kept = Var("mask", type_.with_dtype("bool")), Var("kept", type_)
    nothing = Constant(torch.zeros(0, dtype=torch.uint8))
    drawn = new_call(op.dropout_mask, key, type_.static_shape, p)
    rest = new_call(op.dropout_dx, x, mask, nothing, p)
    parts = {mask: drawn, kept: rest, binding.var: Tuple((kept, mask, nothing))}
    return [Binding(var, value, binding.span) for var, value in parts.items()]
