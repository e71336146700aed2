"""Keys and values of the tokens that a decoder has read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meta.base.errors import ArgumentError
from meta.language.decoder import Decoder


class Cache:
    """What a decoder has read of several texts: keep it to go on from there.

    A `generate` that is given one appends its prompts to the texts, reads only what is new, and
    leaves what it wrote in the cache.

    Attributes
    ----------
    tokens: of each text, all of them. lengths: how many of these are read; what a text ends with
    may be still to be read.

    >>> from meta.language import Cache
    >>> cache = Cache(2)
    >>> cache.tokens
    [[], []]
    """

    def __init__(self, rows: int = 1) -> None:
        if rows < 1:
            raise ArgumentError("a cache has at least one row", found=rows)
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.lengths = [0] * rows
        self.arrays: list[torch.Tensor] = []

    @property
    def slots(self) -> int:
        """How many tokens of each text there is room for."""
        return self.arrays[0].shape[1] if self.arrays else 0

    def fork(self, rows: int | None = None) -> Cache:
        """Return a copy; of one text as many as ``rows``, each with memory of its own."""
        count = len(self.tokens) if rows is None else rows
        if count != len(self.tokens) and len(self.tokens) != 1:
            raise ArgumentError(
                "one text is copied to several rows, not several",
                expected=f"{len(self.tokens)} rows, or a cache of one",
                found=rows,
            )
        found, times = Cache(count), count // len(self.tokens)
        found.tokens = [list(text) for text in self.tokens * times]
        found.lengths = self.lengths * times
        found.arrays = [x.repeat_interleave(times, 0) for x in self.arrays]
        return found

    def truncate(self, length: int | Sequence[int]) -> None:
        """Forget all but the first tokens of each text."""
        rows = len(self.tokens)
        lengths = [length] * rows if isinstance(length, int) else list(length)
        if len(lengths) != rows or min(lengths) < 0:
            raise ArgumentError("a length for each text", expected=f"{rows} of them", found=length)
        self.tokens = [text[:n] for text, n in zip(self.tokens, lengths, strict=True)]
        self.lengths = [min(a, len(b)) for a, b in zip(self.lengths, self.tokens, strict=True)]

    def reserve(self, decoder: Decoder, slots: int) -> None:
        """Have room for so many tokens of each text, and keep what is there."""
        config = decoder.config
        like = decoder.embed_tokens.weight.tensor
        shape = (len(self.tokens), slots, config.key_value_heads, config.head_width)
        old, known = self.arrays, self.slots
        if old and (len(old) != 2 * config.layers or old[0].shape[2:] != shape[2:]):
            raise ArgumentError(
                "this cache belongs to another decoder",
                expected=f"{config.layers} layers of {list(shape[2:])}",
                found=f"{len(old) // 2} layers of {list(old[0].shape[2:])}",
            )
        if known >= slots:
            return
        # What is never read is to be no NaN: a weight of 0 times it would be one.
        self.arrays = [like.new_zeros(shape) for _ in range(2 * config.layers)]
        for new, past in zip(self.arrays, old, strict=False):
            new[:, :known] = past
