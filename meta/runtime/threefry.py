"""Threefry-4x64-20 with a splittable state: the generator of `threefry_generate`, `threefry_split`.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the state is
encoding e4 of Claessen and Palka, "Splittable pseudorandom number generators using cryptographic
hashing", Haskell 2013. As in Relay, whose numbers these are, no subkey is added after the last
round.

A state has ten 64-bit words: the key (0 to 3), the path of splits so far (4, 5), a counter (6, 7)
and the place of the next split in the path, a single bit (8, 9). The arithmetic of the words is a
parameter, so the same text runs on torch tensors and on TVM expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

STATE_WORDS = 10
_ROTATIONS = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
_PARITY = 0x1BD11BDAA9FC1A22
ROUNDS = 20
_FIRST, _SECOND = 1 << 63, 1 << 62  # places in the first word of a path
_ONES = (1 << 64) - 1


class Arithmetic(Protocol):
    """What a representation of 64-bit words needs beyond ``^ | & << >>``.

    ``>>`` may fill with the sign: only masked results of it are used.
    """

    def add(self, a: Any, b: Any) -> Any:
        """Return the sum modulo 2**64."""

    def constant(self, value: int) -> Any:
        """Return a word."""

    def select(self, condition: Any, then: Any, other: Any) -> Any:
        """Return one of two words."""

    def above(self, a: Any, b: int) -> Any:
        """Return whether ``a`` is larger than ``b``, both unsigned; ``b`` is below 2**63."""

    def is_zero(self, a: Any) -> Any:
        """Return whether a word is 0."""


def subkeys(key: Sequence[Any], words: Arithmetic) -> tuple[Any, ...]:
    """Return the five words of which subkeys are made."""
    return (*key, words.constant(_PARITY) ^ key[0] ^ key[1] ^ key[2] ^ key[3])


def rounds(
    x: Sequence[Any], schedule: Sequence[Any], first: int, count: int, words: Arithmetic
) -> list[Any]:
    """Return four words after the rounds ``first`` to ``first + count - 1``; all are 0 to 19."""
    x = list(x)
    for number in range(first, first + count):
        if number % 4 == 0:
            group = number // 4
            x = [words.add(v, schedule[(group + j) % 5]) for j, v in enumerate(x)]
            x[3] = words.add(x[3], words.constant(group))
        left, right = _ROTATIONS[number % 8]
        a, c = words.add(x[0], x[1]), words.add(x[2], x[3])
        x = [a, _rotate(x[3], right, words) ^ c, c, _rotate(x[1], left, words) ^ a]
    return x


def _rotate(x: Any, count: int, words: Arithmetic) -> Any:
    """Rotate a word to the left."""
    return (x << count) | _shift(x, 64 - count, words)


def _shift(x: Any, count: int, words: Arithmetic) -> Any:
    """Shift a word to the right, zeros coming in."""
    return (x >> count) & words.constant((1 << (64 - count)) - 1)


def counter(state: Sequence[Any], block: Any, count: int, words: Arithmetic) -> list[Any]:
    """Return the words to hash for four numbers, those of a block, of ``count`` numbers in all.

    ``state`` is one that `with_room` returned. A last block that is not full counts on its own.
    """
    whole = count // 4
    is_last = words.is_zero(block ^ words.constant(whole))
    shared = words.select(is_last, words.constant(0), block)
    extra = words.select(is_last, words.constant(4 * whole), block)
    return [*(words.add(w, shared) for w in state[4:7]), words.add(state[7], extra)]


def counter_of_ones(words: Arithmetic) -> list[Any]:
    """Return the counter whose hash is the key for `with_room`."""
    return [words.constant(_ONES)] * 4


def with_room(
    state: Sequence[Any], hashed: Sequence[Any], count: int, words: Arithmetic
) -> list[Any]:
    """Return a state whose counter has room for ``count`` numbers.

    That is the state itself; else the right one of a split, its counter at 0; or, where the path
    is full, one whose key is ``hashed``, the hash of `counter_of_ones`.
    """
    zero = words.constant(0)
    fits = words.above(state[7] ^ words.constant(_ONES), count)
    full = words.is_zero(state[8] | state[9])
    fresh = [*hashed, zero, zero, zero, zero, words.constant(_FIRST), zero]
    path = [state[4] | state[8], state[5] | state[9]]
    longer = [*state[:4], *path, zero, zero, *_next_place(state, words)]
    new = [words.select(full, a, b) for a, b in zip(fresh, longer, strict=True)]
    return [words.select(fits, a, b) for a, b in zip(state, new, strict=True)]


def after(state: Sequence[Any], count: int, words: Arithmetic) -> list[Any]:
    """Return what a state that had room for ``count`` numbers is when they have been drawn."""
    drawn = words.constant(-(-count // 4) * 4)
    return [*state[:6], words.constant(0), words.add(state[7], drawn), *state[8:]]


def split_state(
    state: Sequence[Any], hashed: Sequence[Any], words: Arithmetic
) -> tuple[list[Any], list[Any]]:
    """Return the two states after a split: a 0 and a 1 are added to the path.

    Where the path is full, ``hashed``, the hash of path and counter, is the key of a new one.
    """
    zero, second = words.constant(0), words.constant(_SECOND)
    full = words.is_zero(state[8] | state[9])
    place = _next_place(state, words)

    def one(fresh_path: Any, path: Sequence[Any]) -> list[Any]:
        fresh = [*hashed, fresh_path, zero, zero, zero, second, zero]
        longer = [*state[:4], *path, *state[6:8], *place]
        return [words.select(full, a, b) for a, b in zip(fresh, longer, strict=True)]

    right = [state[4] | state[8], state[5] | state[9]]
    return one(zero, state[4:6]), one(words.constant(_FIRST), right)


def _next_place(state: Sequence[Any], words: Arithmetic) -> list[Any]:
    """Shift the single bit of words 8 and 9 one to the right."""
    carry = (state[8] & words.constant(1)) << 63
    return [_shift(state[8], 1, words), _shift(state[9], 1, words) | carry]
