"""Converters of random numbers from a splittable generator, whose state is a tensor."""

from __future__ import annotations

from math import pi
from typing import Any

from meta import op
from meta.frontend.relay.arguments import ints
from meta.frontend.relay.registry import relay


@relay("random.threefry_generate", op.threefry_generate)
def threefry_generate(key: Any, *, out_shape: Any) -> Any:
    return op.threefry_generate(key, ints(out_shape))


relay.same("random.threefry_split", op.threefry_split)


def _standard(key: Any, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """Return the next state, and numbers uniform on [0, 1)."""
    following, bits = op.threefry_generate(key, shape)
    return following, op.bits_to_uniform(bits, dtype)


@relay("random.uniform", op.threefry_generate, op.bits_to_uniform)
def uniform(key: Any, low: Any, high: Any, *, out_shape: Any, out_dtype: str) -> Any:
    """Uniform on [low, high)."""
    following, numbers = _standard(key, ints(out_shape), out_dtype or "float32")
    return following, op.add(op.multiply(numbers, op.subtract(high, low)), low)


@relay("random.normal", op.threefry_generate, op.bits_to_uniform, op.log, op.sin)
def normal(key: Any, mean: Any, scale: Any, *, out_shape: Any, out_dtype: str) -> Any:
    """Box and Muller, "A note on the generation of random normal deviates", 1958: the sines."""
    shape = ints(out_shape)
    following, pairs = _standard(key, (2, *shape), out_dtype or "float32")
    first, second = (op.reshape(p, shape) for p in op.split(pairs, 2, 0))
    length = op.sqrt(op.multiply(op.log(op.subtract(1.0, first)), -2.0))
    sine = op.sin(op.multiply(second, 2 * pi))
    return following, op.add(op.multiply(op.multiply(length, sine), scale), mean)


@relay("random.multinomial", op.threefry_generate, op.bits_to_uniform, op.cumsum, op.argmin)
def multinomial(key: Any, probs: Any, *, num_samples: int) -> Any:
    """Indices along the last axis, each as often as its probability, int32."""
    likely = op.maximum(op.cast(probs, "float32"), 0.0)
    share = op.divide(likely, op.sum(likely, -1, True))
    bounds = op.expand_dims(op.cumsum(share, -1), -1)
    following, numbers = _standard(key, (*probs.shape[:-1], int(num_samples)), "float32")
    above = op.subtract(bounds, op.expand_dims(numbers, -2))
    nearest = op.argmin(op.where(op.greater(above, 0.0), above, 1.0), -2)
    return following, op.cast(nearest, "int32")
