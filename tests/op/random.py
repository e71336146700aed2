"""Cases of operators that draw random numbers, with given keys. Philox is written out once more."""

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


def dropout(x, p=0.5, in_states=None):
    key = int(in_states)
    words = [philox(i // 4, key)[i % 4] for i in range(x.numel())]
    mask = torch.tensor([w >= p * 2**32 for w in words], dtype=torch.bool).reshape(x.shape)
    return x * mask / (1 - p), mask, torch.empty(0, dtype=torch.uint8)


KEY = C(0x0123456789ABCDEF, dtype="int64")
NOTHING = C([], dtype="uint8")

CASES = [
    OpCase(
        "_contrib_dropout",
        [
            sample(F(4, 5), in_states=KEY),
            sample(F(3, 7), 0.1, KEY),
            sample(F(33), 0.9, C([5], dtype="int64")),
            sample(F(6), 0.0, KEY),
            sample(F(), 0.3, KEY),
            sample(F(0, 3), 0.3, KEY),
            sample(F(2, 1, 3), 0.25, C([-1], dtype="int64")),
        ],
        dropout,
    ),
    OpCase(
        "_contrib_dropout_dx",
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
        lambda key, shape, p=0.5: dropout(torch.ones(shape), p, key)[1],
        grad=False,
    ),
    # A fresh key each time: see test_random.py.
    OpCase("random_key", [], lambda device="cpu": None),
]

_KEY = C([1, 2], "int64")

CASES += refusals(
    {
        "_contrib_dropout": [
            error(F(3), 1.0, match="p is not a probability of dropping"),
            error(F(3), -0.5, match="p is not a probability of dropping"),
            error(_KEY, match="x must be floating point"),
            error(F(3), 0.5, _KEY, match="in_states is no key"),
        ],
        "_contrib_dropout_dx": [
            error(F(3), B(2), C([], "uint8"), match="mask does not fit"),
            error(F(3), B(3), C([], "uint8"), 1.5, match="p is not a probability of dropping"),
        ],
    }
)
