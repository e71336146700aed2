"""Bounded caches in memory: what was decided is kept, but not for ever.

A cache is a plain dict, so that finding something in it costs nothing more. The bound is kept where
something is added: the older half goes, which is decided once more if it is needed again.
"""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def bounded_insert(cache: dict[K, V], key: K, value: V, most: int) -> V:
    """Put a value into a cache of at most ``most`` entries, and return it."""
    if len(cache) >= most:
        for old in list(islice(cache, len(cache) - most // 2)):
            cache.pop(old, None)
    cache[key] = value
    return value
