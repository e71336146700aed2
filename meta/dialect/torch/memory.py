"""Moving elements between buffers and devices on ATen."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.shapes import fresh
from meta.op.memory import require_devices


@dialect.kernel(op.fuse_tensor)
def fuse_tensor(data, out):
    torch.cat([part.reshape(-1) for part in data], out=out)


@dialect.kernel(op.defuse_tensor)
def defuse_tensor(data, sizes, call):
    parts = data.split([sizes] if isinstance(sizes, int) else list(sizes))
    return tuple(fresh(p.reshape(t.shape)) for p, t in zip(parts, call.outputs, strict=True))


@dialect.kernel(op.device_copy, when=require_devices)
def device_copy(data, out):
    out.copy_(data)


@dialect.kernel(op.optimization_barrier)
def optimization_barrier(x):
    return fresh(x)


@dialect.kernel(op.assign)
def assign(x, value):
    x.copy_(value)
