"""Moving elements between buffers in tensor expressions."""

from itertools import accumulate
from math import prod

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.compute import ELEMWISE, INJECTIVE, compute
from meta.dialect.tvm.index import flat_index, ints, unflat_index
from meta.op.memory import require_devices


@compute(op.fuse_tensor, INJECTIVE)
def fuse_tensor(data, out):
    ends = accumulate(prod(ints(t.shape)) for t in data)
    parts = [(t, e - prod(ints(t.shape)), e) for t, e in zip(data, ends, strict=True)]
    parts = [part for part in parts if part[1] < part[2]]

    def element(i):
        def of(tensor, begin):
            return tensor(*unflat_index(i - begin, ints(tensor.shape)))

        tensor, begin, _ = parts[-1]
        result = of(tensor, begin)
        for tensor, begin, end in reversed(parts[:-1]):
            result = tirx.if_then_else(i < end, of(tensor, begin), result)
        return result

    return te.compute(out.shape, element, name="fused")


@compute(op.defuse_tensor, INJECTIVE)
def defuse_tensor(data, out):
    def part(begin, type_):
        shape = type_.static_shape
        if prod(shape) == 0:
            return te.compute(shape, lambda *_: tirx.const(0, type_.dtype), name="defused")
        return te.compute(shape, lambda *i: data(flat_index(i, shape) + begin), name="defused")

    begins = [0, *accumulate(prod(type_.static_shape) for type_ in out)]
    return [part(begin, type_) for begin, type_ in zip(begins, out, strict=False)]


def between_devices(call):
    """Decline a copy to another device, which no kernel can do; raise if there is none to do."""
    require_devices(call)
    return None if call.out_device == call.device else "a kernel runs on one device only"


@compute(op.device_copy, ELEMWISE, when=between_devices)
def device_copy(data):
    return te.compute(data.shape, lambda *i: data(*i), name="device_copy")


@compute(op.optimization_barrier, ELEMWISE)
def optimization_barrier(x):
    return te.compute(x.shape, lambda *i: x(*i), name="optimization_barrier")
