"""Operators that TVM's compiler puts into programs: marks, which are the identity, and what is not
converted, with the reason.
"""

from __future__ import annotations

from meta.frontend.relay.registry import relay

_DEVICES = ("constrain_body", "constrain_result", "virtual_device", "device_type", "is_fixed")
_COPY = ("dst_virtual_device", "src_virtual_device", "src_dev_type", "dst_dev_type")


@relay("copy", *(f"annotation.{mark}" for mark in ("bitpack_end", "bitpack_start", "cast_hint")))
@relay(*(f"annotation.{mark}" for mark in ("checkpoint", "stop_fusion", "with_funcid")))
# What TVM would hand to another compiler: here the program stays one.
@relay("annotation.compiler_begin", "annotation.compiler_end", ignore=("compiler",))
# The function that TVM would call is of the process that wrote the file.
@relay("debug", ignore=("debug_func",))
# The whole program runs on one device, which is chosen where it is run, not in its file.
@relay("on_device", ignore=_DEVICES)
@relay("device_copy", ignore=_COPY)
def identity(data):
    """Marks for passes of TVM."""
    return data


_COMPILED = "it calls what TVM has compiled; save the model before relay.build, or before lowering"
REFUSED = {
    "call_lowered memory.invoke_tvm_op vm.invoke_tvm_op memory.shape_func vm.shape_func": _COMPILED,
    "memory.alloc_storage memory.alloc_tensor memory.kill": "memory is planned in it by TVM; save "
    "the model before relay.vm.compile",
    "torch_op": "it holds a function of PyTorch as a pickle, which is code and is not run",
    "parser.MetaRef": "it is a reference that TVM's parser replaces; it is in no program that was "
    "read",
    "contrib.ethosu.binary_elementwise contrib.ethosu.conv2d contrib.ethosu.depthwise_conv2d "
    "contrib.ethosu.identity contrib.ethosu.pooling contrib.ethosu.unary_elementwise": "it is an "
    "instruction of the Ethos-U processor with packed weights; save the model before it is "
    "partitioned for that processor",
}
for _names, _why in REFUSED.items():
    relay.refuse(*_names.split(), why=_why)
