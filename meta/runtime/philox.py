"""Philox4x32-10, the counter-based generator behind every random kernel.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The same text
runs on Python ints and torch int64 tensors, and makes expressions of TVM: `Words` is what they do
differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


class Words:
    """Arithmetic of 32-bit words, each held in a 64-bit integer, or in an array of them, whose
    product wraps around.
    """

    def low(self, value: Any) -> Any:
        """Return the low word of 64 bits."""
        return value & _WORD

    def high(self, value: Any) -> Any:
        """Return the high word of 64 bits."""
        return (value >> 32) & _WORD

    def product(self, word: Any, number: int) -> Any:
        """Return the 64 bits of a product."""
        return word * number

    def sum(self, word: Any, number: int) -> Any:
        """Return the word that a sum wraps around to."""
        return (word + number) & _WORD

    def let(self, value: Any, body: Callable[[Any], Any]) -> Any:
        """Return ``body(value)``. Expression trees name the value here, which would otherwise
        double with every round.
        """
        return body(value)

    def split(self, value: Any) -> tuple[Any, Any]:
        """Return the low and the high word of a 64-bit key or counter."""
        return self.low(value), self.high(value)


IN_64_BITS = Words()


def philox4x32(
    counter: tuple[Any, Any, Any, Any],
    key: tuple[Any, Any],
    finish: Callable[..., Any],
    words: Words = IN_64_BITS,
) -> Any:
    """Return ``finish`` of the four random words that belong to a counter and a key.

    Parameters
    ----------
    counter, key: four and two words.
    words: how they are held.
    """

    def key_of(number: int, which: int) -> Any:
        """Return a word of a round's key: the Weyl constant is added in every round."""
        return words.sum(key[which], _WEYL[which] * number & _WORD) if number else key[which]

    def rounds(c: tuple[Any, ...], number: int) -> Any:
        if number == _ROUNDS:
            return finish(*c)

        def mixed(p0: Any, p1: Any) -> Any:
            (low0, high0), (low1, high1) = words.split(p0), words.split(p1)
            keys = key_of(number, 0), key_of(number, 1)
            return rounds((high1 ^ c[1] ^ keys[0], low1, high0 ^ c[3] ^ keys[1], low0), number + 1)

        def second(p0: Any) -> Any:
            return words.let(words.product(c[2], _MULTIPLIERS[1]), lambda p1: mixed(p0, p1))

        return words.let(words.product(c[0], _MULTIPLIERS[0]), second)

    return rounds(counter, 0)


def round_keys(key: tuple[int, int]) -> list[int]:
    """Return the two words of each round's key."""
    return [key[w] + _WEYL[w] * r & _WORD for r in range(_ROUNDS) for w in (0, 1)]


def dropout_threshold(p: float) -> int:
    """Return t such that a random word is below t with probability ``p``."""
    return round(p * 2**32)


def multiple(words: tuple[Any, Any, Any, Any], low: Any, high: Any = None) -> Any:
    """Return floor(x * count / 2**128), where x has the 32-bit ``words``, the lowest first.

    A number from 0 to count - 1, as 64 bits; each occurs with a probability that differs by less
    than 2**-128 from 1 / count. count: low + 2**32 * high, 1 to 2**64; high: None for 0. The words
    are held as those of `philox4x32`.
    """
    columns: list[list[Any]] = [[] for _ in range(6)]  # terms of the product's 32-bit digits
    for i, word in enumerate(words):
        for digit, at in ((low, i), (high, i + 1)):
            if digit is not None:
                product = word * digit
                columns[at].append(product & _WORD)
                columns[at + 1].append((product >> 32) & _WORD)
    carry: Any = 0
    digits = []
    for column in columns:
        total = sum(column, carry)
        carry = total >> 32
        digits.append(total & _WORD)
    return digits[5] << 32 | digits[4]


# Threefry-4x64-20 with a splittable state: the generator of `threefry_generate`, `threefry_split`.
#
# Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the state
# is encoding e4 of Claessen and Palka, "Splittable pseudorandom number generators using
# cryptographic hashing", Haskell 2013. As in Relay, whose numbers these are, no subkey is added
# after the last round.
#
# A state has ten 64-bit words: the key (0 to 3), the path of splits so far (4, 5), a counter (6, 7)
# and the place of the next split in the path, a single bit (8, 9). The arithmetic of the words is a
# parameter, so the same text runs on torch tensors and on TVM expressions.


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
    longer = [*state[:4], *path, zero, zero, *_next_counter(state, words)]
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
    place = _next_counter(state, words)

    def one(fresh_path: Any, path: Sequence[Any]) -> list[Any]:
        fresh = [*hashed, fresh_path, zero, zero, zero, second, zero]
        longer = [*state[:4], *path, *state[6:8], *place]
        return [words.select(full, a, b) for a, b in zip(fresh, longer, strict=True)]

    right = [state[4] | state[8], state[5] | state[9]]
    return one(zero, state[4:6]), one(words.constant(_FIRST), right)


def _next_counter(state: Sequence[Any], words: Arithmetic) -> list[Any]:
    """Shift the single bit of words 8 and 9 one to the right."""
    carry = (state[8] & words.constant(1)) << 63
    return [_shift(state[8], 1, words), _shift(state[9], 1, words) | carry]
