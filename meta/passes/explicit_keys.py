"""Keys of random calls as arguments: a kernel that is given its key draws nothing on the host.

Then the program says where keys come from, one operator does, and what is left of a random call is
a function of its arguments, which may be fused, moved and recorded.
"""

from __future__ import annotations

from meta import op
from meta.base.device import Device
from meta.ir import Binding, Call, Expr, Module, TensorType, Var
from meta.passes.calls import called_op, new_call
from meta.passes.rewrite import rewrite, with_value

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

    def rule(binding: Binding) -> list[Binding]:
        call, slot = binding.value, _open_slot(binding.value)
        if slot is None:
            return [binding]
        assert isinstance(call, Call)
        key = Var("key", TensorType((1,), "int64"))
        given = Call(call.callee, (*call.args[:slot], key, *call.args[slot + 1 :]))
        drawn = new_call(op.random_key, str(device))
        return [Binding(key, drawn, binding.span), with_value(binding, given)]

    return rewrite(module, rule)


def _open_slot(value: Expr) -> int | None:
    """Return the number of the argument in which a random call lacks its key, None if it does
    not.
    """
    called = called_op(value)
    if called is None or not called.random:
        return None
    assert isinstance(value, Call)
    slot = called.schema.index.get(KEY_SLOT)
    return slot if slot is not None and value.args[slot] is None else None
