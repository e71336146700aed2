"""Converters of operators that make tensors: of numbers, and of random numbers from a splittable
generator, whose state is a tensor.
"""

from __future__ import annotations

from math import pi

from meta import op
from meta.frontend.core.arguments import as_integers, constant_number
from meta.frontend.core.operators import filled_like, full_tensor
from meta.frontend.relay.registry import relay


@relay.each(op.zeros, op.ones)
def constant_fill(base, *, shape, dtype, call):
    """Without a dtype float32."""
    return base(shape or (), dtype or "float32", str(call.device))


@relay("full", op.full, op.broadcast_to)
def full(fill_value, *, shape, dtype, call):
    """Without a dtype that of the number."""
    return full_tensor(fill_value, shape or (), dtype or fill_value.dtype, call)


relay("full_like", op.full_like, op.broadcast_to_like)(filled_like)


@relay("arange", op.arange, op.dynamic_arange, ignore=("start", "stop", "step"))
def arange(start, stop, step, *, dtype, call):
    """Of scalars that are not known the length depends on the data."""
    first, last, by = constant_number(start), constant_number(stop), constant_number(step)
    if first is None or last is None or by is None:
        return op.dynamic_arange(start, stop, step, dtype)
    return op.arange(first, last, by, dtype, str(call.device))


@relay("one_hot", op.one_hot)
def one_hot(indices, on_value, off_value, *, depth, axis, dtype):
    """Without a dtype that of the value."""
    dtype = dtype or on_value.dtype
    return op.one_hot(as_integers(indices), depth, on_value, off_value, axis, dtype, mode="ignore")


relay.same("random.threefry_generate", op.threefry_generate, out_shape="shape")
relay.same("random.threefry_split", op.threefry_split)


def _standard(key, shape, dtype):
    """Return the next state, and numbers uniform on [0, 1)."""
    following, bits = op.threefry_generate(key, shape)
    return following, op.bits_to_uniform(bits, dtype)


@relay("random.uniform", op.threefry_generate, op.bits_to_uniform)
def uniform(key, low, high, *, out_shape, out_dtype):
    """Uniform on [low, high)."""
    following, numbers = _standard(key, out_shape or (), out_dtype or "float32")
    return following, op.add(op.multiply(numbers, op.subtract(high, low)), low)


@relay("random.normal", op.threefry_generate, op.bits_to_uniform, op.log, op.sin)
def normal(key, mean, scale, *, out_shape, out_dtype):
    """Box and Muller, "A note on the generation of random normal deviates", 1958: the sines."""
    shape = out_shape or ()
    following, pairs = _standard(key, (2, *shape), out_dtype or "float32")
    first, second = (op.reshape(p, shape) for p in op.split(pairs, 2, 0))
    length = op.sqrt(op.multiply(op.log(op.subtract(1.0, first)), -2.0))
    sine = op.sin(op.multiply(second, 2 * pi))
    return following, op.add(op.multiply(op.multiply(length, sine), scale), mean)


@relay("random.multinomial", op.threefry_generate, op.bits_to_uniform, op.cumsum, op.argmin)
def multinomial(key, probs, *, num_samples):
    """Indices along the last axis, each as often as its probability, int32."""
    likely = op.maximum(op.astype(probs, "float32"), 0.0)
    share = op.divide(likely, op.sum(likely, -1, True))
    bounds = op.expand_dims(op.cumsum(share, -1), -1)
    following, numbers = _standard(key, (*probs.shape[:-1], int(num_samples)), "float32")
    above = op.subtract(bounds, op.expand_dims(numbers, -2))
    nearest = op.argmin(op.where(op.greater(above, 0.0), above, 1.0), -2)
    return following, op.astype(nearest, "int32")
