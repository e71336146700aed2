"""How a random program grows, whatever it is made of: values, steps that use them, results.

A step is drawn, done at once, and kept if its results can be used by others; else all that it
brought with it is forgotten. The faces say what a step is, and what its results are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from random import Random
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
"""What names a value in a program: a number, or text."""


class Missing(Exception):
    """There is no operand of the kind that a step needs, or no use for its results."""


class Generator(ABC, Generic[Key]):
    """A program that grows. scope: the values that steps may use, newer ones behind."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scope: list[Key] = []
        self.number = 0

    # Numbers.

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability

    def choice(self, values: Sequence[Any]) -> Any:
        """Return one of some values."""
        return self.random.choice(values)

    def int(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``, both included."""
        return self.random.randint(low, high)

    def fresh(self) -> int:
        """Return the number of a new value."""
        self.number += 1
        return self.number - 1

    # Values.

    @abstractmethod
    def value(self, key: Key) -> Any:
        """Return what is known of a value."""

    def choose(self, *fits: Callable[[Any], Any]) -> Key:
        """Return one of the values that fit, newer ones more often; Missing if none does."""
        found = [k for k in self.scope if all(f(self.value(k)) for f in fits)]
        if not found:
            raise Missing
        back = min(int(self.random.expovariate(0.35)), len(found) - 1)
        return found[-1 - back] if self.chance(0.7) else self.random.choice(found)

    # Steps.

    @abstractmethod
    def draw(self) -> bool:
        """Draw a step and do it; return whether it is kept. Missing is as good as False."""

    @abstractmethod
    def mark(self) -> Any:
        """Return what `forget` needs to know of the program as it is."""

    @abstractmethod
    def forget(self, mark: Any) -> None:
        """Forget the values and inputs that are new since a mark."""

    def attempt(self, draw: Callable[[], bool]) -> bool:
        """Draw a step; return whether it is kept. If it is not, nothing is left of it."""
        mark = self.mark()
        try:
            if draw():
                return True
        except Missing:
            pass
        self.forget(mark)
        return False

    def grow(self, steps: int, tries: int) -> int:
        """Draw steps until so many are kept, or so many were tried; return how many are kept."""
        kept = 0
        for _ in range(tries):
            if kept >= steps:
                break
            kept += self.attempt(self.draw)
        return kept


def renamed_extents(sample: Sequence[int], shape: Sequence[Any]) -> dict[int, Any] | None:
    """Return what becomes of the extents of a sample's tensor where a value is in its place; None
    if an extent would become two.
    """
    if len(sample) != len(shape):
        return None
    pairs = set(zip(sample, shape, strict=True))
    return dict(pairs) if len(pairs) == len({old for old, _ in pairs}) else None
