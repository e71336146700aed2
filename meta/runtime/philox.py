"""Philox4x32-10, the counter-based generator behind every random kernel.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The same text
runs on Python ints and torch int64 tensors, and makes expressions of TVM: `Words` is what they do
differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def keep_threshold(p: float) -> int:
    """Return t such that a random word is below t with probability ``p``."""
    return round(p * 2**32)


def multiple(words: tuple[Any, Any, Any, Any], count: int) -> Any:
    """Return floor(x * count / 2**128), where x has the 32-bit ``words``, the lowest first.

    A number from 0 to count - 1, as 64 bits; each occurs with a probability that differs by less
    than 2**-128 from 1 / count. count: 1 to 2**64. The words are held as those of `philox4x32`.
    """
    low, high = count & _WORD, count >> 32
    columns: list[list[Any]] = [[] for _ in range(6)]  # terms of the product's 32-bit digits
    for i, word in enumerate(words):
        for product, at in ((word * low, i), (word * high, i + 1)):
            columns[at].append(product & _WORD)
            columns[at + 1].append((product >> 32) & _WORD)
    carry: Any = 0
    digits = []
    for column in columns:
        total = sum(column, carry)
        carry = total >> 32
        digits.append(total & _WORD)
    return digits[5] << 32 | digits[4]
