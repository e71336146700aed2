"""Keys of random calls as arguments: a kernel that is given its key draws nothing on the host.

Then the program says where keys come from, one operator does, and what is left of a random call is
a function of its arguments, which may be fused, moved and recorded.
"""

from __future__ import annotations

from dataclasses import replace

from meta.base.device import Device
from meta.base.registry import OPERATORS
from meta.ir import Binding, Block, Call, Function, If, Module, TensorType, Var
from meta.passes.call_of import base_op

KEY_SLOT = "in_states"
"""The slot in which a random operator takes its key."""


def explicit_keys(module: Module, *, device: Device) -> Module:
    """Give every random call on CUDA that has no key one that is drawn just before it.

    On other devices a number that is drawn when the kernel is launched costs less, and the module
    is returned as it is. The order of draws, and so what is drawn, stays the same.

    >>> from meta.base.device import Device
    >>> from meta.ir import parse
    >>> print(explicit_keys(parse('''
    ... func @main(%x: float32[8]) -> float32[8] {
    ...   %d: (float32[8], bool[8], uint8[0]) = _contrib_dropout(%x, p=0.1)
    ...   %y: float32[8] = %d.0
    ...   return %y
    ... }'''), device=Device("cuda:0")))
    func @main(%x: float32[8]) -> float32[8] {
      %key: int64[1] = random_key(device="cuda:0")
      %d: (float32[8], bool[8], uint8[0]) = _contrib_dropout(%x, p=0.1, in_states=%key)
      %y: float32[8] = %d.0
      return %y
    }
    """
    if device.kind != "cuda":
        return module
    return module.with_functions(
        {name: replace(f, body=_block(f.body, device)) for name, f in module.functions.items()}
    )


def _block(block: Block, device: Device) -> Block:
    kept: list[Binding] = []
    for binding in block.bindings:
        value = binding.value
        if isinstance(value, If):
            then, other = (_block(b, device) for b in (value.then_block, value.else_block))
            binding = Binding(binding.var, If(value.condition, then, other), binding.span)
        elif isinstance(value, Function):
            inner = replace(value, body=_block(value.body, device))
            binding = Binding(binding.var, inner, binding.span)
        elif isinstance(value, Call) and (slot := _open_slot(value)) is not None:
            key = Var("key", TensorType((1,), "int64"))
            drawn = Call(OPERATORS["random_key"], (str(device),))
            given = Call(value.callee, (*value.args[:slot], key, *value.args[slot + 1 :]))
            kept.append(Binding(key, drawn, binding.span))
            binding = Binding(binding.var, given, binding.span)
        kept.append(binding)
    return Block(tuple(kept), block.result)


def _open_slot(call: Call) -> int | None:
    """Return the number of the argument in which a random call lacks its key, None if it does
    not.
    """
    op = base_op(call.callee)
    if op is None or not op.random:
        return None
    slot = op.schema.index.get(KEY_SLOT)
    return slot if slot is not None and call.args[slot] is None else None
