"""What the converters of `meta/frontend/relay/converters/create.py` have to give: the same numbers
as a loop over the words of the generator.
"""

import math

import numpy as np
import torch

from tests.frontend.relay.records import ConverterCase as Case
from tests.op.random import generate, split

F = np.float32
KEY = np.array([5, 6, 7, 8, 2**62, 0, 0, 12, 2**61, 0], np.uint64)
FIRST = np.array([1, 0, 0, 0, 0, 0, 0, 0, 2**63, 0], np.uint64)


def unit(key, shape, dtype="float32"):
    """Numbers of [0, 1), and the next state."""
    following, words = generate(torch.from_numpy(key), shape)
    first, count = (9, 23) if dtype == "float32" else (12, 52)
    numbers = [(w >> first) % 2**count / 2**count for w in words.flatten().tolist()]
    return following, np.array(numbers, dtype).reshape(shape)


def uniform(shape, dtype):
    def oracle(key, low, high):
        following, numbers = unit(key, shape, dtype)
        return following, numbers * (high - low) + low

    return oracle


def normal(shape, dtype):
    def oracle(key, mean, scale):
        following, numbers = unit(key, (2, *shape), dtype)
        pairs = zip(numbers[0].flat, numbers[1].flat, strict=True)
        drawn = [
            math.sqrt(-2 * math.log(1 - float(u))) * math.sin(2 * math.pi * float(v))
            for u, v in pairs
        ]
        return following, (np.array(drawn).reshape(shape) * scale + mean).astype(dtype)

    return oracle


def multinomial(count):
    def oracle(key, probs):
        following, numbers = unit(key, (*probs.shape[:-1], count))
        rows = np.maximum(probs, 0).reshape(-1, probs.shape[-1]).astype(np.float64)
        bounds = np.cumsum(rows / rows.sum(1, keepdims=True), 1)
        drawn = [
            [next(i for i, b in enumerate(row) if b > u) for u in line]
            for row, line in zip(bounds, numbers.reshape(len(rows), count), strict=True)
        ]
        return following, np.array(drawn, np.int32).reshape(numbers.shape)

    return oracle


def _generated(key, shape):
    return generate(torch.from_numpy(key), shape)


PROBS = np.array([[0.1, 0.0, 3.0, -2.0, 1.0], [1, 1, 1, 1, 1]], F)

CASES = [
    Case(
        "random.threefry_generate",
        (key,),
        _generated(key, shape),
        {"out_shape": shape},
        label=f"{shape}",
    )
    for key, shape in ((KEY, (2, 4)), (FIRST, (3,)))
] + [Case("random.threefry_split", (key,), split(torch.from_numpy(key))) for key in (KEY, FIRST)]
CASES += [
    Case(
        f"random.{name}",
        (FIRST, kind(-1), kind(2.5)),
        oracle(shape, dtype),
        {"out_shape": shape, "out_dtype": dtype},
    )
    for name, oracle in (("uniform", uniform), ("normal", normal))
    for shape, dtype, kind in (((3, 5), "float32", F), ((8,), "float64", np.float64))
]
CASES += [
    Case("random.multinomial", (KEY, PROBS), multinomial(9), {"num_samples": 9}),
    Case("random.multinomial", (KEY, PROBS[0]), multinomial(1), {"num_samples": 1}),
    Case("random.multinomial", (KEY, PROBS[None] * 4), multinomial(4), {"num_samples": 4}),
]
