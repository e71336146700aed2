"""What the converters of `meta/frontend/relay/converters/transform.py` refuse, and why."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.zeros(2, np.float32)


def refused(names, why):
    return [Case(name, (X,), refused=why) for name in names.split()]


CASES = [
    *refused("call_lowered memory.invoke_tvm_op vm.invoke_tvm_op", "before relay.build"),
    *refused("memory.shape_func vm.shape_func", "TVM has compiled"),
    *refused("memory.alloc_storage memory.alloc_tensor memory.kill", "before relay.vm.compile"),
    *refused("torch_op", "as a pickle"),
    *refused("parser.MetaRef", "TVM's parser replaces"),
]
