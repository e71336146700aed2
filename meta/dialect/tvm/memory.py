"""Moving elements between buffers in tensor expressions."""

from itertools import accumulate
from math import prod

from tvm import te

from meta import op
from meta.dialect.tvm.compute import ELEMWISE, INJECTIVE, compute
from meta.dialect.tvm.index import bounds, flat_index, in_slice, ints, unflat_index, zeros
from meta.op.memory import require_devices


@compute(op.fuse_tensor, INJECTIVE)
def fuse_tensor(data, out):
    parts = bounds(data, [prod(ints(t.shape)) for t in data])

    def element(i):
        def of(tensor, begin):
            return tensor(*unflat_index(i - begin, ints(tensor.shape)))

        return in_slice(parts, i, of)

    return te.compute(out.shape, element, name="fused")


@compute(op.defuse_tensor, INJECTIVE)
def defuse_tensor(data, out):
    def part(begin, type_):
        shape = type_.static_shape
        if prod(shape) == 0:
            return zeros(shape, type_.dtype)
        return te.compute(shape, lambda *i: data(flat_index(i, shape) + begin), name="defused")

    begins = [0, *accumulate(prod(type_.static_shape) for type_ in out)]
    return [part(begin, type_) for begin, type_ in zip(begins, out, strict=False)]


def between_devices(call):
    """Decline a copy to another device, which no kernel can do; raise if there is none to do."""
    require_devices(call)
    return None if call.out_device == call.device else "a kernel runs on one device only"


@compute(op.device_copy, ELEMWISE, when=between_devices)
def device_copy(data):
    return data


@compute(op.optimization_barrier, ELEMWISE)
def optimization_barrier(x):
    return x
