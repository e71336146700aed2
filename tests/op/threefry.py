"""Test records of the splittable generator: the algorithms word by word, on numpy's uint64."""

from math import prod

import numpy as np
import torch

from meta.testing import C, OpCase, error, sample

ROTATIONS = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
ALL = 2**64 - 1


def threefry(counter, key, last_subkey=False):
    """Return the four words of a counter, with Python's unbounded ints."""
    keys = [*key, 0x1BD11BDAA9FC1A22 ^ key[0] ^ key[1] ^ key[2] ^ key[3]]
    x = list(counter)

    def add_subkey(s):
        for j in range(4):
            x[j] = (x[j] + keys[(s + j) % 5] + (s if j == 3 else 0)) & ALL

    for r in range(20):
        if r % 4 == 0:
            add_subkey(r // 4)
        for j in (0, 1):
            a, b, count = x[2 * j], x[2 * j + 1], ROTATIONS[r % 8][j]
            a = (a + b) & ALL
            x[2 * j], x[2 * j + 1] = a, a ^ ((b << count | b >> (64 - count)) & ALL)
        x[1], x[3] = x[3], x[1]
    if last_subkey:
        add_subkey(5)
    return x


def shifted(place):
    """Move the bit of two words one to the right."""
    joined = (place[0] << 64 | place[1]) >> 1
    return [joined >> 64, joined & ALL]


def generate(key, shape):
    s = key.tolist()
    shape = (shape,) if isinstance(shape, int) else shape
    count = prod(shape)
    if s[7] >= ALL - count:
        if s[8] == s[9] == 0:
            s = [*threefry([ALL] * 4, s[:4]), 0, 0, 0, 0, 2**63, 0]
        else:
            s = [*s[:4], s[4] | s[8], s[5] | s[9], 0, 0, *shifted(s[8:])]
    drawn = []
    for i in range(count // 4):
        drawn += threefry([(w + i) & ALL for w in s[4:8]], s[:4])
    if count % 4:
        s[7] += count // 4 * 4
        drawn += threefry(s[4:8], s[:4])[: count % 4]
    s[6], s[7] = 0, s[7] + (4 if count % 4 else count)
    return words(s), words(drawn).reshape(shape)


def split(key):
    s = key.tolist()
    if s[8] == s[9] == 0:
        hashed = threefry(s[4:8], s[:4])
        return tuple(words([*hashed, path, 0, 0, 0, 2**62, 0]) for path in (0, 2**63))
    place = shifted(s[8:])
    return (
        words([*s[:8], *place]),
        words([*s[:4], s[4] | s[8], s[5] | s[9], *s[6:8], *place]),
    )


def words(values):
    return torch.from_numpy(np.array(values, dtype=np.uint64))


def state(key=(1, 0, 0, 0), path=(0, 0), counter=0, place=(2**63, 0)):
    return C([*key, *path, 0, counter, *place], "uint64")


LARGE = (2**64 - 1, 2**63, 0x0123456789ABCDEF, 0xFEDCBA9876543210)
STATES = [
    state(),
    state(LARGE, (2**63 + 2**40, 0), 12, (2**39, 0)),
    state(LARGE, (5, 2**63), 2**64 - 8, (0, 2**62)),
    state(LARGE, (2**64 - 1, 3), 2**64 - 2, (1, 0)),
    state(LARGE, (2**64 - 1, 2**64 - 1), 2**64 - 2, (0, 0)),
    state(LARGE, (7, 9), 2**63, (0, 1)),
]

CASES = [
    OpCase(
        "threefry_generate",
        samples=[
            *(sample(s, (2, 4)) for s in STATES),
            *(sample(s, 7) for s in STATES),
            *(sample(state(LARGE), shape) for shape in ((), 1, (3, 1, 5), (0, 2), (16, 3))),
        ],
        oracle=generate,
        dtypes=(),
        grad=False,
        errors=[
            error(C([0] * 10, "int64"), 4, match="no state of the generator"),
            error(state(), (2, -1), match="no negative extents"),
        ],
    ),
    OpCase(
        "threefry_split",
        samples=[sample(s) for s in STATES],
        oracle=split,
        dtypes=(),
        grad=False,
        errors=[error(C([0] * 9, "uint64"), match="no state of the generator")],
    ),
]


def uniform(bits, dtype="float32"):
    first, count = (9, 23) if dtype == "float32" else (12, 52)
    numbers = [(int(b) >> first) % 2**count / 2**count for b in bits.flatten().tolist()]
    return torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(bits.shape)


BITS = C([[0, 1, 2**64 - 1], [2**63, 0x0123456789ABCDEF, 0xFEDCBA9876543210]], "uint64")

CASES += [
    OpCase(
        "bits_to_uniform",
        samples=[
            *(sample(BITS, dtype) for dtype in ("float32", "float64")),
            sample(C(77777, "uint64")),
        ],
        oracle=uniform,
        dtypes=(),
        grad=False,
        errors=[
            error(C([1], "int64"), match="bits must be uint64"),
            error(BITS, "float16", match="float32 or float64"),
        ],
    )
]
