"""Initial values of parameters."""

from __future__ import annotations

import math

from meta.runtime import random
from meta.runtime.ndarray import ndarray


def parameter(array: ndarray) -> ndarray:
    """Mark an array as trained and return it."""
    array.requires_grad = True
    return array


def fan_in_uniform(shape: tuple[int, ...], fan_in: int) -> ndarray:
    """Return a parameter uniform on +-1/sqrt(fan_in): what torch gives the weights and biases of
    Linear and Conv.
    """
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    return parameter(random.uniform(shape, -bound, bound))
