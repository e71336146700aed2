"""Test records of random numbers and dropout."""

import math
from math import prod

import numpy as np
import torch

from meta.testing import B, C, F, OpCase, error, refusals, sample


def philox(counter, key):
    """Return the four words of Philox4x32-10 for a counter below 2**64 and a 64-bit key."""
    word = 0xFFFFFFFF
    c = [counter & word, counter >> 32, 0, 0]
    k = [key & word, key >> 32 & word]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & word, p >> 32 ^ c[3] ^ k[1], p & word]
        k = [k[0] + 0x9E3779B9 & word, k[1] + 0xBB67AE85 & word]
    return c


def dropout_train(x, p=0.5, in_states=None):
    key = int(in_states)
    words = [philox(i // 4, key)[i % 4] for i in range(x.numel())]
    mask = torch.tensor([w >= p * 2**32 for w in words], dtype=torch.bool).reshape(x.shape)
    return x * mask / (1 - p), mask, torch.empty(0, dtype=torch.uint8)


DRAWN = ("float16", "bfloat16", "float32", "float64")


def blocks(key, shape):
    """Return the shape, the number of elements, and a function of random words."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    return extents, prod(extents), lambda i: philox(i, int(key) & 2**64 - 1)


def top53(a, b):
    return ((a >> 5) << 26) + (b >> 6)


def by_keys(draw):
    """Draw each slice along the first axis by a key of its own, where there are several keys."""

    def drawn(key, shape, *args, **options):
        if key.numel() == 1:
            return draw(key, shape, *args, **options)
        return torch.stack([draw(k, shape[1:], *args, **options) for k in key])

    return drawn


@by_keys
def random_uniform(key, shape, low=0.0, high=1.0, dtype="float32"):
    extents, count, words = blocks(key, shape)
    if dtype == "float64":
        units = [top53(*words(i // 2)[i % 2 * 2 :][:2]) / 2**53 for i in range(count)]
    else:
        units = [(words(i // 4)[i % 4] >> 8) / 2**24 for i in range(count)]
    kind = getattr(torch, dtype)
    wide = torch.float64 if dtype == "float64" else torch.float32
    found = (torch.tensor(units, dtype=wide) * (high - low) + low).to(kind)
    return torch.where(found >= high, torch.tensor(low, dtype=kind), found).reshape(extents)


@by_keys
def random_normal(key, shape, mean=0.0, std=1.0, dtype="float32"):
    extents, count, words = blocks(key, shape)
    values = []
    for i in range(count):
        if dtype == "float64":
            w = words(i // 2)
            u, v = (top53(w[0], w[1]) + 1) / 2**53, top53(w[2], w[3]) / 2**53
        else:
            w = words(i // 4)[i % 4 // 2 * 2 :]
            u, v = (w[0] + 1) / 2**32, w[1] / 2**32
        turn = math.sin if i % 2 else math.cos
        values.append(mean + std * math.sqrt(-2 * math.log(u)) * turn(2 * math.pi * v))
    return torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype)).reshape(extents)


@by_keys
def random_integers(key, shape, low, last, dtype="int64"):
    extents, count, words = blocks(key, shape)
    values = []
    for i in range(count):
        x = sum(w << 32 * j for j, w in enumerate(words(i)))
        values.append(low + (x * (last - low + 1) >> 128))
    return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(extents)


KEY = C(0x0123456789ABCDEF, dtype="int64")

KEYS = C([3, -1, 2**62], dtype="int64")

NOTHING = C([], dtype="uint8")

CASES = [
    OpCase(
        "dropout_train",
        [
            sample(F(4, 5), in_states=KEY),
            sample(F(3, 7), 0.1, KEY),
            sample(F(33), 0.9, C([5], dtype="int64")),
            sample(F(6), 0.0, KEY),
            sample(F(), 0.3, KEY),
            sample(F(0, 3), 0.3, KEY),
            sample(F(2, 1, 3), 0.25, C([-1], dtype="int64")),
        ],
        dropout_train,
    ),
    OpCase(
        "dropout_dx",
        [
            sample(F(4, 5), B(4, 5), NOTHING),
            sample(F(3), B(3), NOTHING, 0.1),
            sample(F(), B(), NOTHING, 0.3),
            sample(F(0, 3), B(0, 3), NOTHING, 0.3),
        ],
        lambda dy, mask, reserve_space, p=0.5: dy * mask / (1 - p),
    ),
    OpCase(
        "dropout_mask",
        [
            sample(KEY, (4, 5)),
            sample(KEY, (3, 7), 0.1),
            sample(C([5], dtype="int64"), (33,), 0.9),
            sample(KEY, (), 0.3),
            sample(KEY, (0, 3)),
        ],
        lambda key, shape, p=0.5: dropout_train(torch.ones(shape), p, key)[1],
        grad=False,
    ),
    OpCase(
        "random_uniform",
        [
            *(sample(KEY, s, dtype=d) for s in ((4, 5), (), (0, 3), 7) for d in DRAWN),
            *(sample(KEYS, s, dtype=d) for s in ((3, 7), (3, 2, 4), (3,), (3, 0)) for d in DRAWN),
            sample(C([-1], dtype="int64"), (33,), -3.0, -2.0),
            sample(KEY, (33,), 1024.0, 1032.0, dtype="bfloat16"),
        ],
        random_uniform,
        dtypes=(),
        dialects=("torch",),
        grad=False,
        errors=[
            error(KEY, (3,), dtype="int32", match="numbers are floating point"),
            error(KEYS, (2, 3), match="key is no key"),
            error(KEYS, (), match="key is no key"),
        ],
    ),
    OpCase(
        "random_normal",
        [
            *(sample(KEY, s, dtype=d) for s in ((4, 5), (), (0, 3), 7) for d in DRAWN),
            *(sample(KEYS, s, 1.0, 2.0, dtype=d) for s in ((3, 7), (3, 2, 4)) for d in DRAWN),
            sample(KEY, (33,), 3.0, 0.5),
        ],
        random_normal,
        dtypes=(),
        dialects=("torch",),
        grad=False,
        errors=[
            error(KEY, (3,), dtype="int32", match="numbers are floating point"),
            error(KEYS, (2, 3), match="key is no key"),
            error(KEYS, (), match="key is no key"),
        ],
    ),
    OpCase(
        "random_integers",
        [
            *(sample(KEY, s, -3, 9) for s in ((4, 5), (), (0, 3), 7)),
            *(sample(KEYS, s, -3, 9) for s in ((3, 7), (3,), (3, 0))),
            *(sample(KEY, (33,), low, 2**63 - 1) for low in (-(2**63), -(2**62), 5, 2**63 - 1)),
            sample(KEY, (33,), -128, 127, dtype="int8"),
        ],
        random_integers,
        dtypes=(),
        dialects=("torch",),
        grad=False,
        errors=[
            error(KEY, (3,), 5, 4, match="no integer to draw"),
            error(KEY, (3,), 0, 1, dtype="float32", match="numbers are integers"),
        ],
    ),
    # A fresh key each time: see test_random.py.
    OpCase("random_key", [], lambda device="cpu": None),
]

_KEY = C([1, 2], "int64")

CASES += refusals(
    {
        "dropout_train": [
            error(F(3), 1.0, match="p is not a probability of dropping"),
            error(F(3), -0.5, match="p is not a probability of dropping"),
            error(_KEY, match="x must be floating point"),
            error(F(3), 0.5, _KEY, match="in_states is no key"),
        ],
        "dropout_dx": [
            error(F(3), B(2), C([], "uint8"), match="mask does not fit"),
            error(F(3), B(3), C([], "uint8"), 1.5, match="p is not a probability of dropping"),
        ],
    }
)

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

CASES += [
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
