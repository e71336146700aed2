"""What TVM's compiler puts into programs for itself: not converted, for these reasons."""

from meta.frontend.relay.registry import relay

_COMPILED = "it calls what TVM has compiled; save the model before relay.build, or before lowering"

relay.refuse("call_lowered", "memory.invoke_tvm_op", "vm.invoke_tvm_op", why=_COMPILED)
relay.refuse("memory.shape_func", "vm.shape_func", why=_COMPILED)
relay.refuse(
    "memory.alloc_storage",
    "memory.alloc_tensor",
    "memory.kill",
    why="memory is planned in it by TVM; save the model before relay.vm.compile",
)
relay.refuse(
    "torch_op", why="it holds a function of PyTorch as a pickle, which is code and is not run"
)
relay.refuse(
    "parser.MetaRef",
    why="it is a reference that TVM's parser replaces; it is in no program that was read",
)
